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
from transfuse.backends.triton.winners.list_kernel import below, shared, too_many


@triton.jit
def nearest(at, A: tl.constexpr):
    """The first tap that reaches an output, counted from the padding on, and its input there.

    By every tap further on it is an input further down; where there is none, it is none at all.
    """
    phase = at % A.stride
    k = phase
    if A.dilation > 1:
        EVERY: tl.constexpr = A.every
        k = at * 0
        known = at < 0
        for i in tl.static_range(EVERY):
            this = phase == i * A.dilation % A.stride
            k = tl.where(this, i, k)
            known = known | this
        at = tl.where(known, at, -1)
    i = (at - k * A.dilation) // A.stride
    return k, tl.where((at >= 0) & (at >= k * A.dilation), i, -1)


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
def added(sums, winners, lists, base, taps, channels, S, P: tl.constexpr, ACC: tl.constexpr):
    """Sums with one block of winners more."""
    e, live = winners
    places, gradient = lists
    mz, my = taps
    c, there = channels
    Z: tl.constexpr = P.z
    Y: tl.constexpr = P.y
    X: tl.constexpr = P.x
    DOT: tl.constexpr = P.dot
    MET: tl.constexpr = X.taps
    n, z, y, w = padded(tl.load(places + e, mask=live, other=0), S, P)
    kz, z = nearest(z, Z)
    ky, y = nearest(y, Y)
    kx, w = nearest(w, X)
    z -= mz * Z.hop
    y -= my * Y.hop
    long = plain(S.inputs[2])
    has = live & below(z, plain(S.inputs[0])) & below(y, plain(S.inputs[1]))
    has &= (kz + mz * Z.every < Z.kernel) & (ky + my * Y.every < Y.kernel)
    w = tl.where(has, w, -1)
    row = ((n * plain(S.inputs[0]) + z) * plain(S.inputs[1]) + y) * long + w
    first, wide = base
    to = first + row.to(tl.int64)[:, None] * wide + c[None, :]
    g = tl.load(gradient + e, mask=live, other=0.0)
    own = (kz * Y.every + ky) * X.every + kx
    of_phase = own[None, :] == tl.arange(0, P.phases)[:, None]
    found = ()
    for m in tl.static_range(MET):
        meets = below(w - m * X.hop, long)
        if (m + 1) * X.every > X.kernel:
            meets &= kx + m * X.every < X.kernel
        rows = to - m * X.hop * wide
        b = tl.load(rows, mask=meets[:, None] & there[None, :], other=0.0)
        a = tl.where(of_phase & meets[None, :], g[None, :], 0.0)
        found = found + (multiply_add(narrow(a, b.dtype), b, sums[m], ACC, DOT),)
    return found


@triton.jit
def by_weight(
    x, ends, places, gradient, out, shares, blocks, S, P: tl.constexpr, ACC: tl.constexpr
):
    """Program (share, channel, m along z and y, block of the input's channels)."""
    Z: tl.constexpr = P.z
    Y: tl.constexpr = P.y
    X: tl.constexpr = P.x
    MET: tl.constexpr = X.taps
    PHASES: tl.constexpr = P.phases
    CHANNELS: tl.constexpr = P.channels
    rest, block = parted(tl.program_id(0), blocks)
    my = rest % Y.taps
    mz = rest // Y.taps % Z.taps
    share, channel = parted(rest // (Y.taps * Z.taps), S.channels)
    c = block * CHANNELS + tl.arange(0, CHANNELS)
    inner = plain(S.inner) * P.unit
    there = c < inner
    group = over(channel, S.group_channels)
    base = (x + group * inner, inner * over(plain(S.channels[0]), S.group_channels))
    first, end = shared(ends, channel, share, shares, S, P.rows)
    sums = ()
    for _ in tl.static_range(MET):
        sums = sums + (tl.zeros([PHASES, CHANNELS], ACC),)
    for at in range(first, end, P.rows):
        e = at + tl.arange(0, P.rows)
        winners = (e, e < end)
        sums = added(sums, winners, (places, gradient), base, (mz, my), (c, there), S, P, ACC)
    faulty = too_many(ends, S)
    index = tl.arange(0, PHASES)
    ky = index // X.every % Y.every + my * Y.every
    of_z = index // (X.every * Y.every)
    kz = of_z + mz * Z.every
    is_tap = (of_z < Z.every) & (kz < Z.kernel) & (ky < Y.kernel)
    for m in tl.static_range(MET):
        kx = index % X.every + m * X.every
        row = (share * plain(S.channels[0]) + channel) * P.taps
        row = row + (kz * Y.kernel + ky) * X.kernel + kx
        to = out + row.to(tl.int64)[:, None] * inner + c[None, :]
        tl.store(
            to,
            tl.where(faulty, float("nan"), sums[m]),
            mask=(is_tap & (kx < X.kernel))[:, None] & there[None, :],
        )
