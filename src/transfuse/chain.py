"""Chain: stages in order, exactly one of them the transposed convolution."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import copysign

from transfuse import stages
from transfuse.problem import Problem, Shape
from transfuse.stages import ConvTranspose, Env, Number, Stage


@dataclass(frozen=True, init=False)
class Chain:
    """What is computed: ``prologue -> conv -> epilogue``. Prints as the arrows it stands for."""

    stages: tuple[Stage, ...]

    def __init__(self, *stages: Stage) -> None:
        for stage in stages:
            if not isinstance(stage, Stage):
                raise TypeError(_no_stage(stage))
        convolutions = [stage for stage in stages if isinstance(stage, ConvTranspose)]
        if len(convolutions) != 1:
            raise ValueError(
                f"a chain holds exactly one transposed convolution, not {len(convolutions)}: "
                + _arrows(stages)
            )
        object.__setattr__(self, "stages", tuple(stages))

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Chain):
            return self is other
        return self.stages == other.stages and self._zeros == other._zeros

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.stages)

    @cached_property
    def _zeros(self) -> tuple[float, ...]:
        """The signs of its zeros: 0.0 equals -0.0, and does not compute the same."""
        values = (value for stage in self.stages for value in vars(stage).values())
        return tuple(copysign(1, v) for v in values if type(v) is float and v == 0)

    @cached_property
    def at(self) -> int:
        """Where the convolution stands."""
        return next(i for i, stage in enumerate(self.stages) if isinstance(stage, ConvTranspose))

    @cached_property
    def conv(self) -> ConvTranspose:
        stage = self.stages[self.at]
        assert isinstance(stage, ConvTranspose)
        return stage

    @property
    def prologue(self) -> tuple[Stage, ...]:
        return self.stages[: self.at]

    @property
    def epilogue(self) -> tuple[Stage, ...]:
        return self.stages[self.at + 1 :]

    @property
    def exact(self) -> bool:
        """Whether small integers give results that can be compared bit for bit."""
        return all(stage.exact for stage in self.stages)

    def bind(self, scalars: Mapping[str, Number]) -> "Chain":
        """The chain with numbers in place of the names in ``scalars``."""
        return Chain(*(stage.bind(scalars) for stage in self.stages))

    def lift(self) -> tuple["Chain", Env]:
        """The chain with names in place of its tensors, and the tensors under those names.

        The names are for people, too: ``bias`` is the convolution's, ``group_norm.weight`` that of
        the one group_norm, and with two of them ``group_norm2.weight`` is that of the second.
        """
        env: Env = {}
        taken = {v for stage in self.stages for v in vars(stage).values() if type(v) is str}
        names = [stage.name for stage in self.stages]
        stages = []
        for i, (name, stage) in enumerate(zip(names, self.stages, strict=True)):
            number = names[: i + 1].count(name) if names.count(name) > 1 else ""
            prefix = "" if isinstance(stage, ConvTranspose) else f"{name}{number}"
            stages.append(stage.lift(prefix, env, taken))
        return Chain(*stages), env

    def swap(self, at: int, count: int, *stages: Stage) -> "Chain":
        """The chain with ``count`` stages from ``at`` on replaced."""
        return Chain(*self.stages[:at], *stages, *self.stages[at + count :])

    def shapes(self, problem: Problem) -> tuple[Shape, ...]:
        """The shape before the first stage and after each one; raises where a stage cannot."""
        return _shapes(self, problem)

    def core(self, problem: Problem) -> Problem:
        """The convolution's own problem: the sizes that the prologue leaves."""
        return problem.at(self.shapes(problem)[self.at].spatial)

    def needed(self, problem: Problem) -> tuple[int, ...]:
        """How many of the convolution's outputs along each axis reach the result at all."""
        shapes = self.shapes(problem)
        extents = shapes[-1].spatial
        for stage, before in reversed(
            list(zip(self.epilogue, shapes[self.at + 1 : -1], strict=True))
        ):
            extents = stage.need(extents, before.spatial)
        return extents

    def channels(self, problem: Problem) -> Iterator[tuple[str, int]]:
        """Every per-channel operand by name, with the channels it must have."""
        for stage, before in zip(self.stages, self.shapes(problem)[:-1], strict=True):
            count = problem.out_channels if isinstance(stage, ConvTranspose) else before.c
            for name in stage.operands:
                yield name, count

    def __str__(self) -> str:
        return _arrows(self.stages)


@lru_cache(maxsize=4096)
def _shapes(chain: Chain, problem: Problem) -> tuple[Shape, ...]:
    shapes = [problem.input]
    for stage in chain.stages:
        if isinstance(stage, ConvTranspose):
            if shapes[-1].c != problem.in_channels:
                raise RuntimeError(
                    f"conv_transpose{stage.rank}d: weight expects {problem.in_channels} "
                    f"channels, but the stages before it give {shapes[-1].c}"
                )
            shapes.append(problem.at(shapes[-1].spatial).output())
        else:
            shapes.append(stage.shape(shapes[-1]))
    return tuple(shapes)


def _arrows(stages: Sequence[Stage]) -> str:
    return " -> ".join(map(str, stages)) or "nothing"


def _no_stage(value: object) -> str:
    what = f"a chain is made of stages, not {type(value).__name__}: "
    known = [name for name in stages.__all__ if getattr(stages, name) is value]
    if known:
        return f"{what}{known[0]} makes one when it is called, {known[0]}(…)"
    makers = ", ".join(name for name in stages.__all__ if name.islower())
    return f"{what}{value!r}; in transfuse.stages there are {makers}"
