# mypy: ignore-errors
"""The kernel of ``Slide``: one result for each window.

A window is walked tap by tap, all taps in one loop; few are written out. ``P`` is a
``slide_launch.Sliding``.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import larger, quotient
from transfuse.backends.triton.epilogue.expressions import evaluate
from transfuse.backends.triton.epilogue.operands import number
from transfuse.backends.triton.sweeps.walk_kernel import divided, read, side, spot, write
from transfuse.backends.triton.told_kernel import plain


@triton.jit
def starts(coordinates, windows, WHICH: tl.constexpr, P: tl.constexpr):
    """The first input of the windows at these coordinates; coordinates along all other axes."""
    found = ()
    for i in tl.static_range(len(coordinates)):
        if WHICH[i] < 0:
            found = found + (coordinates[i],)
        else:
            window = windows[WHICH[i]]
            if P.adaptive:
                o = coordinates[i]
                if P.long:
                    o = o.to(tl.int64)
                first = (o * plain(window[0]) // plain(window[1])).to(tl.int32)
            else:
                first = coordinates[i] * plain(window[3]) - plain(window[4])
            found = found + (first,)
    return found


@triton.jit
def ends(coordinates, windows, WHICH: tl.constexpr, P: tl.constexpr):
    """The same, and the first input that is none of theirs."""
    found = ()
    for i in tl.static_range(len(coordinates)):
        if WHICH[i] < 0:
            found = found + (coordinates[i],)
        else:
            window = windows[WHICH[i]]
            if P.adaptive:
                o = coordinates[i] + 1
                if P.long:
                    o = o.to(tl.int64)
                last = (o * plain(window[0]) + plain(window[1]) - 1) // plain(window[1])
                found = found + (last.to(tl.int32),)
            else:
                found = found + (plain(window[0]),)
    return found


@triton.jit
def digits(t, windows, P: tl.constexpr):
    """How far tap ``t`` is from the start of a window, along each axis."""
    found = ()
    for i in tl.static_range(len(windows)):
        if len(P.taps) > 0:
            found = found + (P.taps[t][i] * plain(windows[i][5]),)
        else:
            window = windows[len(windows) - 1 - i]
            found = (t % plain(window[2]) * plain(window[5]),) + found
            t = t // plain(window[2])
    return found


@triton.jit
def tap(first, end, off, live, windows, WHICH: tl.constexpr):
    """Coordinates of a tap along a side; which are inputs, and which are these or padding."""
    found = ()
    inside = live
    known = live
    for i in tl.static_range(len(first)):
        if WHICH[i] < 0:
            found = found + (first[i],)
        else:
            at = first[i] + off[WHICH[i]]
            inside = inside & (at >= 0) & (at < end[i])
            known = known & (at < end[i] + plain(windows[WHICH[i]][4]))
            found = found + (at,)
    return found, inside, known


@triton.jit
def met(
    found, off, first, end, live, flip, given, B: tl.constexpr, P: tl.constexpr, ACC: tl.constexpr
):
    """What is found in windows after one more tap, and how many inputs they have.

    ``first``, ``end`` and ``live`` are of rows and of columns, ``given`` views, windows, numbers.
    """
    total, count = found
    views, windows, numbers = given
    OF_ROWS: tl.constexpr = P.rows
    OF_COLS: tl.constexpr = P.cols
    BEFORE: tl.constexpr = P.before
    rows, inside_rows, known_rows = tap(first[0], end[0], off, live[0], windows, OF_ROWS)
    cols, inside_cols, known_cols = tap(first[1], end[1], off, live[1], windows, OF_COLS)
    inside = inside_rows & inside_cols
    FIRST: tl.constexpr = P.others
    LAST: tl.constexpr = P.values
    values = ()
    for i in tl.static_range(FIRST, LAST):
        to = tl.broadcast_to(spot(views, rows, cols, i, B), total.shape)
        values = values + (tl.load(to, mask=inside, other=0.0).to(ACC),)
    v = evaluate(BEFORE, total, values, numbers, 0)
    v = tl.broadcast_to(v, total.shape)
    if P.folding == "max":
        total = larger(total, tl.where(inside, v, float("-inf")))
    elif P.folding == "sign":
        total = larger(total, tl.where(inside, v * flip, float("-inf")))
    else:
        total += tl.where(inside, v, 0.0)
    if P.folding == "mean" and P.divisor < 0:
        if P.counts_padding and not P.adaptive:
            count += tl.where(known_rows & known_cols, 1.0, 0.0).to(ACC)
        else:
            count += tl.where(inside, 1.0, 0.0).to(ACC)
    return total, count


@triton.jit
def slide(
    pointers, sizes, strides, numbers, windows, taps, B: tl.constexpr, P: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Program (rows, columns): a block of the result."""
    program = tl.program_id(0)
    if B.wide:
        program = program.to(tl.int64)
    SHAPE: tl.constexpr = B.shape
    ROWS: tl.constexpr = B.rows
    COLS: tl.constexpr = B.cols
    OF_ROWS: tl.constexpr = P.rows
    OF_COLS: tl.constexpr = P.cols
    AFTER: tl.constexpr = P.after
    KNOWN: tl.constexpr = len(P.taps)
    views = (pointers, strides)
    down, across = divided(program, sizes[2])
    rows, live_rows, _ = side(down, sizes, 0, 3, ROWS)
    cols, live_cols, _ = side(across, sizes, 1, 3 + B.rows.rank, COLS)
    live = (live_rows, live_cols)
    others = read(views, rows, cols, live, 1, P.others, B, ACC)
    total = tl.zeros(SHAPE, ACC)
    count = total
    flip = 1.0
    if P.folding == "sign":
        flip = tl.where(others[P.sign] < 0, -1.0, 1.0).to(ACC)
    if P.folding == "max" or P.folding == "sign":
        total += float("-inf")
    first = starts(rows, windows, OF_ROWS, P), starts(cols, windows, OF_COLS, P)
    end = ends(rows, windows, OF_ROWS, P), ends(cols, windows, OF_COLS, P)
    found = (total, count)
    given = (views, windows, numbers)
    if KNOWN > 0:
        for t in tl.static_range(KNOWN):
            found = met(found, digits(t, windows, P), first, end, live, flip, given, B, P, ACC)
    else:
        for t in range(plain(taps[0])):
            found = met(found, digits(t, windows, P), first, end, live, flip, given, B, P, ACC)
    total, count = found
    if P.folding == "sign":
        total *= flip
    elif P.folding == "mean":
        if P.divisor >= 0:
            count += number(numbers, P.divisor, count)
        total = quotient(total, count)
    y = evaluate(AFTER, total, others, numbers, P.number)
    y = tl.broadcast_to(y, total.shape)
    write(views, rows, cols, live_rows & live_cols, y, 0, B)
