"""Walk: values on their way through sweeps, as a stage tells them what to do.

A stage that stands outside the convolution's kernel says in these few words what it does; who
listens makes sweeps of it, and puts neighbouring words into one sweep where that can be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from transfuse.maths.expr import Expr
from transfuse.problem import Shape
from transfuse.stages.running import Running
from transfuse.sweeps import Folding


@dataclass(frozen=True)
class Given:
    """An operand of the call by its name: it differs along ``axes`` alone (0 samples, 1 channels).

    Along the others it has one value, and its axes come in their order, the others left out or 1.
    """

    name: str
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Statistic:
    """What a fold found, by its number among all that were; it meets the values it was taken of."""

    number: int


Value = Given | Statistic


class Walk(Protocol):
    """Values between two stages. Axes are counted as torch does: 0 samples, 1 channels."""

    @property
    def shape(self) -> Shape:
        """Of the values as they are now."""
        ...

    def map(self, expr: Expr, values: Mapping[str, Value] = ...) -> None:
        """Every value ``x`` becomes ``expr``, in which the other names are these values."""
        ...

    def fold(self, folding: Folding, axes: Sequence[int], groups: int = 1) -> tuple[Statistic, ...]:
        """A statistic over these axes, for each place along the others; the values stay.

        With ``groups`` the channels, which must be among the axes, are folded within each of so
        many groups of neighbours.
        """
        ...

    def reduce(self, folding: Folding, axes: Sequence[int]) -> None:
        """The values become one for all along these axes, whose sizes become 1."""
        ...

    def slide(
        self,
        folding: Literal["max", "sum", "mean", "sign"],
        outputs: Sequence[int],
        *,
        kernel: Sequence[int] = ...,
        stride: Sequence[int] = ...,
        padding: Sequence[int] = ...,
        dilation: Sequence[int] = ...,
        adaptive: bool = False,
        counts_padding: bool = True,
        divisor: float | None = None,
        sign: Value | None = None,
    ) -> None:
        """The values become one for each window of the spatial axes, as ``sweeps.Slide`` says."""
        ...

    def shuffle(self, factor: int) -> None:
        """Channels become space: each position has ``factor`` more along each axis, as in torch."""
        ...

    def cat(self, other: Given, channels: int, first: bool) -> None:
        """The ``channels`` of another tensor join, before the values' own where ``first``."""
        ...

    def update(self, running: Running, mean: Statistic, var: Statistic, count: int) -> None:
        """Running statistics move by those of so many values each, once the call is through."""
        ...
