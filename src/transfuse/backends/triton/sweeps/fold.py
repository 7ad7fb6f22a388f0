"""Fold: one result for all elements along some axes.

Where results are few and what is folded is long, several programs share a result: each leaves a
partial in scratch memory, and a second launch joins them in a fixed order. No atomics: the same
bits in every run.

``KIND`` is what is kept of values: their ``sum``, ``squares`` (sum of squares), ``max``, ``min``,
``peaks`` (maximum, and sum of exponentials below it), ``moments`` (count, mean, sum of squares about
it).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from transfuse.backends.triton.kernels.expressions import evaluate
from transfuse.backends.triton.kernels.numbers import larger, quotient, smaller
from transfuse.backends.triton.kernels.statistics import merge_moments
from transfuse.backends.triton.launch import UNREAD, At, Launch
from transfuse.backends.triton.lower import Part, parts
from transfuse.backends.triton.sweeps.axes import (
    Across,
    Axis,
    Laid,
    axes,
    laid,
    merged,
    told,
    widest,
)
from transfuse.backends.triton.sweeps.given import Given
from transfuse.backends.triton.sweeps.walk import plain, read, side, write
from transfuse.sweeps import Fold, View

ELEMENTS = 2048
"""Of a block."""
FOLDED = (1024, 64)
"""Neighbours of a block where what is folded lies innermost."""
KEPT = (512, 64)
"""The same where results do."""
SHORT = 128
"""A shorter innermost axis is walked together with those around it."""
ENOUGH = 1024
"""Programs that keep a GPU busy."""
LEAST = 8
"""Blocks that are worth a program of their own."""
JOINED = (4, 128)
"""Results of a block, and partials of each."""

@dataclass(frozen=True)
class Folding:
    """What a fold's kernels are compiled for, beside where its views lie.

    Views are the results, then the ``others``, up to that number; then values, up to ``values``.
    """

    folding: str
    kind: str
    kept: int  # the dimension of a block along which results lie
    before: Part
    after: Part
    number: int  # the first of those of ``after``
    others: int
    values: int
    shared: bool  # by several programs


KINDS = {"mean": "sum", "logsumexp": "peaks", "exponentials": "peaks"}
PARTIALS = {"peaks": 2, "moments": 3}


@triton.jit
def nothing(like, KIND: tl.constexpr):
    """What is kept of no values."""
    if KIND == "max":
        return (like + float("-inf"),)
    elif KIND == "min":
        return (like + float("inf"),)
    elif KIND == "peaks":
        return like + float("-inf"), like
    elif KIND == "moments":
        return like, like, like
    else:
        return (like,)


@triton.jit
def taken(kept, v, live, KIND: tl.constexpr):
    """What is kept of values, and of one more in each place that is live."""
    if KIND == "sum":
        return (kept[0] + tl.where(live, v, 0.0),)
    elif KIND == "squares":
        return (kept[0] + tl.where(live, v * v, 0.0),)
    elif KIND == "max":
        return (larger(kept[0], tl.where(live, v, float("-inf"))),)
    elif KIND == "min":
        return (smaller(kept[0], tl.where(live, v, float("inf"))),)
    elif KIND == "peaks":
        v = tl.where(live, v, float("-inf"))
        top = kept[0]
        # The smaller of two over the larger, and 1: v - v is 0, and NaN for Inf, as Inf - Inf is.
        share = tl.where(v == float("-inf"), 0.0, tl.exp(-tl.abs(v - top)))
        rises = v > top
        total = tl.where(rises, kept[1] * share + (1.0 + (v - v)), kept[1] + share)
        return larger(top, v), total
    else:  # Welford's way
        count, mean, square = kept
        v = tl.where(live, v, mean)
        count += tl.where(live, 1.0, 0.0).to(count.dtype)
        apart = v - mean
        # The mean of values of which some are Inf is Inf, and Inf - Inf would make it NaN.
        finite = tl.abs(apart) < float("inf")
        mean = tl.where(finite, mean + apart / tl.maximum(count, 1.0), mean + v)
        return count, mean, square + apart * (v - mean)


@triton.jit
def merge_tops(top_a, sum_a, top_b, sum_b):
    """Sums of exponentials brought to the larger maximum; NaN wins."""
    top = larger(top_a, top_b)
    shift = tl.where(top == float("-inf"), 0.0, top)
    grown_a = tl.where(sum_a == 0, 0.0, sum_a * tl.exp(top_a - shift))
    grown_b = tl.where(sum_b == 0, 0.0, sum_b * tl.exp(top_b - shift))
    return top, grown_a + grown_b


@triton.jit
def joined(a, b, KIND: tl.constexpr):
    """What is kept of two sets of values together."""
    if KIND == "max":
        return (larger(a[0], b[0]),)
    elif KIND == "min":
        return (smaller(a[0], b[0]),)
    elif KIND == "peaks":
        return merge_tops(a[0], a[1], b[0], b[1])
    elif KIND == "moments":
        return merge_moments(a[0], a[1], a[2], b[0], b[1], b[2])
    else:
        return (a[0] + b[0],)


@triton.jit
def largest(v, DIM: tl.constexpr):
    """The largest along a side; NaN wins, which ``tl.max`` would leave out."""
    lost = tl.max((v != v).to(tl.int32), DIM, keep_dims=True) > 0
    return tl.where(lost, float("nan"), tl.max(v, DIM, keep_dims=True))


@triton.jit
def gathered(kept, KIND: tl.constexpr, DIM: tl.constexpr):
    """What is kept of all values along a side."""
    if KIND == "max":
        return (largest(kept[0], DIM),)
    elif KIND == "min":
        return (-largest(-kept[0], DIM),)
    elif KIND == "peaks":
        top = largest(kept[0], DIM)
        shift = tl.where(top == float("-inf"), 0.0, top)
        grown = tl.where(kept[1] == 0, 0.0, kept[1] * tl.exp(kept[0] - shift))
        return top, tl.sum(grown, DIM, keep_dims=True)
    elif KIND == "moments":
        count, mean, square = kept
        many = tl.sum(count, DIM, keep_dims=True)
        middle = quotient(tl.sum(count * mean, DIM, keep_dims=True), many)
        apart = mean - middle
        return many, middle, tl.sum(square + count * apart * apart, DIM, keep_dims=True)
    else:
        return (tl.sum(kept[0], DIM, keep_dims=True),)


@triton.jit
def stored(
    kept, pointers, strides, rows, cols, live, many, numbers, B: tl.constexpr, F: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """The results of what is kept of ``many`` values, through the expression that follows."""
    if F.folding == "exponentials" or F.folding == "moments":
        if F.folding == "moments":
            first, second = kept[1], quotient(kept[2], kept[0])
        else:
            first, second = kept
        write(pointers, strides, rows, cols, live, first, 0, B)
        write(pointers, strides, rows, cols, live, second, 1, B)
    else:
        x = kept[0]
        if F.folding == "mean" or F.folding == "squares":
            x = quotient(x, many.to(ACC))
        elif F.folding == "logsumexp":
            x = tl.where(tl.abs(x) == float("inf"), x, x + tl.log(kept[1]))
        AFTER: tl.constexpr = F.after
        others = read(pointers, strides, rows, cols, (live, live), 1, F.others, B, ACC)
        y = tl.broadcast_to(evaluate(AFTER, x, others, numbers, F.number), x.shape)
        write(pointers, strides, rows, cols, live, y, 0, B)


@triton.jit
def met(
    kept, step, own, live, pointers, sizes, strides, numbers, B: tl.constexpr, F: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """What is kept after one more block of values: results ``own`` at block ``step`` of the rest."""
    SHAPE: tl.constexpr = B.shape
    ROWS: tl.constexpr = B.rows
    COLS: tl.constexpr = B.cols
    KIND: tl.constexpr = F.kind
    BEFORE: tl.constexpr = F.before
    if F.kept == 0:
        more, there, _ = side(step, sizes, 1, 3 + B.rows.rank, COLS)
        values = read(pointers, strides, own, more, (live, there), F.others, F.values, B, ACC)
    else:
        more, there, _ = side(step, sizes, 0, 3, ROWS)
        values = read(pointers, strides, more, own, (there, live), F.others, F.values, B, ACC)
    blank = tl.zeros(SHAPE, ACC)
    v = tl.broadcast_to(evaluate(BEFORE, blank, values, numbers, 0), blank.shape)
    return taken(kept, v, live & there, KIND)


@triton.jit
def fold(
    pointers, sizes, strides, numbers, partials, counts, B: tl.constexpr, F: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Program (results, share): blocks of values from ``share * run`` on."""
    SHAPE: tl.constexpr = B.shape
    ROWS: tl.constexpr = B.rows
    COLS: tl.constexpr = B.cols
    KIND: tl.constexpr = F.kind
    program = tl.program_id(0)
    steps = plain(counts[0])
    run = plain(counts[1])
    shares = plain(counts[2])
    many = plain(counts[3])
    share = program % shares
    block = program // shares
    if B.wide:
        block = block.to(tl.int64)
    if F.kept == 0:
        own, live, linear = side(block, sizes, 0, 3, ROWS)
    else:
        own, live, linear = side(block, sizes, 1, 3 + B.rows.rank, COLS)
    kept = nothing(tl.zeros(SHAPE, ACC), KIND)
    for step in range(share * run, tl.minimum(share * run + run, steps)):
        at = step
        if B.wide:
            at = step.to(tl.int64)
        kept = met(kept, at, own, live, pointers, sizes, strides, numbers, B, F, ACC)
    kept = gathered(kept, KIND, 1 - F.kept)
    if F.shared:
        to = partials + linear.to(tl.int64) * shares + share
        for i in tl.static_range(len(kept)):
            tl.store(to + i * plain(counts[4]).to(tl.int64), kept[i], mask=live)
    elif F.kept == 0:
        none, _, _ = side(0, sizes, 1, 3 + B.rows.rank, COLS)
        stored(kept, pointers, strides, own, none, live, many, numbers, B, F, ACC)
    else:
        none, _, _ = side(0, sizes, 0, 3, ROWS)
        stored(kept, pointers, strides, none, own, live, many, numbers, B, F, ACC)


