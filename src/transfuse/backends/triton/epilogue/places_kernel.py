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
    """How far positions lie from the first of their channel. ``WIDE``: in 64 bits."""
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
def channel_offsets(channel, strides, INNER: tl.constexpr, WIDE: tl.constexpr, UNIT: tl.constexpr):
    """How far channels lie from the first."""
    if INNER == 1:
        place = channel.to(tl.int64)
        if UNIT > 1:
            place = tl.max_contiguous(tl.multiple_of(place, UNIT), UNIT)
        else:
            place = tl.max_contiguous(place, 2)
    else:
        if WIDE:
            channel = channel.to(tl.int64)
        place = channel * plain(strides[1])
        if INNER == 4 and UNIT > 1:
            place = tl.multiple_of(place, UNIT)
    return place


@triton.jit
def moved(pointer, count, stride, UNIT: tl.constexpr):
    """A pointer moved by so many times a stride, which ``UNIT`` divides."""
    offset = count.to(tl.int64) * plain(stride)
    if UNIT > 1:
        offset = tl.multiple_of(offset, UNIT)
    return pointer + offset


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
    """Store a tile of one share of members, channels first, ``UNIT`` neighbours at once.

    ``there``: none where every element is.
    """
    channel, live = channels
    INNER: tl.constexpr = A.inner
    c = channel_offsets(channel, to.strides, INNER, A.wide, UNIT)
    p = offsets(at, to.strides, INNER, A.wide, UNIT)
    target = moved(out, share, to.part, UNIT) + (c[:, None] + p[None, :])
    if there is None:
        tl.store(target, narrow(v, out.dtype.element_ty))
    else:
        keep = kept(live, there, INNER, UNIT, WHOLE)
        tl.store(target, narrow(v, out.dtype.element_ty), mask=keep)
