# mypy: ignore-errors
"""The kernel of sweeps that became one: rows of a block in registers, sweep after sweep.

``W`` is a ``together_launch.Walk``. Sums of columns are kept for every place of a block, over all
blocks of a program, and leave it as one partial each: another launch joins them in a fixed order.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import quotient
from transfuse.backends.triton.epilogue.expressions import evaluate
from transfuse.backends.triton.sweeps.fold_kernel import concluded, largest
from transfuse.backends.triton.sweeps.walk_kernel import read, side, write
from transfuse.backends.triton.told_kernel import plain


@triton.jit
def picked(at_hand, WHICH: tl.constexpr):
    """Some of the values at hand."""
    found = ()
    for i in tl.static_range(len(WHICH)):
        found = found + (at_hand[WHICH[i]],)
    return found


@triton.jit
def changed(given, AT: tl.constexpr, value):
    """A tuple with another value at one place."""
    found = ()
    for i in tl.static_range(len(given)):
        if i == AT:
            found = found + (value,)
        else:
            found = found + (given[i],)
    return found


@triton.jit
def of_rows(v, live, KIND: tl.constexpr):
    """What is kept of all values of each row, which a block holds."""
    if KIND == "sum":
        return (tl.sum(tl.where(live, v, 0.0), 1, keep_dims=True),)
    elif KIND == "squares":
        return (tl.sum(tl.where(live, v * v, 0.0), 1, keep_dims=True),)
    elif KIND == "max":
        return (largest(tl.where(live, v, float("-inf")), 1),)
    elif KIND == "min":
        return (-largest(tl.where(live, -v, float("-inf")), 1),)
    elif KIND == "peaks":
        # As sweeps that follow write them, so that these are not computed twice.
        top = largest(tl.where(live, v, float("-inf")), 1)
        total = tl.sum(tl.where(live, tl.exp(v - top), 0.0), 1, keep_dims=True)
        return top, tl.where(top == float("-inf"), 0.0, total)
    else:
        many = tl.sum(tl.where(live, 1.0, 0.0).to(v.dtype), 1, keep_dims=True)
        mean = quotient(tl.sum(tl.where(live, v, 0.0), 1, keep_dims=True), many)
        apart = tl.where(live, v - mean, 0.0)
        return many, mean, tl.sum(apart * apart, 1, keep_dims=True)


@triton.jit
def swept(
    at_hand, sums, place, numbers, length, AT: tl.constexpr, B: tl.constexpr, W: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """What is at hand, and the sums of columns, after sweep ``AT`` of a block."""
    D: tl.constexpr = W.doings[AT]
    SHAPE: tl.constexpr = B.shape
    BEFORE: tl.constexpr = D.before
    KIND: tl.constexpr = D.kind
    TAKES: tl.constexpr = D.takes
    AFTER: tl.constexpr = D.after
    OTHERS: tl.constexpr = D.others
    FIRST: tl.constexpr = D.writes
    views, rows, cols, live_rows, live = place
    blank = tl.zeros(SHAPE, ACC)
    v = evaluate(BEFORE, blank, picked(at_hand, TAKES), numbers, 0)
    v = tl.broadcast_to(v, blank.shape)
    if D.role == "each":
        write(views, rows, cols, live, v, FIRST, B)
        at_hand = at_hand + (v,)
    elif D.role == "row":
        kept = of_rows(v, live, KIND)
        found = kept  # of a whole row exponentials are as they are defined
        if D.folding != "exponentials":
            found = concluded(kept, picked(at_hand, OTHERS), length, numbers, D, AFTER, ACC)
        for j in tl.static_range(len(found)):
            write(views, rows, cols, live_rows, found[j], FIRST + j, B)
        at_hand = at_hand + found
    else:
        sums = changed(sums, D.column, sums[D.column] + tl.where(live, v, 0.0))
    return at_hand, sums


@triton.jit
def block_done(
    step, across, views, sizes, numbers, sums, length, B: tl.constexpr, W: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """The sums of columns after a block of rows; ``across``: places in rows, which of them are."""
    cols, live_cols = across
    ROWS: tl.constexpr = B.rows
    COUNT: tl.constexpr = len(W.doings)
    rows, live_rows, _ = side(step, sizes, 0, 3, ROWS)
    at_hand = read(views, rows, cols, (live_rows, live_cols), 0, W.loaded, B, ACC)
    place = (views, rows, cols, live_rows, live_rows & live_cols)
    for i in tl.static_range(COUNT):
        at_hand, sums = swept(at_hand, sums, place, numbers, length, i, B, W, ACC)
    return sums


@triton.jit
def walk(
    pointers, sizes, strides, numbers, partials, counts, B: tl.constexpr, W: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Program: blocks of rows from ``program * run`` on."""
    COLS: tl.constexpr = B.cols
    SHAPE: tl.constexpr = B.shape
    COLUMNS: tl.constexpr = W.columns
    program = tl.program_id(0)
    steps = plain(counts[0])
    run = plain(counts[1])
    length = plain(counts[2])
    if B.wide:
        program = program.to(tl.int64)
    zero = 0 * program
    cols, live_cols, at = side(zero, sizes, 1, 3 + B.rows.rank, COLS)
    sums = ()
    for _ in tl.static_range(COLUMNS):
        sums = sums + (tl.zeros(SHAPE, ACC),)
    for step in range(program * run, tl.minimum(program * run + run, steps)):
        block = step + zero  # also in the interpreter, where a step is no tensor
        sums = block_done(
            block, (cols, live_cols), (pointers, strides), sizes, numbers, sums, length, B, W, ACC
        )
    for i in tl.static_range(COLUMNS):
        total = tl.sum(sums[i], 0, keep_dims=True)
        to = partials + (i * plain(counts[3]) + program) * length + at
        tl.store(to, total, mask=live_cols)
