# mypy: ignore-errors
"""A transposed convolution with few output channels, on no tensor cores: one launch, no copies.

With ``o + p = s*q + r`` along every axis (``q`` the anchor, ``r`` the phase)

    y[n, co, s*q + r - p] = sum over ci and j of x[n, ci, q - j] * w[ci, co, s*j + r]

A thread holds the sums of all phases and all channels of its anchors, so that an input that it has
loaded meets all weights that it is ever multiplied with by that tap, and these are numbers that all
threads share. Inputs lie side by side along width, as the anchors of neighbouring threads do. Sums
are products of the compute type, one after another: no rounding to tf32.
``T`` is a ``FewTile``, ``A`` an ``Epilogue``; ``sizes`` are ``FewSizes``.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.places_kernel import write
from transfuse.backends.triton.epilogue.records import Channels, Coordinates, Operands
from transfuse.backends.triton.epilogue.tile_ops import apply_ops
from transfuse.backends.triton.told_kernel import parted, plain

CHECKED = tl.constexpr(1024)
"""Weights that a program looks at at once."""


@triton.jit
def finite(weight, sizes, T: tl.constexpr, ACC: tl.constexpr):
    """Whether all weights are."""
    COUNT: tl.constexpr = T.weights
    TAPS: tl.constexpr = T.kernel[0] * T.kernel[1] * T.kernel[2]
    total = plain(sizes.channels) * COUNT
    wild = tl.zeros([CHECKED], tl.int32)
    for start in range(0, total, CHECKED):
        at = start + tl.arange(0, CHECKED)
        place = (at // COUNT).to(tl.int64) * plain(sizes.weights)
        place += at % COUNT // TAPS * T.order[0]
        place += at % TAPS // (T.kernel[2] * T.kernel[1]) * T.order[1]
        place += at // T.kernel[2] % T.kernel[1] * T.order[2] + at % T.kernel[2] * T.order[3]
        v = tl.load(weight + place, mask=at < total, other=0.0).to(ACC)
        wild |= tl.where(v - v == 0, 0, 1)
    return tl.max(wild, 0) == 0


@triton.jit
def back(strides, T: tl.constexpr, TAP: tl.constexpr):
    """How far before an anchor's own input that of a tap lies."""
    far = plain(strides[2]).to(tl.int64) * T.taps[TAP][0]
    far += plain(strides[3]).to(tl.int64) * T.taps[TAP][1]
    return far + T.taps[TAP][2]


@triton.jit
def among(at, j, size):
    """Whether the inputs ``j`` before those ``at`` a place are there: below 0 is above all."""
    return (at - j).to(tl.uint32) < plain(size).to(tl.uint32)


@triton.jit
def reached(at, sizes, T: tl.constexpr, TAP: tl.constexpr):
    """For which anchors a tap finds an input; None: for all."""
    there = None
    for axis in tl.static_range(3):
        if T.leaves[axis]:
            here = among(at[axis], T.taps[TAP][axis], sizes.inputs[axis])
            if there is None:
                there = here
            else:
                there &= here
    return there


@triton.jit
def inputs_of(source, there, ci, strides, T: tl.constexpr, ACC: tl.constexpr):
    """The channels of a step that one tap reads: a tuple."""
    TOGETHER: tl.constexpr = T.together
    found = ()
    for i in tl.static_range(TOGETHER):
        channel = source + (ci + i).to(tl.int64) * plain(strides[1])
        if there is None:
            found = found + (tl.load(channel).to(ACC),)
        else:
            found = found + (tl.load(channel, mask=there, other=0.0).to(ACC),)
    return found


@triton.jit
def added(acc, x, there, weight, sizes, T: tl.constexpr, TAP: tl.constexpr, CAREFUL: tl.constexpr):
    """The sums with what one tap gives. ``CAREFUL``: an input that is not there is no factor."""
    TOGETHER: tl.constexpr = T.together
    found = ()
    for i in tl.static_range(len(acc)):
        one = acc[i]
        if T.factors[TAP][i] >= 0:
            for c in tl.static_range(TOGETHER):
                place = weight + plain(sizes.weights).to(tl.int64) * c + T.factors[TAP][i]
                more = one + x[c] * tl.load(place).to(one.dtype)
                if CAREFUL and there is not None:
                    one = tl.where(there, more, one)
                else:
                    one = more
        found = found + (one,)
    return found


@triton.jit
def sums(source, at, weight, sizes, T: tl.constexpr, ACC: tl.constexpr, CAREFUL: tl.constexpr):
    """All sums of the anchors whose inputs lie ``at`` a place: a tuple."""
    ANCHORS: tl.constexpr = T.anchors
    SUMS: tl.constexpr = T.sums
    acc = ()
    for _ in tl.static_range(SUMS):
        acc = acc + (tl.zeros([ANCHORS], ACC),)
    for step in range(plain(sizes.steps)):
        ci = step * T.together
        first = weight + ci.to(tl.int64) * plain(sizes.weights)
        for tap in tl.static_range(len(T.taps)):
            there = reached(at, sizes, T, tap)
            from_tap = source - back(sizes.source, T, tap)
            x = inputs_of(from_tap, there, ci, sizes.source, T, ACC)
            acc = added(acc, x, there, first, sizes, T, tap, CAREFUL)
    return acc


