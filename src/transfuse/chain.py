"""Chain: stages in order, exactly one of them the transposed convolution."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from torch import Tensor

from transfuse import stages
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem, Shape
from transfuse.stages import ConvTranspose, Env, Kind, Number, Stage


@dataclass(frozen=True, init=False)
class Chain:
    """What is computed: stages in order, exactly one of them the transposed convolution.

    Args:
        stages: those of ``transfuse.stages``; what stands before the convolution is on its input.
            A string in one names a number or a tensor that a call gives.

    Example::

        >>> chain = Chain(avg_pool(2), ConvTranspose(2, "bias"), scale("gain"), sigmoid())
        >>> print(chain)
        avg_pool(2) -> conv_transpose2d(+ bias) -> scale(gain) -> sigmoid
        >>> print(chain.bind({"gain": 2.0}))
        avg_pool(2) -> conv_transpose2d(+ bias) -> scale(2.0) -> sigmoid
    """

    stages: tuple[Stage, ...]
    conv: ConvTranspose = field(repr=False, compare=False)
    at: int = field(repr=False, compare=False)
    """Where the convolution stands."""

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
        _expect_form_last(stages, convolutions[0].rank)
        object.__setattr__(self, "stages", tuple(stages))
        object.__setattr__(self, "conv", convolutions[0])
        at = next(i for i, stage in enumerate(stages) if isinstance(stage, ConvTranspose))
        object.__setattr__(self, "at", at)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Chain) and self._values == other._values)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type["Chain"], tuple[Stage, ...]]:
        """Copies and pickles are made of the stages: a hash is another in another process."""
        return Chain, self.stages

    @cached_property
    def _hash(self) -> int:
        return hash(self._values)

    @cached_property
    def _values(self) -> tuple[Hashable, ...]:
        return tuple(stage.values for stage in self.stages)

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

    @property
    def updates(self) -> tuple[str, ...]:
        """The operands that a call writes to."""
        return tuple(name for stage in self.stages for name in stage.updates)

    @property
    def statistics(self) -> tuple[str, ...]:
        """The operands that some call writes to, this one or another: running statistics."""
        return tuple(name for stage in self.stages for name in stage.without_gradient)

    @property
    def mixes(self) -> frozenset[str]:
        """The operands that may be float32 beside values of 16 bits: read by norms alone."""
        norms, others = (
            {name for stage in self.stages if stage.mixes is mixes for name in stage.operands}
            for mixes in (True, False)
        )
        return frozenset(norms - others)

    def bind(self, scalars: Mapping[str, Number]) -> "Chain":
        """The chain with numbers in place of the names in ``scalars``."""
        return Chain(*(stage.bind(scalars) for stage in self.stages))

    def lift(self) -> tuple["Chain", Env]:
        """The chain with names in place of its tensors, and the tensors under those names.

        The names are for people, too: ``bias`` is the convolution's, ``group_norm.weight`` that of
        the one group_norm, and with two of them ``group_norm2.weight`` is that of the second.
        """
        env: Env = {}
        taken = {v for stage in self.stages for v in stage.given if type(v) is str}
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
        return _shapes(self, problem) if problem.known else _shapes_of(self, problem)

    def result(self, problem: Problem) -> tuple[int, ...]:
        """The sizes of the tensor that comes out; stages at the end may leave out or join axes."""
        dims = self.shapes(problem)[-1].dims
        for stage in self.stages:
            dims = stage.form(dims)
        return dims

    def core(self, problem: Problem) -> Problem:
        """The convolution's own problem: the sizes that the prologue leaves."""
        return problem.at(self.shapes(problem)[self.at].spatial)

    def met(self, problem: Problem) -> tuple[int, ...]:
        """The sizes that the convolution itself meets, whatever becomes of them there."""
        shape = problem.input
        for stage in self.prologue:
            shape = stage.shape(shape)
        return shape.spatial

    def needed(self, problem: Problem) -> tuple[int, ...]:
        """How many of the convolution's outputs along each axis reach the result at all."""
        shapes = self.shapes(problem)
        extents = shapes[-1].spatial
        for stage, before in reversed(
            list(zip(self.epilogue, shapes[self.at + 1 : -1], strict=True))
        ):
            extents = stage.need(extents, before.spatial)
        return extents

    def fitted(self, shapes: Mapping[str, tuple[int, ...]]) -> "Chain":
        """The chain, told the shapes of its tensors."""
        stages = tuple(stage.fitted(shapes, self.conv.rank) for stage in self.stages)
        same = all(new is old for new, old in zip(stages, self.stages, strict=True))
        return self if same else Chain(*stages)

    def typed(self, problem: Problem) -> "Chain":
        """The chain, told the type its values are computed in."""
        compute = ELEMENTS[problem.dtype].compute
        stages = tuple(stage.typed(compute) for stage in self.stages)
        same = all(new is old for new, old in zip(stages, self.stages, strict=True))
        return self if same else Chain(*stages)

    def dims(self, problem: Problem) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every operand by name, with the shape it must have; ``(C,)``: one value per channel."""
        for stage, before in zip(self.stages, self.shapes(problem)[:-1], strict=True):
            convolves = isinstance(stage, ConvTranspose)
            yield from stage.dims(before._replace(c=problem.out_channels) if convolves else before)

    def __str__(self) -> str:
        return _arrows(self.stages)


def _shapes_of(chain: Chain, problem: Problem) -> tuple[Shape, ...]:
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
    formed = next((i for i, stage in enumerate(chain.stages) if stage.reshapes), len(chain.stages))
    for stage in chain.stages[formed + 1 :]:
        if stage.operands:
            raise RuntimeError(_behind_form(stage, chain.stages[formed], chain.conv.rank))
    return tuple(shapes)


_shapes = lru_cache(maxsize=4096)(_shapes_of)


def _expect_form_last(stages: Sequence[Stage], rank: int) -> None:
    """Refuse a stage that sees axes behind one after which the result has others.

    Names are let pass: they may stand for numbers.
    """
    former = None
    for stage in stages:
        if former is not None and (
            stage.sees(rank) not in (Kind.POINTWISE, Kind.FORM)
            or any(isinstance(each, Tensor) for _, each in stage.parameters())
        ):
            raise ValueError(_behind_form(stage, former, rank))
        former = former or (stage if stage.reshapes else None)


def _behind_form(stage: Stage, former: Stage, rank: int) -> str:
    keep = " (keepdim=True keeps them)" if former.sees(rank) is not Kind.FORM else ""
    return (
        f"{stage} stands behind {former}, after which the axes are others{keep}: only stages of "
        "single elements with numbers, flatten and squeeze can follow"
    )


def _arrows(stages: Sequence[Stage]) -> str:
    return " -> ".join(map(str, stages)) or "nothing"


def _no_stage(value: object) -> str:
    what = f"a chain is made of stages, not {type(value).__name__}: "
    known = [name for name in stages.__all__ if getattr(stages, name) is value]
    if isinstance(value, stages.Function):
        known = [value.name]
    if known:
        return f"{what}{known[0]} makes one when it is called, {known[0]}(…)"
    makers = ", ".join(name for name in stages.__all__ if name.islower())
    return f"{what}{value!r}; in transfuse.stages there are {makers}"
