# mypy: ignore-errors
"""The gradient by weights: of each channel, what its winners' inputs sum up to.

Rows of a matrix are phases: the taps that reach an output are ``every`` apart along each axis, so
that outputs of one phase have their ``m``-th taps in common. An output has its gradient in the row
of its phase, and 0 in all others.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import multiply_add, narrow
from transfuse.backends.triton.told_kernel import over, parted, plain
from transfuse.backends.triton.winners.list_kernel import shared


@triton.jit
def phase(at, A: tl.constexpr):
    """The first tap that reaches an output, counted from the padding on; -1 where none does."""
    if A.dilation == 1:
        return at % A.stride
    else:
        found = at * 0 - 1
        EVERY: tl.constexpr = A.every
        for k in tl.static_range(EVERY):
            found = tl.where(at % A.stride == k * A.dilation % A.stride, k, found)
        return found


@triton.jit
def source(at, of_phase, m, size, A: tl.constexpr):
    """The input that an output meets by its ``m``-th tap, and whether there is one."""
    k = of_phase + m * A.every
    off = at - k * A.dilation
    i = off // A.stride
    return i, (of_phase >= 0) & (k < A.kernel) & (off >= 0) & (i < size)


@triton.jit
def padded(place, S, P: tl.constexpr):
    """The sample of an output and its coordinates, counted from the padding on."""
    Z: tl.constexpr = P.z
    Y: tl.constexpr = P.y
    X: tl.constexpr = P.x
    rest, x = parted(place, S.outputs[2])
    rest, y = parted(rest, S.outputs[1])
    n, z = parted(rest, S.outputs[0])
    return n, z + Z.padding, y + Y.padding, x + X.padding


@triton.jit
def added(
    acc, e, live, x, places, gradient, group, m, c, there, S, P: tl.constexpr, ACC: tl.constexpr
):
    """One block of winners more."""
    Z: tl.constexpr = P.z
    Y: tl.constexpr = P.y
    X: tl.constexpr = P.x
    DOT: tl.constexpr = P.dot
    n, z, y, w = padded(tl.load(places + e, mask=live, other=0), S, P)
    of_z = phase(z, Z)
    of_y = phase(y, Y)
    of_x = phase(w, X)
    sizes = S.inputs
    iz, has_z = source(z, of_z, m // (Y.taps * X.taps), plain(sizes[0]), Z)
    iy, has_y = source(y, of_y, m // X.taps % Y.taps, plain(sizes[1]), Y)
    ix, has_x = source(w, of_x, m % X.taps, plain(sizes[2]), X)
    row = ((n * plain(sizes[0]) + iz) * plain(sizes[1]) + iy) * plain(sizes[2]) + ix
    has = live & has_z & has_y & has_x
    inner = plain(S.inner) * P.unit
    wide = inner * over(plain(S.channels[0]), S.group_channels)
    to = x + row.to(tl.int64)[:, None] * wide + (group * inner + c)[None, :]
    b = tl.load(to, mask=has[:, None] & there[None, :], other=0.0)
    g = tl.load(gradient + e, mask=has, other=0.0)
    own = (of_z * Y.every + of_y) * X.every + of_x
    a = tl.where(own[None, :] == tl.arange(0, P.phases)[:, None], g[None, :], 0.0)
    return multiply_add(narrow(a, b.dtype), b, acc, ACC, DOT)


@triton.jit
def by_weight(
    x, ends, places, gradient, out, shares, blocks, S, P: tl.constexpr, ACC: tl.constexpr
):
    """Program (share, channel, m, block of the input's channels): a share of a channel's list."""
    Z: tl.constexpr = P.z
    Y: tl.constexpr = P.y
    X: tl.constexpr = P.x
    rest, block = parted(tl.program_id(0), blocks)
    m = rest % P.met
    share, channel = parted(rest // P.met, S.channels)
    c = block * P.channels + tl.arange(0, P.channels)
    inner = plain(S.inner) * P.unit
    there = c < inner
    group = over(channel, S.group_channels)
    first, end = shared(ends, channel, share, shares, S, P.rows)
    PHASES: tl.constexpr = P.phases
    CHANNELS: tl.constexpr = P.channels
    acc = tl.zeros([PHASES, CHANNELS], ACC)
    for at in range(first, end, P.rows):
        e = at + tl.arange(0, P.rows)
        acc = added(acc, e, e < end, x, places, gradient, group, m, c, there, S, P, ACC)
    index = tl.arange(0, P.phases)
    kx = index % X.every + m % X.taps * X.every
    ky = index // X.every % Y.every + m // X.taps % Y.taps * Y.every
    of_z = index // (X.every * Y.every)
    kz = of_z + m // (Y.taps * X.taps) * Z.every
    tap = (kz * Y.kernel + ky) * X.kernel + kx
    is_tap = (of_z < Z.every) & (kz < Z.kernel) & (ky < Y.kernel) & (kx < X.kernel)
    row = (share * plain(S.channels[0]) + channel) * P.taps + tap
    to = out + row.to(tl.int64)[:, None] * inner + c[None, :]
    tl.store(to, acc, mask=is_tap[:, None] & there[None, :])
