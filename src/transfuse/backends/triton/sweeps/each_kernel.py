# mypy: ignore-errors
"""The kernel of ``Each``: every element of a result from elements of other tensors."""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.expressions import evaluate
from transfuse.backends.triton.sweeps.walk_kernel import divided, read, side, write


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
    down, across = divided(program, sizes[2])
    rows, live_rows, _ = side(down, sizes, 0, 3, ROWS)
    cols, live_cols, _ = side(across, sizes, 1, 3 + B.rows.rank, COLS)
    values = read((pointers, strides), rows, cols, (live_rows, live_cols), 1, COUNT, B, ACC)
    blank = tl.zeros(SHAPE, ACC)
    y = evaluate(E, blank, values, numbers, 0)
    y = tl.broadcast_to(y, blank.shape)
    write((pointers, strides), rows, cols, live_rows & live_cols, y, 0, B)
