"""Axes of a sweep as kernels walk them: merged, in an order of their own, on two sides of a block.

A kernel is built once for all sizes: sizes and strides reach it as plain integers, and what it is
compiled for (``Side``, ``Look``) says as little of them as it can do with.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from transfuse.backends.triton.told import Divisor, divisor, told
from transfuse.sweeps import View

MOST = 2**30
"""Offsets and counts from here on are 64-bit integers."""


@dataclass(frozen=True)
class BlockAxis:
    """An axis of all views at once: the stride of each, and which windows slide along it."""

    size: int
    strides: tuple[int, ...]
    window: int = -1


def axes(sizes: Sequence[int], views: Iterable[Sequence[int]]) -> list[BlockAxis]:
    """The axes of views by their strides; those of size 1 are left out."""
    each = list(views)
    return [BlockAxis(n, tuple(s[i] for s in each)) for i, n in enumerate(sizes) if n != 1]


def merged(found: Iterable[BlockAxis], key: Sequence[int]) -> list[BlockAxis]:
    """Axes with neighbours in memory as one, innermost last as the ``key`` views have them.

    Stands for one of size 1 where there is none.
    """
    ordered = sorted(found, key=lambda axis: [-axis.strides[view] for view in key])
    joined: list[BlockAxis] = []
    for axis in ordered:
        slides = joined and max(joined[-1].window, axis.window) >= 0
        if (
            joined
            and not slides
            and all(
                outer == inner * axis.size
                for outer, inner in zip(joined[-1].strides, axis.strides, strict=True)
            )
        ):
            axis = BlockAxis(joined.pop().size * axis.size, axis.strides)
        joined.append(axis)
    return joined


Kind = Literal["none", "still", "next", "any"]
"""How a view moves along a side: not at all; with the outer axes alone; by one element from one
coordinate of the innermost axis to the next; in any other way."""


@dataclass(frozen=True)
class Side:
    """One side of a block: ``block`` neighbours along ``dim``.

    They are numbers of elements over all axes where it is ``flat``, and else coordinates of the
    innermost axis, at one place of the others. The size of the innermost is counted in ``unit``.
    """

    rank: int
    block: int
    dim: int
    flat: bool
    unit: int = 1


@dataclass(frozen=True)
class Look:
    """How one view moves along rows and columns; what it starts at and moves by, in ``unit``."""

    rows: Kind
    cols: Kind
    unit: int = 1


@dataclass(frozen=True)
class Block:
    """All that a kernel is compiled for of where its views lie."""

    rows: Side
    cols: Side
    looks: tuple[Look, ...]
    wide: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.block, self.cols.block


@dataclass(frozen=True)
class Laid:
    """A block, and the integers that its kernel is launched with."""

    block: Block
    sizes: tuple[Divisor, ...]
    """Tiles of rows and of columns along their innermost axes, blocks of columns, then the sizes
    of rows and of columns."""
    strides: tuple[tuple[int, ...], ...]
    """Of each view: where it starts, then its strides along rows and columns."""
    rows: int
    cols: int
    """Blocks along each side."""

    @property
    def blocks(self) -> int:
        return self.rows * self.cols


@dataclass(frozen=True)
class Across:
    """The axes of a side, how many neighbours of them a block has, and in which way."""

    axes: list[BlockAxis]
    block: int
    flat: bool = True
    even: bool = True  # worth accesses of many neighbours at once

    @property
    def count(self) -> int:
        count = 1
        for axis in self.axes:
            count *= axis.size
        return count

    @property
    def tiles(self) -> int:
        """Blocks along the innermost axis, where it is walked by itself."""
        return -(-self.axes[-1].size // self.block)

    @property
    def blocks(self) -> int:
        if self.flat:
            return -(-self.count // self.block)
        return self.count // self.axes[-1].size * self.tiles

    def kind(self, view: int) -> Kind:
        *outer, inner = (axis.strides[view] for axis in self.axes)
        if not any(outer) and not inner:
            return "none"
        if inner == 0:
            return "any" if self.flat else "still"
        return "next" if inner == 1 and self.even else "any"


def laid(views: Sequence[View], rows: Across, cols: Across, read: Sequence[int] = ()) -> Laid:
    """A block over views that were told apart into two sides.

    Addresses are known to be aligned, and accesses wide, only where every view that moves by one
    element allows it; those of ``read`` are read at places that nobody knows before.
    """
    empty = BlockAxis(1, (0,) * len(views))
    rows = replace(rows, axes=rows.axes or [empty])
    cols = replace(cols, axes=cols.axes or [empty])
    width = 16 // min(view.dtype.itemsize for view in views)
    units, looks, strides = {}, [], []
    for side in (rows, cols):
        moved = [v for v in range(len(views)) if v not in read and side.kind(v) == "next"]
        even = side.axes[-1].size % width == 0 and all(
            _even(views[v], v, (rows, cols), side, width) for v in moved
        )
        units[id(side)] = width if moved and even else 1
    for v, view in enumerate(views):
        kinds = rows.kind(v), cols.kind(v)
        unit = 1
        if v not in read:
            unit = max(
                [units[id(s)] for s, k in zip((rows, cols), kinds, strict=True) if k == "next"],
                default=1,
            )
        along = [axis.strides[v] for axis in (*rows.axes, *cols.axes)]
        if unit > 1:  # those that move by one are not looked at
            along = [0 if stride == 1 else stride // unit for stride in along]
        looks.append(Look(*kinds, unit))
        strides.append(tuple(map(told, (view.offset // unit, *along))))
    sides = [
        Side(len(s.axes), s.block, dim, s.flat, units[id(s)]) for dim, s in enumerate((rows, cols))
    ]
    sizes = [rows.tiles, cols.tiles, cols.blocks]
    for made, across in zip(sides, (rows, cols), strict=True):
        *outer, inner = (axis.size for axis in across.axes)
        sizes += [*outer, inner // made.unit]
    wide = max(rows.count * cols.count, *map(reach, views)) >= MOST
    block = Block(sides[0], sides[1], tuple(looks), wide)
    return Laid(block, tuple(map(divisor, sizes)), tuple(strides), rows.blocks, cols.blocks)


def _even(view: View, at: int, sides: tuple[Across, Across], own: Across, width: int) -> bool:
    """Whether a view, wherever it moves but along the innermost axis of a side, stays aligned."""
    others = [
        axis.strides[at]
        for side in sides
        for axis in (side.axes if side is not own else side.axes[:-1])
    ]
    return all(stride % width == 0 for stride in (view.offset, *others))


def reach(view: View) -> int:
    """The number of the last element of a view."""
    steps = (max(n - 1, 0) * s for n, s in zip(view.sizes, view.strides, strict=True))
    return view.offset + sum(steps)


def widest(size: int, blocks: Sequence[int]) -> int:
    """The first of these blocks that leaves no more than half of itself idle, else the last."""
    for block in blocks:
        if -(-size // block) * block <= 2 * size:
            return block
    return blocks[-1]


def fitting(size: int, blocks: Sequence[int]) -> int:
    """The first of these blocks that leaves little more idle than the one that leaves least."""
    taken = [-(-size // block) * block for block in blocks]
    return next(b for b, all_ in zip(blocks, taken, strict=True) if 4 * all_ <= 5 * min(taken))
