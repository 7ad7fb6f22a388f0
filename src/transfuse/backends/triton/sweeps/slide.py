"""Slide: one result for each window.

A window is walked tap by tap, all taps in one loop. An axis along which windows are one element,
one after another, is an axis like those of samples and channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from math import prod

import triton
import triton.language as tl

from transfuse.backends.triton.kernels.expressions import evaluate
from transfuse.backends.triton.kernels.numbers import larger, quotient
from transfuse.backends.triton.kernels.operands import number
from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.lower import Part, parts
from transfuse.backends.triton.sweeps.axes import Across, Axis, Laid, laid, merged, told, widest
from transfuse.backends.triton.sweeps.given import Given
from transfuse.backends.triton.sweeps.walk import plain, read, side, spot, write
from transfuse.sweeps import Slide, View

ELEMENTS = 1024
"""Of a block."""
COLUMNS = (128, 16)


@dataclass(frozen=True)
class Window:
    """Windows along one axis of inputs."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    dilation: int


@dataclass(frozen=True)
class Sliding:
    """What the kernel is compiled for, beside where its views lie.

    Views are the result, then the ``others``, up to that number; then values, up to ``values``.
    """

    folding: str
    adaptive: bool
    counts_padding: bool
    rows: tuple[int, ...]  # of each axis: the window along it, or -1
    cols: tuple[int, ...]
    before: Part
    after: Part
    number: int  # the first of those of ``after``
    others: int
    values: int
    divisor: int  # where the number is to divide by; -1: none
    sign: int  # which of the others has the signs


