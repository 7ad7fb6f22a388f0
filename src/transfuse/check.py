"""Every backend that can run here against the oracle: named cases, random cases, hard values."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import torch

from transfuse.accuracy import Oracle
from transfuse.backends import BACKENDS, Backend
from transfuse.cases import Case
from transfuse.fills import integers, real, special
from transfuse.front import run
from transfuse.operators import Operator
from transfuse.problem import Problem
from transfuse.reference import reference

NAMED = ("small", "ragged")
"""Declared cases that are small enough to compare in float64."""


@dataclass(frozen=True)
class Result:
    """One case on one backend; ``used`` is the largest error as a share of its budget."""

    slug: str
    backend: str
    case: Case
    seed: int
    used: float
    fault: str = ""
    refusal: str = ""

    @property
    def status(self) -> str:
        return "refused" if self.refusal else "failed" if self.fault else "passed"

    @property
    def command(self) -> str:
        """What to type to see this result again."""
        return (
            f"transfuse check {self.slug} --backend {self.backend} "
            f"--case '{self.case}' --seed {self.seed}"
        )


def check(operator: Operator, case: Case, backend: Backend, seed: int) -> Result:
    """Run a case with real numbers, with integers and with NaN and Inf; each must be right."""
    chain = operator.bound(case)
    result = Result(operator.slug, backend.name, case, seed, 0.0)
    verdict = backend.verdict(chain, case.problem)
    if not verdict.ok:
        return replace(result, refusal=verdict.reason)
    shape = chain.result(case.problem)
    worst = 0.0
    for fill in (real, integers, special):
        x, weight, operands = fill(chain, case.problem, seed)
        out = torch.full(shape, torch.nan, dtype=x.dtype, device=x.device)
        try:
            run(chain, case.problem, x, weight, operands, out, backend.name)
        except Exception as error:
            return replace(result, fault=f"{fill.__name__}: {type(error).__name__}: {error}")
        if fill is integers and chain.exact:
            exact = reference(chain, case.problem, x, weight, operands).to(out.dtype)
            wrong = int((out != exact).sum())
            fault = f"{wrong} of {out.numel()} elements are not exact" if wrong else ""
        else:
            ulp = backend.ulp(case.problem)
            accuracy = Oracle(chain, case.problem, x, weight, operands, ulp).judge(out)
            worst, fault = max(worst, accuracy.used), accuracy.fault
        if fault:
            return replace(result, used=worst, fault=f"{fill.__name__}: {fault}")
    return replace(result, used=worst)


def check_all(
    operator: Operator, cases: list[Case], seed: int, backend: str | None = None
) -> Iterator[Result]:
    """Every case on every backend, or on the one named."""
    for case in cases:
        for each in BACKENDS:
            if backend in (None, each.name):
                yield check(operator, case, each, seed)


def cases(
    operator: Operator, random: int, seed: int, arithmetics: tuple[str, ...], device: str
) -> list[Case]:
    """The small named cases and ``random`` drawn ones, each in every arithmetic."""
    draw = Random(f"{operator.slug} {seed}")
    drawn = [operator.case(name) for name in NAMED if name in operator.cases]
    drawn += [random_case(operator, draw) for _ in range(random)]
    return [case.on(each, device) for case in drawn for each in arithmetics]


def random_case(operator: Operator, draw: Random) -> Case:
    """A legal case with the scalars of a named one and a geometry drawn at random."""
    while True:
        scalars = operator.case(draw.choice(operator.cases)).scalars
        try:
            case = Case(_random_problem(operator, draw), scalars)
            operator.bound(case).shapes(case.problem)
        except (RuntimeError, ValueError):
            continue  # an empty output, groups that do not divide: draw again
        return case


def _random_problem(operator: Operator, draw: Random) -> Problem:
    rank = operator.rank

    def axes(option: str, low: int, high: int) -> tuple[int, ...]:
        listed = option in (*operator.options, "spatial", "kernel")
        default = 1 if option == "dilation" else 0
        return tuple(draw.randint(low, high) if listed else default for _ in range(rank))

    stride, dilation = axes("stride", 1, 4), axes("dilation", 1, 3)
    groups = draw.choice((1, 1, 2, 3)) if operator.grouped else 1
    return Problem(
        batch=draw.randint(1, 3),
        in_channels=groups * draw.randint(1, 9),
        out_channels=groups * draw.randint(1, 12),
        spatial=axes("spatial", 1, 12 if rank < 3 else 7),
        kernel=axes("kernel", 1, 5),
        stride=stride,
        padding=axes("padding", 0, 3),
        dilation=dilation,
        output_padding=tuple(
            draw.randrange(max(s, d)) if "output_padding" in operator.options else 0
            for s, d in zip(stride, dilation, strict=True)
        ),
        groups=groups,
    )
