"""Case: a problem and the scalars of an operator, on one line that can be pasted.

``n1 ci32 co64 i32x64x64 k3 s2 p1 op1 fp32 cpu pool_kernel=2 clamp_min=0 clamp_max=1``
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from transfuse.problem import Problem
from transfuse.stages import Number


@dataclass(frozen=True)
class Case:
    problem: Problem
    scalars: Mapping[str, Number] = field(default_factory=dict)

    @classmethod
    def parse(cls, line: str) -> "Case":
        """Words with ``=`` are scalars, the others the problem line."""
        words = line.split()
        scalars: dict[str, Number] = {}
        for word in words:
            name, equals, text = word.partition("=")
            if equals:
                if name in scalars:
                    raise ValueError(f"{name} is given twice in {line!r}")
                scalars[name] = _number(word, text)
        return cls(Problem.parse(" ".join(w for w in words if "=" not in w)), scalars)

    def on(self, dtype: str | None = None, device: str | None = None) -> "Case":
        """The same case with another element type (or in tf32), or on another device."""
        wanted = dtype or self.problem.arithmetic
        stored, precision = ("fp32", "tf32") if wanted == "tf32" else (wanted, "ieee")
        device = device or self.problem.device
        problem = replace(self.problem, dtype=stored, device=device, precision=precision)
        return Case(problem, self.scalars)

    def __str__(self) -> str:
        return " ".join([str(self.problem), *(f"{k}={_text(v)}" for k, v in self.scalars.items())])


def _text(value: Number) -> str:
    """The shorter form where it stands for the same number."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _number(word: str, text: str) -> Number:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ValueError(f"{word!r} does not give a number")