@triton.jit
def starts(coordinates, windows, WHICH: tl.constexpr, ADAPTIVE: tl.constexpr):
    """The first input of the windows at these coordinates; coordinates along all other axes."""
    found = ()
    for i in tl.static_range(len(coordinates)):
        if WHICH[i] < 0:
            found = found + (coordinates[i],)  # noqa: RUF005
        else:
            window = windows[WHICH[i]]
            if ADAPTIVE:
                o = coordinates[i].to(tl.int64) * plain(window[0])
                first = (o // plain(window[1])).to(tl.int32)
            else:
                first = coordinates[i] * plain(window[3]) - plain(window[4])
            found = found + (first,)  # noqa: RUF005
    return found


@triton.jit
def ends(coordinates, windows, WHICH: tl.constexpr, ADAPTIVE: tl.constexpr):
    """The same, and the first input that is none of theirs."""
    found = ()
    for i in tl.static_range(len(coordinates)):
        if WHICH[i] < 0:
            found = found + (coordinates[i],)  # noqa: RUF005
        else:
            window = windows[WHICH[i]]
            if ADAPTIVE:
                o = (coordinates[i].to(tl.int64) + 1) * plain(window[0]) + plain(window[1]) - 1
                found = found + ((o // plain(window[1])).to(tl.int32),)  # noqa: RUF005
            else:
                found = found + (plain(window[0]),)  # noqa: RUF005
    return found


@triton.jit
def digits(t, windows):
    """How far tap ``t`` is from the start of a window, along each axis."""
    found = ()
    for i in tl.static_range(len(windows)):
        window = windows[len(windows) - 1 - i]
        found = (t % plain(window[2]) * plain(window[5]),) + found  # noqa: RUF005
        t = t // plain(window[2])
    return found


@triton.jit
def tap(first, end, off, inside, known, windows, WHICH: tl.constexpr):
    """Coordinates of a tap; which are inputs, and which are these or padding."""
    found = ()
    for i in tl.static_range(len(first)):
        if WHICH[i] < 0:
            found = found + (first[i],)  # noqa: RUF005
        else:
            at = first[i] + off[WHICH[i]]
            inside = inside & (at >= 0) & (at < end[i])
            known = known & (at < end[i] + plain(windows[WHICH[i]][4]))
            found = found + (at,)  # noqa: RUF005
    return found, inside, known


@triton.jit
def met(
    total, count, t, rows, cols, end_rows, end_cols, live, flip, pointers, strides, windows,
    numbers, B: tl.constexpr, P: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The windows after one more tap, and how many inputs they have."""
    OF_ROWS: tl.constexpr = P.rows
    OF_COLS: tl.constexpr = P.cols
    BEFORE: tl.constexpr = P.before
    off = digits(t, windows)
    at_rows, inside, known = tap(rows, end_rows, off, live, live, windows, OF_ROWS)
    at_cols, inside, known = tap(cols, end_cols, off, inside, known, windows, OF_COLS)
    FIRST: tl.constexpr = P.others
    LAST: tl.constexpr = P.values
    values = ()
    for i in tl.static_range(FIRST, LAST):
        to = tl.broadcast_to(spot(pointers, strides, at_rows, at_cols, i, B), total.shape)
        values = values + (tl.load(to, mask=inside, other=0.0).to(ACC),)  # noqa: RUF005
    v = tl.broadcast_to(evaluate(BEFORE, total, values, numbers, 0), total.shape)
    if P.folding == "max":
        total = larger(total, tl.where(inside, v, float("-inf")))
    elif P.folding == "sign":
        total = larger(total, tl.where(inside, v * flip, float("-inf")))
    else:
        total += tl.where(inside, v, 0.0)
    if P.folding == "mean" and P.divisor < 0:
        if P.counts_padding and not P.adaptive:
            count += tl.where(known, 1.0, 0.0).to(ACC)
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
    across = plain(sizes[2])
    rows, live_rows, _ = side(program // across, sizes, 0, 3, ROWS)
    cols, live_cols, _ = side(program % across, sizes, 1, 3 + B.rows.rank, COLS)
    live = live_rows & live_cols
    others = read(pointers, strides, rows, cols, (live_rows, live_cols), 1, P.others, B, ACC)
    total = tl.zeros(SHAPE, ACC)
    count = total
    flip = 1.0
    if P.folding == "sign":
        flip = tl.where(others[P.sign] < 0, -1.0, 1.0).to(ACC)
    if P.folding == "max" or P.folding == "sign":
        total += float("-inf")
    first_rows = starts(rows, windows, OF_ROWS, P.adaptive)
    first_cols = starts(cols, windows, OF_COLS, P.adaptive)
    end_rows = ends(rows, windows, OF_ROWS, P.adaptive)
    end_cols = ends(cols, windows, OF_COLS, P.adaptive)
    for t in range(plain(taps[0])):
        total, count = met(
            total, count, t, first_rows, first_cols, end_rows, end_cols, live, flip, pointers,
            strides, windows, numbers, B, P, ACC,
        )  # fmt: skip
    if P.folding == "sign":
        total *= flip
    elif P.folding == "mean":
        if P.divisor >= 0:
            count += number(numbers, P.divisor, count)
        total = quotient(total, count)
    y = tl.broadcast_to(evaluate(AFTER, total, others, numbers, P.number), total.shape)
    write(pointers, strides, rows, cols, live, y, 0, B)


def launches(sweep: Slide, at: Callable[[int], int]) -> list[Launch]:
    """The launch of a sweep; ``at`` has the number of a slot's tensor."""
    results = [sweep.out, *(view for _, view in sweep.others)]
    views = [*results, *(view for _, view in sweep.values)]
    if 0 in sweep.out.sizes:
        return []
    given = Given(views, at)
    before = parts(sweep.before, [name for name, _ in sweep.values], given.numbers)
    first = 3 * len(given.numbers)
    named = [name for name, _ in sweep.others]
    numbers: list[float] = []
    after = parts(sweep.after, named, numbers)
    given.numbers += numbers
    divisor = -1
    if sweep.divisor is not None:
        divisor = 3 * len(given.numbers)
        given.numbers.append(sweep.divisor)
    windows = _windows(sweep)
    found, rows, cols = _laid(sweep, views, len(results), windows)
    sliding = Sliding(
        sweep.folding,
        sweep.adaptive,
        sweep.counts_padding,
        rows,
        cols,
        before,
        after,
        first,
        len(results),
        len(views),
        divisor,
        named.index("sign") if sweep.folding == "sign" else 0,
    )
    ints = tuple(tuple(map(told, astuple(window))) for window in windows)
    taps = (told(prod(window.kernel for window in windows)),)
    arguments = [*given.arguments(found), ints, taps, found.block, sliding, given.acc]
    return [Launch(slide, found.blocks, arguments)]


def _windows(sweep: Slide) -> list[Window]:
    """Windows along every axis of space."""
    inputs, outputs = sweep.values[0][1].sizes[2:], sweep.out.sizes[2:]
    if sweep.adaptive:  # the most inputs that a window may have
        return [
            Window(n, o, n // o + (2 if n % o else 0), 1, 0, 1)
            for n, o in zip(inputs, outputs, strict=True)
        ]
    options = (sweep.kernel, sweep.stride, sweep.padding, sweep.dilation)
    return [Window(*each) for each in zip(inputs, outputs, *options, strict=True)]


def _laid(
    sweep: Slide, views: Sequence[View], results: int, windows: Sequence[Window]
) -> tuple[Laid, tuple[int, ...], tuple[int, ...]]:
    """What lies innermost in the values along columns, all else along rows; the windows of each."""
    found = []
    for i, size in enumerate(sweep.out.sizes):
        strides = tuple(view.strides[i] for view in views)
        window = i - 2
        if i < 2 or windows[i - 2] == Window(size, size, 1, 1, 0, 1):
            window = -1
        if size > 1 or window >= 0:
            found.append(Axis(size, strides, window))
    key = [*range(results, len(views)), *range(results)]
    *outer, inner = merged(found, key) or [Axis(1, (0,) * len(views))]
    outer = outer or [Axis(1, (0,) * len(views))]
    columns = widest(inner.size, COLUMNS)
    moved = range(results, len(views)) if inner.window >= 0 else ()
    rows = Across(outer, ELEMENTS // columns, even=False)
    block = laid(views, rows, Across([inner], columns), moved)
    return block, tuple(axis.window for axis in outer), (inner.window,)
