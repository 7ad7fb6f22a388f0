"""Each: every element of the result from elements of other tensors."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from transfuse.backends.triton.kernels.expressions import evaluate
from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.lower import parts
from transfuse.backends.triton.sweeps.axes import Across, Axis, Laid, axes, laid, merged, widest
from transfuse.backends.triton.sweeps.given import Given
from transfuse.backends.triton.sweeps.walk import plain, read, side, write
from transfuse.sweeps import Each, View

ELEMENTS = 2048
"""Of a block."""
COLUMNS = (2048, 128, 8)
MANY = 32
"""Where results and values have different innermost axes, those at least so long share a block."""


@triton.jit
def each(
    pointers, sizes, strides, numbers, B: tl.constexpr, E: tl.constexpr, ACC: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """Program (rows, columns): a block of the result, the first of ``COUNT`` views."""
    program = tl.program_id(0)
    if B.wide:
        program = program.to(tl.int64)
    SHAPE: tl.constexpr = B.shape
    ROWS: tl.constexpr = B.rows
    COLS: tl.constexpr = B.cols
    across = plain(sizes[2])
    rows, live_rows, _ = side(program // across, sizes, 0, 3, ROWS)
    cols, live_cols, _ = side(program % across, sizes, 1, 3 + B.rows.rank, COLS)
    values = read(pointers, strides, rows, cols, (live_rows, live_cols), 1, COUNT, B, ACC)
    blank = tl.zeros(SHAPE, ACC)
    y = tl.broadcast_to(evaluate(E, blank, values, numbers, 0), blank.shape)
    write(pointers, strides, rows, cols, live_rows & live_cols, y, 0, B)


def launches(sweep: Each, at: Callable[[int], int]) -> list[Launch]:
    """The launch of a sweep; ``at`` has the number of a slot's tensor."""
    views = [sweep.out, *(view for _, view in sweep.values)]
    if 0 in sweep.out.sizes:
        return []
    given = Given(views, at)
    expr = parts(sweep.expr, [name for name, _ in sweep.values], given.numbers)
    found = _laid(views)
    arguments: list[Any] = [*given.arguments(found), found.block, expr, given.acc, len(views)]
    warps = found.block.rows.block * found.block.cols.block // 512
    return [Launch(each, found.blocks, arguments, {"num_warps": warps})]


def _laid(views: Sequence[View]) -> Laid:
    """The result's innermost axis along columns; along rows that of a value, or all others."""
    found = merged(axes(views[0].sizes, [view.strides for view in views]), range(len(views)))
    *outer, inner = found or [Axis(1, (0,) * len(views))]
    beside = _beside(outer, inner, len(views))
    if beside is None:
        columns = widest(inner.size, COLUMNS)
        rows = Across(outer, ELEMENTS // columns, even=False)
        return laid(views, rows, Across([inner], columns))
    others = [axis for axis in outer if axis is not beside]
    rows, columns = Across([*others, beside], 64, flat=False), Across([inner], 64)
    if inner.size < MANY:
        rows, columns = replace(rows, block=512), replace(columns, block=4, even=False)
    elif beside.size < MANY:
        rows, columns = replace(rows, block=4, even=False), replace(columns, block=512)
    return laid(views, rows, columns)


def _beside(outer: Sequence[Axis], inner: Axis, views: int) -> Axis | None:
    """The axis along which a value lies that does not along the result's innermost one."""
    for view in range(1, views):
        if inner.strides[view] > 1:
            nearest = [axis for axis in outer if axis.strides[view] == 1]
            if nearest and max(inner.size, nearest[0].size) >= MANY:
                return nearest[0]
    return None