@triton.jit
def partial(partials, at, plane, here, KIND: tl.constexpr):
    """Partials as they were stored; where there is none, what is kept of no values."""
    if KIND == "max":
        return (tl.load(partials + at, mask=here, other=float("-inf")),)
    elif KIND == "min":
        return (tl.load(partials + at, mask=here, other=float("inf")),)
    elif KIND == "peaks":
        top = tl.load(partials + at, mask=here, other=float("-inf"))
        return top, tl.load(partials + at + plane, mask=here, other=0.0)
    elif KIND == "moments":
        count = tl.load(partials + at, mask=here, other=0.0)
        mean = tl.load(partials + at + plane, mask=here, other=0.0)
        return count, mean, tl.load(partials + at + 2 * plane, mask=here, other=0.0)
    else:
        return (tl.load(partials + at, mask=here, other=0.0),)


@triton.jit
def join(
    pointers, sizes, strides, numbers, partials, counts, B: tl.constexpr, F: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Program (results): the shares of each, joined in order."""
    SHAPE: tl.constexpr = B.shape
    ROWS: tl.constexpr = B.rows
    COLS: tl.constexpr = B.cols
    KIND: tl.constexpr = F.kind
    shares = plain(counts[2])
    plane = plain(counts[4]).to(tl.int64)
    own, live, linear = side(tl.program_id(0), sizes, 0, 3, ROWS)
    none, _, _ = side(0, sizes, 1, 3 + B.rows.rank, COLS)
    kept = nothing(tl.zeros(SHAPE, ACC), KIND)
    for first in range(0, shares, B.cols.block):
        at = first + tl.arange(0, B.cols.block)[None, :]
        here = live & (at < shares)
        more = partial(partials, linear.to(tl.int64) * shares + at, plane, here, KIND)
        kept = joined(kept, more, KIND)
    kept = gathered(kept, KIND, 1)
    stored(kept, pointers, strides, own, none, live, plain(counts[3]), numbers, B, F, ACC)


def launches(
    sweep: Fold, at: Callable[[int], int], memory: Callable[[int, torch.dtype], int]
) -> list[Launch]:
    """The launches of a sweep; ``at`` has the number of a slot's tensor, ``memory`` of scratch."""
    results = [*sweep.outs, *(view for _, view in sweep.others)]
    views = [*results, *(view for _, view in sweep.values)]
    if 0 in sweep.outs[0].sizes:
        return []
    given = Given(views, at)
    before = parts(sweep.before, [name for name, _ in sweep.values], given.numbers)
    number = 3 * len(given.numbers)
    numbers: list[float] = []
    after = parts(sweep.after, [name for name, _ in sweep.others], numbers)
    given.numbers += numbers
    kept, folded = _axes(sweep, views)
    found, dim = _laid(views, kept, folded, len(results))
    blocks, steps = (found.rows, found.cols) if dim == 0 else (found.cols, found.rows)
    run = steps
    if blocks <= ENOUGH // 2:
        run = max(LEAST, -(-steps * blocks // ENOUGH))
    shares = max(1, -(-steps // max(run, 1)))
    many, count = _count(folded), _count(kept)
    counts = tuple(map(told, (steps, run, shares, many, count * shares)))
    kind = KINDS.get(sweep.folding, sweep.folding)
    folding = Folding(
        sweep.folding, kind, dim, before, after, number, len(results), len(views), shares > 1
    )
    partials = At(UNREAD)
    if shares > 1:
        partials = At(memory(PARTIALS.get(kind, 1) * count * shares, given.dtype))

    def launch(kernel: Any, which: Laid, programs: int) -> Launch:
        arguments: list[Any] = [*given.arguments(which), partials, counts, which.block, folding, given.acc]
        return Launch(kernel, programs, arguments)

    whole = [launch(fold, found, blocks * shares)]
    if shares > 1:
        alone = laid(results, Across(kept, JOINED[0], even=False), Across([], JOINED[1]))
        whole.append(launch(join, alone, alone.rows))
    return whole


def _count(found: Sequence[Axis]) -> int:
    return Across(list(found), 1).count


def _axes(sweep: Fold, views: Sequence[View]) -> tuple[list[Axis], list[Axis]]:
    """The axes of results, and those that are folded, as the first value has them in memory."""
    sizes, rank = sweep.values[0][1].sizes, len(sweep.outs[0].sizes)
    first = len(views) - len(sweep.values)
    strides = [(*v.strides[:rank], *(0,) * (len(sizes) - rank)) for v in views[:first]]
    strides += [v.strides for v in views[first:]]
    key = [*range(first, len(views)), *range(first)]
    kept = axes(sizes[:rank], [each[:rank] for each in strides])
    folded = axes(sizes[rank:], [each[rank:] for each in strides])
    return merged(kept, key), merged(folded, key)


def _laid(
    views: Sequence[View], kept: list[Axis], folded: list[Axis], first: int
) -> tuple[Laid, int]:
    """Along columns goes what lies innermost in memory; the dimension along which results lie."""
    near = _nearest(kept, first, len(views)), _nearest(folded, first, len(views))
    if near[0] < near[1]:
        inner = kept[-1].size
        flat = len(kept) == 1 or inner < KEPT[-1] // 2
        columns = widest(_count(kept) if flat else inner, KEPT)
        rows = ELEMENTS // columns if _count(folded) > 4 else 4
        return laid(views, Across(folded, rows, even=False), Across(kept, columns, flat)), 1
    flat = len(folded) < 2 or folded[-1].size < SHORT
    columns = widest(_count(folded) if flat else folded[-1].size, FOLDED)
    own = Across(kept, ELEMENTS // columns, even=False)
    return laid(views, own, Across(folded, columns, flat)), 0


def _nearest(found: Sequence[Axis], first: int, last: int) -> float:
    """How near neighbours along the innermost axis lie, in the first value that they differ in."""
    if found:
        for view in range(first, last):
            if found[-1].strides[view]:
                return found[-1].strides[view]
    return float("inf")
