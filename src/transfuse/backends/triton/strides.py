"""Numbers by axis: sizes of depth, height and width, and the strides of a tensor."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from transfuse.problem import Shape

Three = tuple[int, int, int]
"""By axis: depth, height, width."""

Box = tuple[int, int, int, int]
"""Positions of a tile along three axes and samples; which of them comes first is up to its form."""

Five = tuple[int, int, int, int, int]
"""Strides of samples, channels, depth, height and width."""

CHANNELS, WIDTH = 1, 4
"""Axes that elements may lie side by side along."""


def three(values: Sequence[int], missing: int) -> Three:
    """One value per axis, missing axes first."""
    a, b, c = (missing,) * (3 - len(values)) + tuple(values)
    return a, b, c


def five(strides: Sequence[int]) -> Five:
    """The strides of a tensor, those of missing axes 0."""
    n, c, *space = strides
    return n, c, *three(space, 0)


def linear(sizes: Three, strides: Five) -> bool:
    """Whether positions follow each other at one stride."""
    expected = strides[4]
    for size, stride in zip(reversed(sizes), reversed(strides[2:]), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def wide(shape: Shape, strides: Five) -> bool:
    """Whether offsets from the first element may pass 32 bits."""
    sizes = (*shape[:2], *three(shape.spatial, 1))
    return sum((n - 1) * abs(s) for n, s in zip(sizes, strides, strict=True)) >= 2**31


def inner(strides: Five) -> int:
    """The axis along which neighbours lie side by side: width, channels, or none (-1)."""
    for axis in (WIDTH, CHANNELS):
        if strides[axis] == 1:
            return axis
    return -1


@dataclass(frozen=True)
class Order:
    """How the positions of a tile follow each other, among results of ``sizes``.

    ``run``: every so many of them from the first on lie in one line; ``ordered``: all of a sample
    follow each other as results do, line after line.
    """

    sizes: Three
    run: int
    ordered: bool

    def even(self, channels: int, strides: Five, unit: int) -> bool:
        """Whether every ``unit`` neighbours are one aligned piece of a tensor, or are not there."""
        axis = inner(strides)
        if axis == CHANNELS:
            return not any(size % unit for size in (channels, strides[0], *strides[2:]))
        lines = (strides[2], strides[3], self.run, self.sizes[2])
        if self.ordered and linear(self.sizes, strides):
            lines = (prod(self.sizes),) * 4
        return axis == WIDTH and not any(size % unit for size in (*strides[:2], *lines))