@triton.jit
def interleaved(values, FIRST: tl.constexpr, STEP: tl.constexpr, COUNT: tl.constexpr):
    """Every ``STEP``-th of some values from ``FIRST`` on, side by side in axes of their own."""
    if COUNT == 1:
        return values[FIRST]
    else:
        even = interleaved(values, FIRST, 2 * STEP, COUNT // 2)
        odd = interleaved(values, FIRST + STEP, 2 * STEP, COUNT // 2)
        return tl.join(even, odd)


@triton.jit
def tile_of(acc, row, T: tl.constexpr):
    """The sums of a phase of depth and height, as channels times positions."""
    ANCHORS: tl.constexpr = T.anchors
    CHANNELS: tl.constexpr = T.channels
    WIDE: tl.constexpr = T.wide
    values = ()
    for w in tl.static_range(WIDE):
        for co in tl.static_range(CHANNELS):
            if w < T.stride[2] and co < T.outputs:
                values = values + (acc[(row * T.stride[2] + w) * T.outputs + co],)
            else:
                values = values + (tl.zeros_like(acc[0]),)
    v = interleaved(values, 0, 1, WIDE * CHANNELS)
    return v.reshape(ANCHORS, WIDE, CHANNELS).permute(2, 0, 1).reshape(CHANNELS, ANCHORS * WIDE)


@triton.jit
def anchor_of(anchor, sizes):
    """Depth, height and width of an anchor."""
    d, anchor = parted(anchor, sizes.plane)
    h, w = parted(anchor, sizes.line)
    return d, h, w


@triton.jit
def places(n, start, row: tl.constexpr, sizes, T: tl.constexpr):
    """Where the positions of a tile lie, and which of them are results."""
    ANCHORS: tl.constexpr = T.anchors
    WIDE: tl.constexpr = T.wide
    p = tl.arange(0, ANCHORS * WIDE)
    anchor = start + p // WIDE
    phase = p % WIDE
    there = anchor < plain(sizes.anchors)
    if WIDE > T.stride[2]:
        there &= phase < T.stride[2]
    d, h, w = anchor_of(anchor, sizes)
    d = d * T.stride[0] + row // T.stride[1]
    h = h * T.stride[1] + row % T.stride[1]
    w = w * T.stride[2] + phase
    if T.cropped:
        d -= plain(sizes.back[0])
        h -= plain(sizes.back[1])
        w -= plain(sizes.back[2])
        there &= (d >= 0) & (h >= 0) & (w >= 0) & (d < plain(sizes.results[0]))
        there &= (h < plain(sizes.results[1])) & (w < plain(sizes.results[2]))
    return Coordinates(n, d, h, w), there


@triton.jit
def few_outputs(
    x, weight, out, tensors, numbers, strides, sizes, to,
    T: tl.constexpr, A: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Program (sample, anchors): a tile of them, and all that follows it."""
    AFTER: tl.constexpr = A.after
    ANCHORS: tl.constexpr = T.anchors
    CHANNELS: tl.constexpr = T.channels
    STORED: tl.constexpr = 1 if A.summed else CHANNELS
    ROWS: tl.constexpr = T.stride[0] * T.stride[1]
    UNIT: tl.constexpr = T.unit
    WHOLE: tl.constexpr = CHANNELS == T.outputs
    operands = Operands(tensors, numbers, strides)
    n, block = parted(tl.program_id(0), sizes.blocks)
    start = block * T.anchors
    # Those past the last anchor read what it reads.
    anchor = tl.minimum(start + tl.arange(0, ANCHORS), plain(sizes.anchors) - 1)
    d, h, w = anchor_of(anchor, sizes)
    d += plain(sizes.first[0])
    h += plain(sizes.first[1])
    w += plain(sizes.first[2])
    at = (d, h, w)
    source = d.to(tl.int64) * plain(sizes.source[2]) + h.to(tl.int64) * plain(sizes.source[3])
    source = x + source + n.to(tl.int64) * plain(sizes.source[0]) + w
    if T.outside:
        # Zeros stand for what is not there, and times NaN or Inf they would be NaN.
        if finite(weight, sizes, T, ACC):
            acc = sums(source, at, weight, sizes, T, ACC, False)
        else:
            acc = sums(source, at, weight, sizes, T, ACC, True)
    else:
        acc = sums(source, at, weight, sizes, T, ACC, False)
    channel = tl.arange(0, CHANNELS)
    channels = Channels(channel, channel < T.outputs)
    stored = tl.arange(0, STORED)
    into = Channels(stored, stored < T.outputs)
    for row in tl.static_range(ROWS):
        spot, there = places(n, start, row, sizes, T)
        v = tile_of(acc, row, T)
        v = apply_ops(v, channels, there, n, operands, AFTER, 0, WHOLE, spot)
        write(out, v, into, there, spot, plain(to.part), to, A, UNIT, WHOLE or A.summed)
