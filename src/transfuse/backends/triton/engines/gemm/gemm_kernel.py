# mypy: ignore-errors
"""A transposed convolution whose strides divide its kernel, as one matrix product.

With ``o + p = s*q + r`` along every axis (``q`` the anchor, ``r`` the phase) all outputs of an
anchor read the same inputs:

    y[n, co, s*q + r - p] = sum over ci and j in [0, k/s) of x[n, ci, q - j] * w[ci, co, s*j + r]

Rows of the product are anchors, columns all phases of all output channels. What is stored lies
elsewhere than it was computed: the phases of neighbouring anchors are neighbours. ``T`` is a
``GemmTile``, ``A`` an ``Epilogue``; ``sizes`` are ``GemmSizes``.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import multiply_add, narrow, nearest_tf32
from transfuse.backends.triton.epilogue.places_kernel import (
    channel_offsets,
    offsets,
    put_apart,
    put_together,
)
from transfuse.backends.triton.epilogue.records import Channels, Coordinates, Operands
from transfuse.backends.triton.epilogue.tile_ops import apply_ops
from transfuse.backends.triton.told_kernel import over, parted, plain


@triton.jit
def rows_of(x, n, at, k, T: tl.constexpr):
    """Inputs from position ``at`` on, of channels from ``k`` on: [anchors, depth]."""
    ANCHORS: tl.constexpr = T.anchors
    DEPTH: tl.constexpr = T.depth
    if T.channels_last:
        found = x.load([n, at, k]).reshape(ANCHORS, DEPTH)
    else:
        found = x.load([n, k, at]).reshape(DEPTH, ANCHORS).T
    if T.tf32:
        found = nearest_tf32(found)
    return found


@triton.jit
def columns_of(w, column, tap, k, T: tl.constexpr):
    """Weights of a tile's columns: [depth, columns]."""
    COLUMNS: tl.constexpr = T.columns
    DEPTH: tl.constexpr = T.depth
    if T.packed:
        return w.load([column, tap, k]).reshape(COLUMNS, DEPTH).T
    else:
        return w.load([k, column])


@triton.jit
def product(x, w, n, at, column, channels, T: tl.constexpr, ACC: tl.constexpr):
    """The sums of a tile: [anchors, columns]."""
    ANCHORS: tl.constexpr = T.anchors
    COLUMNS: tl.constexpr = T.columns
    acc = tl.zeros([ANCHORS, COLUMNS], ACC)
    k = 0
    tap = 0
    for _ in range(T.taps * ((channels + T.depth - 1) // T.depth)):
        rows = rows_of(x, n, at - tap, k, T)
        acc = multiply_add(rows, columns_of(w, column, tap, k, T), acc, ACC, "tf32")
        k += T.depth
        if T.taps > 1:
            tap += tl.where(k >= channels, 1, 0)
            k = tl.where(k >= channels, 0, k)
    return acc


@triton.jit
def shuffled(acc, T: tl.constexpr):
    """The sums of a tile as channels times positions."""
    ANCHORS: tl.constexpr = T.anchors
    CHANNELS: tl.constexpr = T.channels
    LINES: tl.constexpr = T.phases[0] * T.phases[1]
    WIDE: tl.constexpr = T.phases[2]
    if T.channels_inner:
        v = acc.reshape(ANCHORS, LINES * WIDE, CHANNELS).permute(2, 0, 1)
    else:
        v = acc.reshape(ANCHORS, CHANNELS, LINES, WIDE).permute(1, 2, 0, 3)
    return v.reshape(CHANNELS, ANCHORS * LINES * WIDE)


@triton.jit
def positions(T: tl.constexpr):
    """Anchor, phases of depth and height as one number, and phase of width of each position."""
    ANCHORS: tl.constexpr = T.anchors
    LINES: tl.constexpr = T.phases[0] * T.phases[1]
    WIDE: tl.constexpr = T.phases[2]
    at = tl.arange(0, ANCHORS * LINES * WIDE)
    if T.channels_inner:
        return at // (LINES * WIDE), at // WIDE % LINES, at % WIDE
    else:
        return at // WIDE % ANCHORS, at // (WIDE * ANCHORS), at % WIDE


@triton.jit
def places(n, start, sizes, T: tl.constexpr):
    """Where the positions of a tile lie, and which of them are results."""
    anchor, line, rw = positions(T)
    anchor = start + anchor
    there = anchor < plain(sizes.anchors)
    if T.crosses:
        n, anchor = parted(anchor, sizes.sample)
    d, anchor = parted(anchor, sizes.plane)
    h, w = parted(anchor, sizes.line)
    d = d * T.phases[0] + line // T.phases[1]
    h = h * T.phases[1] + line % T.phases[1]
    w = w * T.phases[2] + rw
    if T.cropped:
        d -= plain(sizes.back[0])
        h -= plain(sizes.back[1])
        w -= plain(sizes.back[2])
        there &= (d >= 0) & (h >= 0) & (w >= 0) & (d < plain(sizes.results[0]))
        there &= (h < plain(sizes.results[1])) & (w < plain(sizes.results[2]))
    return Coordinates(n, d, h, w), there


@triton.jit
def store(out, v, channels, there, at, to, A: tl.constexpr, T: tl.constexpr):
    """Store a tile, channels first."""
    INNER: tl.constexpr = A.inner
    UNIT: tl.constexpr = T.unit
    WHOLE: tl.constexpr = T.whole
    v = narrow(v, out.dtype.element_ty)
    c = channel_offsets(channels.number, to.strides, INNER)
    p = offsets(at, to.strides, INNER, A.wide)
    if T.unit > 1:
        put_together(out, v, c, p, channels.live, there, INNER, UNIT, WHOLE)
    else:
        put_apart(out, v, c, p, channels.live, there, INNER, WHOLE)


@triton.jit
def multiply(
    x, w, out, tensors, numbers, strides, sizes, to,
    T: tl.constexpr, A: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Program (sample, anchors, columns): one tile of the product, and all that follows it."""
    CHANNELS: tl.constexpr = T.channels
    WHOLE: tl.constexpr = T.whole
    AFTER: tl.constexpr = A.after
    block, of_columns = parted(tl.program_id(0), sizes.columns)
    n, block = parted(block, sizes.blocks)
    start = block * T.anchors
    first = start + plain(sizes.first)
    channels = plain(sizes.channels)
    acc = product(x, w, n, first, of_columns * T.columns, channels, T, ACC)
    channel = of_columns * T.channels + tl.arange(0, CHANNELS)
    block_of_channels = Channels(channel, channel < plain(sizes.outputs))
    at, there = places(n, start, sizes, T)
    operands = Operands(tensors, numbers, strides)
    v = apply_ops(
        shuffled(acc, T), block_of_channels, there, n, operands, 1, AFTER, 0, WHOLE, at
    )
    store(out, v, block_of_channels, there, at, to, A, T)
