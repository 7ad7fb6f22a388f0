"""The launch of ``Each``: along which axes its blocks lie."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.lower import parts
from transfuse.backends.triton.sweeps.blocks import (
    Across,
    BlockAxis,
    Laid,
    axes,
    fitting,
    laid,
    merged,
)
from transfuse.backends.triton.sweeps.launch_arguments import LaunchArguments
from transfuse.sweeps import Each, View

EACH = Kernel("sweeps.each_kernel", "each", static=4)

ELEMENTS = 2048
"""Of a block."""
COLUMNS = (2048, 128, 64, 32, 16, 8)
FEW = 4
"""Views of which a thread holds 16 elements each; of more it holds half as many."""
MANY = 32
"""An innermost axis that is shorter, and of no full blocks, is walked together with all others.
Also, where results and values have different innermost axes of so many, these share a block."""


def launches(sweep: Each, at: Callable[[int], int]) -> list[Launch]:
    """The launch of a sweep; ``at`` has the number of a slot's tensor."""
    views = [sweep.out, *(view for _, view in sweep.values)]
    if 0 in sweep.out.sizes:
        return []
    given = LaunchArguments(views, at)
    expr = parts(sweep.expr, [name for name, _ in sweep.values], given.numbers)
    found = _laid(views)
    arguments: list[Any] = [*given.arguments(found), found.block, expr, given.acc, len(views)]
    warps = found.block.rows.block * found.block.cols.block // (512 if len(views) <= FEW else 256)
    return [Launch(EACH, found.blocks, arguments, {"num_warps": warps})]


def _laid(views: Sequence[View]) -> Laid:
    """The result's innermost axis along columns; along rows that of a value, or all others."""
    found = merged(axes(views[0].sizes, [view.strides for view in views]), range(len(views)))
    *outer, inner = found or [BlockAxis(1, (0,) * len(views))]
    beside = _beside(outer, inner, len(views))
    if beside is None:
        narrow = inner.size < MANY and inner.size % COLUMNS[-1]
        if outer and narrow:  # all axes as one: no block is as narrow as the last
            return laid(views, Across([], 1), Across([*outer, inner], ELEMENTS))
        columns = fitting(inner.size, COLUMNS)
        rest = Across(outer, ELEMENTS // columns, even=False)
        return laid(views, rest, Across([inner], columns))
    others = [axis for axis in outer if axis is not beside]
    rows, cols = Across([*others, beside], 64, flat=False), Across([inner], 64)
    if inner.size < MANY:
        rows, cols = replace(rows, block=512), replace(cols, block=4, even=False)
    elif beside.size < MANY:
        rows, cols = replace(rows, block=4, even=False), replace(cols, block=512)
    return laid(views, rows, cols)


def _beside(outer: Sequence[BlockAxis], inner: BlockAxis, views: int) -> BlockAxis | None:
    """The axis along which a value lies that does not along the result's innermost one."""
    for view in range(1, views):
        if inner.strides[view] > 1:
            nearest = [axis for axis in outer if axis.strides[view] == 1]
            if nearest and max(inner.size, nearest[0].size) >= MANY:
                return nearest[0]
    return None
