# mypy: ignore-errors
"""The kernels of ``Fold``: one result for all elements along some axes; several folds at once.

Where results are few and what is folded is long, several programs share a result: each leaves a
partial in scratch memory, and a second launch joins them in a fixed order. No atomics: the same
bits in every run.

``F`` is a ``fold_launch.Folding``; its ``kind`` is what is kept of values: their ``sum``,
``squares`` (sum of squares), ``max``, ``min``, ``peaks`` (maximum, and sum of exponentials of what
is left without it), ``moments`` (count, mean, sum of squares about it).
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import larger, quotient, reciprocal, smaller
from transfuse.backends.triton.epilogue.expressions import evaluate
from transfuse.backends.triton.epilogue.statistics_kernel import merge_moments
from transfuse.backends.triton.sweeps.walk_kernel import read, side, write
from transfuse.backends.triton.told_kernel import plain


@triton.jit
def lowest(like):
    """The lowest number: a maximum of nothing, from which -Inf is Inf away, and not NaN."""
    if like.dtype == tl.float64:
        return tl.full(like.shape, -1.7976931348623157e308, tl.float64)
    else:
        return tl.full(like.shape, -3.4028234663852886e38, tl.float32)


@triton.jit
def nothing(like, KIND: tl.constexpr):
    """What is kept of no values."""
    if KIND == "max":
        return (like + float("-inf"),)
    elif KIND == "min":
        return (like + float("inf"),)
    elif KIND == "peaks":
        return lowest(like), like
    elif KIND == "moments":
        return like, like, like
    else:
        return (like,)


@triton.jit
def started(like, KIND: tl.constexpr):
    """The same for ``taken``: of moments, also the sum of values."""
    kept = nothing(like, KIND)
    if KIND == "moments":
        return kept + (like,)
    else:
        return kept


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
    elif KIND == "peaks":  # one exponential a value: of the smaller over the larger
        top, total = kept
        v = tl.where(live, v, float("-inf"))
        share = tl.exp(-tl.abs(v - top))
        total = tl.where(v > top, total * share + 1.0, total + share)
        return larger(top, v), total
    else:  # Welford's way; a mean from the sum is Inf where values are, not NaN
        count, mean, square, total = kept
        v = tl.where(live, v, 0.0)
        count += tl.where(live, 1.0, 0.0).to(count.dtype)
        total += v
        apart = tl.where(live, v - mean, 0.0)
        mean = total * reciprocal(tl.maximum(count, 1.0))
        return count, mean, square + apart * (v - mean), total


@triton.jit
def merge_tops(top_a, sum_a, top_b, sum_b):
    """Sums of exponentials brought to the larger maximum; NaN wins."""
    top = larger(top_a, top_b)
    return top, sum_a * tl.exp(top_a - top) + sum_b * tl.exp(top_b - top)


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
def one_of(kept, WHICH: tl.constexpr, MANY: tl.constexpr):
    """What is kept for one of so many folds."""
    COUNT: tl.constexpr = len(kept) // MANY
    found = ()
    for i in tl.static_range(COUNT):
        found = found + (kept[WHICH * COUNT + i],)
    return found


@triton.jit
def gathered_of_all(kept, F: tl.constexpr, DIM: tl.constexpr):
    """What is kept of all values along a side, for every fold."""
    MANY: tl.constexpr = len(F.before)
    KIND: tl.constexpr = F.kind
    found = ()
    for i in tl.static_range(MANY):
        found = found + gathered(one_of(kept, i, MANY), KIND, DIM)
    return found


@triton.jit
def gathered(kept, KIND: tl.constexpr, DIM: tl.constexpr):
    """What is kept of all values along a side."""
    if KIND == "max":
        return (largest(kept[0], DIM),)
    elif KIND == "min":
        return (-largest(-kept[0], DIM),)
    elif KIND == "peaks":
        top = largest(kept[0], DIM)
        return top, tl.sum(kept[1] * tl.exp(kept[0] - top), DIM, keep_dims=True)
    elif KIND == "moments":
        count, mean, square = kept[0], kept[1], kept[2]
        many = tl.sum(count, DIM, keep_dims=True)
        middle = quotient(tl.sum(count * mean, DIM, keep_dims=True), many)
        apart = mean - middle
        return many, middle, tl.sum(square + count * apart * apart, DIM, keep_dims=True)
    else:
        return (tl.sum(kept[0], DIM, keep_dims=True),)


@triton.jit
def peak(kept):
    """Maximum and sum as they are defined: of -Inf alone -Inf and 0, of any Inf Inf and NaN."""
    top, total = kept
    top = tl.where(total == 0, float("-inf"), top)
    return top, tl.where(top == float("inf"), float("nan"), total)


@triton.jit
def concluded(kept, others, many, numbers, F: tl.constexpr, AFTER: tl.constexpr, ACC: tl.constexpr):
    """The results of what is kept of ``many`` values, through the expression that follows."""
    if F.folding == "moments":
        return kept[1], quotient(kept[2], kept[0])
    elif F.folding == "exponentials":
        return peak(kept)
    else:
        x = kept[0]
        if F.folding == "mean" or F.folding == "squares":
            x = quotient(x, many.to(ACC))
        elif F.folding == "logsumexp":
            x, total = peak(kept)
            x = tl.where(tl.abs(x) == float("inf"), x, x + tl.log(total))
        y = evaluate(AFTER, x, others, numbers, 0)
        return (tl.broadcast_to(y, x.shape),)


@triton.jit
def concluded_one(
    kept, others, many, numbers, WHICH: tl.constexpr, F: tl.constexpr, ACC: tl.constexpr
):
    """The results of one of the folds."""
    MANY: tl.constexpr = len(F.before)
    AFTER: tl.constexpr = F.after[WHICH]
    return concluded(one_of(kept, WHICH, MANY), others, many, numbers, F, AFTER, ACC)


@triton.jit
def stored(
    kept, views, rows, cols, live, many, numbers, B: tl.constexpr, F: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """The same, written down."""
    MANY: tl.constexpr = len(F.before)
    others = read(views, rows, cols, (live, live), F.results, F.others, B, ACC)
    for i in tl.static_range(MANY):
        found = concluded_one(kept, others, many, numbers, i, F, ACC)
        for j in tl.static_range(len(found)):
            write(views, rows, cols, live, found[j], i * len(found) + j, B)


@triton.jit
def folded(blank, values, numbers, WHICH: tl.constexpr, F: tl.constexpr):
    """What one of the folds is taken of."""
    BEFORE: tl.constexpr = F.before[WHICH]
    v = evaluate(BEFORE, blank, values, numbers, 0)
    return tl.broadcast_to(v, blank.shape)


@triton.jit
def met(
    kept, step, own, live, views, sizes, numbers, B: tl.constexpr, F: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """What is kept after one more block of values: results ``own``, block ``step`` of the rest."""
    SHAPE: tl.constexpr = B.shape
    ROWS: tl.constexpr = B.rows
    COLS: tl.constexpr = B.cols
    KIND: tl.constexpr = F.kind
    MANY: tl.constexpr = len(F.before)
    if F.kept == 0:
        more, there, _ = side(step, sizes, 1, 3 + B.rows.rank, COLS)
        values = read(views, own, more, (live, there), F.others, F.values, B, ACC)
    else:
        more, there, _ = side(step, sizes, 0, 3, ROWS)
        values = read(views, more, own, (there, live), F.others, F.values, B, ACC)
    blank = tl.zeros(SHAPE, ACC)
    found = ()
    for i in tl.static_range(MANY):
        v = folded(blank, values, numbers, i, F)
        found = found + taken(one_of(kept, i, MANY), v, live & there, KIND)
    return found


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
    views = (pointers, strides)
    program = tl.program_id(0)
    steps = plain(counts[0])
    run = plain(counts[1])
    shares = plain(counts[2])
    many = plain(counts[3])
    share = program % shares
    block = program // shares
    if B.wide:
        share = share.to(tl.int64)
        block = block.to(tl.int64)
    if F.kept == 0:
        own, live, linear = side(block, sizes, 0, 3, ROWS)
    else:
        own, live, linear = side(block, sizes, 1, 3 + B.rows.rank, COLS)
    kept = ()
    for _ in tl.static_range(len(F.before)):
        kept = kept + started(tl.zeros(SHAPE, ACC), KIND)
    for step in range(share * run, tl.minimum(share * run + run, steps)):
        at = step + 0 * block  # also in the interpreter, where a step is no tensor
        kept = met(kept, at, own, live, views, sizes, numbers, B, F, ACC)
    kept = gathered_of_all(kept, F, 1 - F.kept)
    if F.shared:
        to = partials + linear.to(tl.int64) * shares + share
        for i in tl.static_range(len(kept)):
            tl.store(to + i * plain(counts[4]).to(tl.int64), kept[i], mask=live)
    elif F.kept == 0:
        none, _, _ = side(0 * tl.program_id(0), sizes, 1, 3 + B.rows.rank, COLS)
        stored(kept, views, own, none, live, many, numbers, B, F, ACC)
    else:
        none, _, _ = side(0 * tl.program_id(0), sizes, 0, 3, ROWS)
        stored(kept, views, none, own, live, many, numbers, B, F, ACC)


@triton.jit
def partial(partials, at, plane, here, KIND: tl.constexpr):
    """Partials as they were stored; where there is none, what is kept of no values."""
    if KIND == "max":
        return (tl.load(partials + at, mask=here, other=float("-inf")),)
    elif KIND == "min":
        return (tl.load(partials + at, mask=here, other=float("inf")),)
    elif KIND == "peaks":
        total = tl.load(partials + at + plane, mask=here, other=0.0)
        top = tl.load(partials + at, mask=here, other=0.0)
        return tl.where(here, top, lowest(top)), total
    elif KIND == "moments":
        count = tl.load(partials + at, mask=here, other=0.0)
        mean = tl.load(partials + at + plane, mask=here, other=0.0)
        return count, mean, tl.load(partials + at + 2 * plane, mask=here, other=0.0)
    else:
        return (tl.load(partials + at, mask=here, other=0.0),)


@triton.jit
def joined_of_all(kept, partials, at, plane, here, F: tl.constexpr):
    """What is kept for every fold, and more partials."""
    MANY: tl.constexpr = len(F.before)
    KIND: tl.constexpr = F.kind
    found = ()
    for i in tl.static_range(MANY):
        own = one_of(kept, i, MANY)
        more = partial(partials + i * len(own) * plane, at, plane, here, KIND)
        found = found + joined(own, more, KIND)
    return found


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
    views = (pointers, strides)
    shares = plain(counts[2])
    plane = plain(counts[4]).to(tl.int64)
    own, live, linear = side(tl.program_id(0), sizes, 0, 3, ROWS)
    none, _, _ = side(0 * tl.program_id(0), sizes, 1, 3 + B.rows.rank, COLS)
    MANY: tl.constexpr = len(F.before)
    kept = ()
    for _ in tl.static_range(MANY):
        kept = kept + nothing(tl.zeros(SHAPE, ACC), KIND)
    for first in range(0, shares, B.cols.block):
        at = first + tl.arange(0, B.cols.block)[None, :]
        here = live & (at < shares)
        to = linear.to(tl.int64) * shares + at
        kept = joined_of_all(kept, partials, to, plane, here, F)
    kept = gathered_of_all(kept, F, 1)
    stored(kept, views, own, none, live, plain(counts[3]), numbers, B, F, ACC)
