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
def across(channel, place, INNER: tl.constexpr, UNIT: tl.constexpr, AXIS: tl.constexpr):
    """Offsets of channels and of positions along the axes of a tile, channels along ``AXIS``.

    ``UNIT`` neighbours are one aligned piece. The compiler is told so where an operation makes the
    offsets: told of a function's argument, it forgets when it puts the function in its place.
    """
    # Along which axis of the tile elements lie side by side.
    DOWN: tl.constexpr = UNIT if (INNER == 1) == (AXIS == 0) else 1
    ALONG: tl.constexpr = 1 if (INNER == 1) == (AXIS == 0) else UNIT
    channel = tl.expand_dims(channel, 1 - AXIS)
    place = tl.expand_dims(place, AXIS)
    if INNER == 1:
        channel = tl.max_contiguous(tl.multiple_of(channel, [DOWN, ALONG]), [DOWN, ALONG])
        return channel, tl.multiple_of(place, [UNIT, UNIT])
    else:
        place = tl.max_contiguous(tl.multiple_of(place, [DOWN, ALONG]), [DOWN, ALONG])
        return tl.multiple_of(channel, [UNIT, UNIT]), place


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
    DOWN: tl.constexpr = UNIT if INNER == 1 else 1
    ALONG: tl.constexpr = 1 if INNER == 1 else UNIT
    c, p = across(c, p, INNER, UNIT, 0)
    keep = there[None, :] if WHOLE else live[:, None] & there[None, :]
    keep = tl.max_constancy(tl.broadcast_to(keep, v.shape), [DOWN, ALONG])
    tl.store(out + c + p, v, mask=keep)


@triton.jit
def put_apart(out, v, c, p, live, there, INNER: tl.constexpr, WHOLE: tl.constexpr):
    """Store one by one."""
    p = p[None, :]
    if INNER == 4:  # neighbours mostly lie side by side: a warp is to go along them
        p = tl.max_contiguous(p, [1, 2])
    keep = there[None, :] if WHOLE else live[:, None] & there[None, :]
    tl.store(out + c[:, None] + p, v, mask=keep)
