"""What a stage does to a tile: the words that an engine's kernel has for it.

A stage says what it does as one of these records (``Stage.action``), and a backend's lowering reads
nothing else of it. What has no such record is served by sweeps (``walk.py``).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transfuse.maths.expr import Call, Constant, Expr, Name
from transfuse.maths.primitives import direction, interval
from transfuse.stages.running import Running


@dataclass(frozen=True)
class Elementwise:
    """An expression of every element by itself.

    ``pattern`` is the expression with its arguments numbered, the same for all functions that
    compute the same. ``constants``: arguments that are numbers, ``tensors``: the names that others
    are given under, both by their names in the expression; ``shapes``: of tensors that have more
    than one value per channel.
    """

    pattern: Expr
    expr: Expr
    arguments: tuple[Any, ...]
    constants: Mapping[str, float]
    tensors: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def per_channel(self) -> bool:
        """Whether its tensors have one value per channel each."""
        return not self.shapes

    @property
    def alone(self) -> bool:
        """Whether numbers, or one value per channel, are all its arguments."""
        return self.per_channel and (not self.tensors or len(self.arguments) == 1)

    @property
    def rises(self) -> bool:
        """Whether it never falls as x grows, whatever values its tensors have."""
        return direction(self.expr, "x", self.constants) == 1

    def within(self, limit: float) -> bool:
        """Whether every value it gives but NaN is at most ``limit`` from 0."""
        low, high = interval(self.expr, self.constants)
        return -limit <= low and high <= limit

    def operated(self, *primitives: str) -> Iterator[float]:
        """The numbers that it adds, multiplies by and so on."""
        for each in self.expr.walk():
            if isinstance(each, Call) and each.primitive in primitives:
                for part in each.arguments:
                    if isinstance(part, Constant):
                        yield part.value
                    elif isinstance(part, Name) and part.name in self.constants:
                        yield self.constants[part.name]


@dataclass(frozen=True)
class Pool:
    """One value for each window of (kernel, stride, padding) per axis.

    ``how``: ``"max"``, the largest; ``"sum"``, the sum over ``divisor``; ``"sign"``, the largest in
    channels where the operand ``sign`` is not negative, else the smallest.
    """

    how: str
    windows: tuple[tuple[int, int, int], ...]
    divisor: int = 1
    sign: str | None = None

    @property
    def name(self) -> str:
        """The stage that gives it, as chains print it."""
        return {"max": "max_pool", "sum": "avg_pool", "sign": "extremum_pool"}[self.how]

    @property
    def overlaps(self) -> bool:
        """Whether an element may be in more than one window, or a window reach over the edge."""
        return any(stride < kernel or padding for kernel, stride, padding in self.windows)

    @property
    def tiles(self) -> bool:
        """Whether windows lie side by side, so that each element is in one at most, and no gap."""
        return all(stride == kernel and not padding for kernel, stride, padding in self.windows)

    def __str__(self) -> str:
        def each(numbers: tuple[int, ...]) -> str:
            return str(numbers[0]) if len({*numbers}) == 1 else "x".join(map(str, numbers))

        kernel, stride, padding = zip(*self.windows, strict=True)
        extra = f", stride {each(stride)}" if stride != kernel else ""
        extra += f", padding {each(padding)}" if any(padding) else ""
        extra += f" by sign of {self.sign}" if self.sign else ""
        return f"{self.name}({each(kernel)}{extra})"


@dataclass(frozen=True)
class OverChannels:
    """All channels of a position: their ``"sum"``, or the ``"softmax"`` of each."""

    how: str


@dataclass(frozen=True)
class OverSpace:
    """The softmax over all positions of a channel; ``bounded``: nothing need be taken off first."""

    bounded: bool


@dataclass(frozen=True)
class Normalize:
    """Values less their mean, over their deviation, times ``weight``, plus ``bias``.

    The statistics are of ``groups`` groups of neighbouring channels in each sample, or of every
    channel ``over_batch``; or they are ``given``, mean and variance by name. The two halves may
    stand apart: one that ``gathers``, and one that ``applies`` what was gathered.
    """

    eps: float
    weight: str | None = None
    bias: str | None = None
    groups: int = 1
    over_batch: bool = False
    given: tuple[str, str] | None = None
    running: Running | None = None
    gathers: bool = True
    applies: bool = True


Action = Elementwise | Pool | OverChannels | OverSpace | Normalize
