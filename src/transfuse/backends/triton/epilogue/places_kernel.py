# mypy: ignore-errors
"""Where the elements of a tile lie in memory, and how they get there.

``UNIT`` neighbours are one aligned piece of memory, if it is not 1: the compiler is told so where
the offsets are computed, since it forgets what it is told of a function's arguments.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import narrow
from transfuse.backends.triton.told_kernel import plain


@triton.jit
def offsets(at, strides, INNER: tl.constexpr, WIDE: tl.constexpr, UNIT: tl.constexpr = 1):
    """How far positions lie from the first of their channel."""
    n, d, h, w = at
    if WIDE:
        n = n.to(tl.int64)
        d = d.to(tl.int64)
        h = h.to(tl.int64)
        w = w.to(tl.int64)
    place = n * plain(strides[0]) + d * plain(strides[2]) + h * plain(strides[3])
    if INNER == 4:
        place = place + w
        if UNIT > 1:
            place = tl.max_contiguous(tl.multiple_of(place, UNIT), UNIT)
        else:  # neighbours mostly lie side by side: a warp is to go along them
            place = tl.max_contiguous(place, 2)
    else:
        place = place + w * plain(strides[4])
        if INNER == 1 and UNIT > 1:
            place = tl.multiple_of(place, UNIT)
    return place


@triton.jit
def channel_offsets(channel, first, strides, INNER: tl.constexpr, UNIT: tl.constexpr = 1):
    """How far channels lie from the first, where that one lies at ``first``."""
    if INNER == 1:
        place = channel.to(tl.int64) + first
        if UNIT > 1:
            place = tl.max_contiguous(tl.multiple_of(place, UNIT), UNIT)
    else:
        place = channel.to(tl.int64) * plain(strides[1]) + first
        if INNER == 4 and UNIT > 1:
            place = tl.multiple_of(place, UNIT)
    return place


@triton.jit
def kept(live, there, INNER: tl.constexpr, UNIT: tl.constexpr, WHOLE: tl.constexpr = False):
    """Which elements of a tile there are: ``UNIT`` neighbours are, or none of them.

    ``WHOLE``: the tile has no channels but real ones.
    """
    keep = there[None, :]
    if not WHOLE:
        keep = keep & live[:, None]
    if UNIT > 1:
        if INNER == 1:
            if not WHOLE:
                keep = tl.max_constancy(keep, [UNIT, 1])
        else:
            keep = tl.max_constancy(keep, [1, UNIT])
    return keep


@triton.jit
def write(
    out, v, channels, there, at, share, to,
    A: tl.constexpr, UNIT: tl.constexpr, WHOLE: tl.constexpr = False,
):  # fmt: skip
    """Store a tile of one share of members, channels first, ``UNIT`` neighbours at once."""
    channel, live = channels
    INNER: tl.constexpr = A.inner
    c = channel_offsets(channel, share.to(tl.int64) * plain(to.part), to.strides, INNER, UNIT)
    p = offsets(at, to.strides, INNER, A.wide, UNIT)
    target = out + c[:, None] + p[None, :]
    keep = kept(live, there, INNER, UNIT, WHOLE)
    tl.store(target, narrow(v, out.dtype.element_ty), mask=keep)
