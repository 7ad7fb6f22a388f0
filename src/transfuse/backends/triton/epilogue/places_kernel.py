# mypy: ignore-errors
"""Where the elements of a tile lie in memory, and how they get there."""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import narrow
from transfuse.backends.triton.told_kernel import plain


@triton.jit
def offsets(at, strides, INNER: tl.constexpr, WIDE: tl.constexpr):
    """How far positions lie from the first of their channel."""
    n, d, h, w = at
    if WIDE:
        n = n.to(tl.int64)
        d = d.to(tl.int64)
        h = h.to(tl.int64)
        w = w.to(tl.int64)
    place = n * plain(strides[0]) + d * plain(strides[2]) + h * plain(strides[3])
    if INNER == 4:
        return place + w
    else:
        return place + w * plain(strides[4])


@triton.jit
def channel_offsets(channel, strides, INNER: tl.constexpr):
    """How far channels lie from the first."""
    if INNER == 1:
        return channel.to(tl.int64)
    else:
        return channel.to(tl.int64) * plain(strides[1])


@triton.jit
def together(offset, UNIT: tl.constexpr):
    """Offsets of which every ``UNIT`` neighbours are one aligned piece: the compiler is told so."""
    return tl.max_contiguous(tl.multiple_of(offset, UNIT), UNIT)


@triton.jit
def aligned(channel, place, INNER: tl.constexpr, UNIT: tl.constexpr):
    """Offsets of channels and of positions, where ``UNIT`` neighbours are one aligned piece."""
    if INNER == 1:
        return together(channel, UNIT), tl.multiple_of(place, UNIT)
    else:
        return tl.multiple_of(channel, UNIT), together(place, UNIT)


@triton.jit
def write(out, v, channels, there, at, to, A: tl.constexpr, WHOLE: tl.constexpr):
    """Store a tile, channels first. ``WHOLE``: it has no channels but real ones."""
    channel, live = channels
    UNIT: tl.constexpr = A.unit
    INNER: tl.constexpr = A.inner
    v = narrow(v, out.dtype.element_ty)
    c = channel_offsets(channel, to.strides, INNER)
    p = offsets(at, to.strides, INNER, A.wide)
    if plain(to.even) > 0:
        put_together(out, v, c, p, live, there, INNER, UNIT, WHOLE)
    else:
        put_apart(out, v, c, p, live, there, INNER, WHOLE)


@triton.jit
def put_together(
    out, v, c, p, live, there, INNER: tl.constexpr, UNIT: tl.constexpr, WHOLE: tl.constexpr
):
    """Store by vectors of ``UNIT`` neighbours."""
    c, p = aligned(c, p, INNER, UNIT)
    if INNER == 1:
        live = tl.max_constancy(live, UNIT)
    else:
        there = tl.max_constancy(there, UNIT)
    keep = there[None, :] if WHOLE else live[:, None] & there[None, :]
    tl.store(out + c[:, None] + p[None, :], v, mask=keep)


@triton.jit
def put_apart(out, v, c, p, live, there, INNER: tl.constexpr, WHOLE: tl.constexpr):
    """Store one by one."""
    if INNER == 4:  # neighbours mostly lie side by side: a warp is to go along them
        p = tl.max_contiguous(p, 2)
    keep = there[None, :] if WHOLE else live[:, None] & there[None, :]
    tl.store(out + c[:, None] + p[None, :], v, mask=keep)
