# mypy: ignore-errors
"""Statistics over more than a tile: one partial per (channel, tile), merged in a fixed order.

A partial is three numbers. *moments*: count, mean, sum of squares about it. *peaks*: 0, maximum and
sum of ``exp(v - maximum)``. *exponentials*: 0, 0 and sum of ``exp(v)``, where a clamp bounds the
values.
No atomics: the same bits in every run.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import bounded_exp, inverse_root, narrow
from transfuse.backends.triton.epilogue.operands import number


@triton.jit
def nothing(like, KIND: tl.constexpr):
    """The partial of no values."""
    zero = tl.where(like == like, 0.0, 0.0).to(like.dtype)
    if KIND == "peaks":
        return zero, zero + float("-inf"), zero
    else:
        return zero, zero, zero


@triton.jit
def among(here, v, none):
    """``v`` where there is something, ``none`` elsewhere."""
    if here is None:
        return v
    else:
        return tl.where(here, v, none)


@triton.jit
def gather(v, valid, KIND: tl.constexpr):
    """The partial of each channel of a tile (channels first) over its valid positions."""
    if valid is None:  # all of them
        here = None
    else:
        here = valid[None, :]
    if KIND == "moments":
        total = tl.sum(among(here, v, 0.0), 1)
        if valid is None:
            count = v.shape[1]
        else:
            count = tl.sum(valid.to(v.dtype))
        # One count for every channel, as partials are stored: the comparison only lends its shape.
        count = tl.where(total == total, count, count).to(v.dtype)
        mean = total / tl.maximum(count, 1.0)
        off = among(here, v - mean[:, None], 0.0)
        return count, mean, tl.sum(off * off, 1)
    elif KIND == "peaks":
        top = tl.max(among(here, v, float("-inf")), 1)
        shift = tl.where(top == float("-inf"), 0.0, top)
        total = tl.sum(among(here, tl.exp(v - shift[:, None]), 0.0), 1)
        return nothing(total, KIND)[0], top, total
    else:
        total = tl.sum(among(here, bounded_exp(v), 0.0), 1)
        zero = nothing(total, KIND)[0]
        return zero, zero, total


@triton.jit
def gather_tile(v, valid, full, KIND: tl.constexpr, MAY: tl.constexpr):
    """The same; ``full``: all positions are valid. ``MAY``: whether they may be, often enough."""
    if MAY:
        if full:
            count, a, b = gather(v, None, KIND)
        else:
            count, a, b = gather(v, valid, KIND)
    else:
        count, a, b = gather(v, valid, KIND)
    return count, a, b


@triton.jit
def merge_moments(count_a, mean_a, square_a, count_b, mean_b, square_b):
    """Chan's formula: the moments of two sets together."""
    count = count_a + count_b
    share = tl.where(count > 0, count_b / tl.maximum(count, 1.0), 0.0)
    apart = mean_b - mean_a
    mean = tl.where(count_a > 0, mean_a + apart * share, mean_b)
    # The mean of values of which some are Inf is Inf, and Inf - Inf would make it NaN.
    finite = tl.abs(apart) < float("inf")
    mean = tl.where(finite | (count_a == 0), mean, mean_a + mean_b)
    return (
        count,
        mean,
        square_a
        + square_b
        + tl.where((count_a > 0) & (count_b > 0), apart * apart * count_a * share, 0.0),
    )


@triton.jit
def merge_peaks(count_a, top_a, sum_a, count_b, top_b, sum_b):
    """Sums of exponentials brought to the larger maximum."""
    top = tl.maximum(top_a, top_b)
    shift = tl.where(top == float("-inf"), 0.0, top)
    grown_a = tl.where(sum_a == 0, 0.0, sum_a * tl.exp(top_a - shift))
    grown_b = tl.where(sum_b == 0, 0.0, sum_b * tl.exp(top_b - shift))
    return count_a + count_b, top, grown_a + grown_b


@triton.jit
def merge_exponentials(count_a, none_a, sum_a, count_b, none_b, sum_b):
    return count_a + count_b, none_a + none_b, sum_a + sum_b


@triton.jit
def join(a, b, KIND: tl.constexpr):
    """Two partials as one."""
    if KIND == "moments":
        return merge_moments(a[0], a[1], a[2], b[0], b[1], b[2])
    elif KIND == "peaks":
        return merge_peaks(a[0], a[1], a[2], b[0], b[1], b[2])
    else:
        return merge_exponentials(a[0], a[1], a[2], b[0], b[1], b[2])


@triton.jit
def put(to, plane, partial, live):
    """Store a partial: its three numbers lie ``plane`` apart."""
    tl.store(to, partial[0], mask=live)
    tl.store(to + plane, partial[1], mask=live)
    tl.store(to + 2 * plane, partial[2], mask=live)


@triton.jit
def move(to, found, numbers):
    """``(1 - momentum) * running + momentum * found``; both factors are among the numbers."""
    kept = tl.load(to).to(found.dtype) * number(numbers, 3, found)
    tl.store(to, narrow(kept + number(numbers, 6, found) * found, to.dtype.element_ty))


# Triton compiles an integer that is 1 into the kernel as a constant. ``merge`` replaces these by
# the numbers of the careful launch, which it could not do to a constant.
@triton.jit(do_not_specialize=["run", "plane", "careful_run", "careful_plane"])
def merge(
    partials, run, plane, careful, careful_run, careful_plane, wild, first, second, numbers,
    running, KIND: tl.constexpr, BLOCK: tl.constexpr, MOVES: tl.constexpr,
):  # fmt: skip
    """Program (s): ``run`` partials from ``s * run`` on, as the two numbers that are applied.

    ``MOVES``: ``running`` mean and variance move towards these; the numbers after eps say how far.

    Where weights were not finite, those of the careful launch, if there is one (``wild``).
    """
    program = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    if wild is not None:
        if tl.load(wild) > 0:
            partials = careful
            run = careful_run
            plane = careful_plane
    base = partials + program.to(tl.int64) * run
    total = nothing(tl.load(base + at, mask=at < 0, other=0.0), KIND)
    for start in range(0, run, BLOCK):
        live = start + at < run
        count = tl.load(base + start + at, mask=live, other=0.0)
        blank = float("-inf") if KIND == "peaks" else 0.0
        a = tl.load(base + plane + start + at, mask=live, other=blank)
        b = tl.load(base + 2 * plane + start + at, mask=live, other=0.0)
        total = join(total, (count, a, b), KIND)
    if KIND == "moments":
        count, a, b = tl.reduce(total, 0, merge_moments)
        second_value = inverse_root(b / count + number(numbers, 0, b))
        if MOVES:
            move(running[0] + program, a, numbers)
            move(running[1] + program, b / (count - 1), numbers)
    elif KIND == "peaks":
        count, a, b = tl.reduce(total, 0, merge_peaks)
        second_value = 1.0 / b
    else:
        count, a, b = tl.reduce(total, 0, merge_exponentials)
        second_value = 1.0 / b
    tl.store(first + program, a)
    tl.store(second + program, second_value)
