"""Numbers by axis: sizes of depth, height and width, and the strides of a tensor."""

from collections.abc import Sequence

from transfuse.problem import Shape

Three = tuple[int, int, int]
"""By axis: depth, height, width."""

Box = tuple[int, int, int, int]
"""Positions of a tile along three axes and samples; which of them comes first is up to its form."""

Five = tuple[int, int, int, int, int]
"""Strides of samples, channels, depth, height and width."""


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
    """Whether offsets within a tile may pass 32 bits."""
    sizes = (shape.n, 1, *three(shape.spatial, 1))
    return sum((n - 1) * abs(s) for n, s in zip(sizes, strides, strict=True)) >= 2**31
