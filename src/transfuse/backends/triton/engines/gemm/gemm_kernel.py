# mypy: ignore-errors
"""A transposed convolution whose strides divide its kernel, as one matrix product.

With ``o + p = s*q + r`` along every axis (``q`` the anchor, ``r`` the phase) all outputs of an
anchor read the same inputs:

    y[n, co, s*q + r - p] = sum over ci and j in [0, k/s) of x[n, ci, q - j] * w[ci, co, s*j + r]

Rows of the product are all phases of all output channels, columns are anchors. What is stored lies
elsewhere than it was computed: the phases of neighbouring anchors are neighbours. ``T`` is a
``GemmTile``, ``A`` an ``Epilogue``; ``sizes`` are ``GemmSizes``.

The input is the right factor, which tensor cores read from shared memory. As the left one it would
be taken from registers where it is rounded, and Triton 3.6 overwrites these too early.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import multiply_add, nearest_tf32
from transfuse.backends.triton.epilogue.places_kernel import write
from transfuse.backends.triton.epilogue.records import Channels, Coordinates, Operands
from transfuse.backends.triton.epilogue.tile_ops import apply_ops
from transfuse.backends.triton.told_kernel import parted, plain


@triton.jit
def inputs_of(x, n, at, k, T: tl.constexpr):
    """Channels from ``k`` on of inputs from ``at`` on: [depth, anchors]."""
    ANCHORS: tl.constexpr = T.anchors
    DEPTH: tl.constexpr = T.depth
    if T.channels_last:
        found = x.load([n, at, k]).reshape(ANCHORS, DEPTH)
    else:
        found = x.load([n, k, at]).reshape(DEPTH, ANCHORS)
    if T.tf32:
        found = nearest_tf32(found)
    if T.channels_last:
        found = found.T
    return found


@triton.jit
def weights_of(w, row, tap, k, T: tl.constexpr):
    """Channels from ``k`` on of weights from ``row`` on: [rows, depth]."""
    ROWS: tl.constexpr = T.rows
    DEPTH: tl.constexpr = T.depth
    if T.packed:
        return w.load([tap, row, k]).reshape(ROWS, DEPTH)
    else:
        return w.load([k, row]).T


@triton.jit
def offset_of(tap, sizes, T: tl.constexpr):
    """How far before an anchor's input the one of a tap lies."""
    deep = tap // (T.taps[2] * T.taps[1])
    high = tap // T.taps[2] % T.taps[1]
    return deep * plain(sizes.plane[0]) + high * plain(sizes.line[0]) + tap % T.taps[2]


@triton.jit
def product(x, w, n, at, row, sizes, T: tl.constexpr, ACC: tl.constexpr):
    """The sums of a tile: [rows, anchors]."""
    ANCHORS: tl.constexpr = T.anchors
    ROWS: tl.constexpr = T.rows
    TAPS: tl.constexpr = T.taps[0] * T.taps[1] * T.taps[2]
    acc = tl.zeros([ROWS, ANCHORS], ACC)
    for step in range(TAPS * plain(sizes.steps[0])):
        if TAPS > 1:
            tap, k = parted(step, sizes.steps)
            right = inputs_of(x, n, at - offset_of(tap, sizes, T), k * T.depth, T)
            acc = multiply_add(weights_of(w, row, tap, k * T.depth, T), right, acc, ACC, "tf32")
        else:
            k = step * T.depth
            left = weights_of(w, row, 0, k, T)
            acc = multiply_add(left, inputs_of(x, n, at, k, T), acc, ACC, "tf32")
    return acc


@triton.jit
def shuffled(acc, T: tl.constexpr):
    """The sums of a tile as channels times positions."""
    ANCHORS: tl.constexpr = T.anchors
    CHANNELS: tl.constexpr = T.channels
    HELD: tl.constexpr = T.held
    WIDE: tl.constexpr = T.phases[2]
    if T.channels_inner:
        v = acc.reshape(HELD, CHANNELS, ANCHORS).permute(1, 2, 0)
    else:
        v = acc.reshape(CHANNELS, HELD // WIDE, WIDE, ANCHORS).permute(0, 1, 3, 2)
    return v.reshape(CHANNELS, ANCHORS * HELD)


@triton.jit
def positions(phase, T: tl.constexpr):
    """The anchor and the phase of each position of a tile whose first phase is ``phase``."""
    ANCHORS: tl.constexpr = T.anchors
    HELD: tl.constexpr = T.held
    WIDE: tl.constexpr = T.phases[2]
    at = tl.arange(0, ANCHORS * HELD)
    if T.channels_inner:
        return at // HELD, phase + at % HELD
    else:
        return at // WIDE % ANCHORS, at // (WIDE * ANCHORS) * WIDE + at % WIDE


@triton.jit
def places(n, start, phase, sizes, T: tl.constexpr):
    """Where the positions of a tile lie, and which of them are results."""
    anchor, phase = positions(phase, T)
    anchor = start + anchor
    there = anchor < plain(sizes.anchors)
    if T.crosses:
        n, anchor = parted(anchor, sizes.sample)
    d, anchor = parted(anchor, sizes.plane)
    h, w = parted(anchor, sizes.line)
    d = d * T.phases[0] + phase // (T.phases[2] * T.phases[1])
    h = h * T.phases[1] + phase // T.phases[2] % T.phases[1]
    w = w * T.phases[2] + phase % T.phases[2]
    if T.cropped:
        d -= plain(sizes.back[0])
        h -= plain(sizes.back[1])
        w -= plain(sizes.back[2])
        there &= (d >= 0) & (h >= 0) & (w >= 0) & (d < plain(sizes.results[0]))
        there &= (h < plain(sizes.results[1])) & (w < plain(sizes.results[2]))
    return Coordinates(n, d, h, w), there


@triton.jit
def multiply(
    x, w, out, tensors, numbers, strides, sizes, to,
    T: tl.constexpr, A: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Tiles of the product, and all that follows each; as many at once as programs run.

    The loops are joined into one, so that what a tile reads first is on its way while the one
    before is stored.
    """
    CHANNELS: tl.constexpr = T.channels
    WHOLE: tl.constexpr = T.whole
    UNIT: tl.constexpr = T.unit
    AFTER: tl.constexpr = A.after
    operands = Operands(tensors, numbers, strides)
    tiles = plain(sizes.tiles)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        block, of_rows = parted(tile, sizes.rows)
        n, block = parted(block, sizes.blocks)
        of_phases, of_channels = parted(of_rows, sizes.channel_blocks)
        start = block * T.anchors
        row = of_phases * plain(sizes.phase_rows) + of_channels * T.rows
        acc = product(x, w, n, start + plain(sizes.first), row, sizes, T, ACC)
        channel = of_channels * T.channels + tl.arange(0, CHANNELS)
        channels = Channels(channel, channel < plain(sizes.outputs))
        at, there = places(n, start, of_phases * T.held, sizes, T)
        v = shuffled(acc, T)
        v = apply_ops(v, channels, there, n, operands, AFTER, 0, WHOLE, at)
        # There is but one share: that of number 0.
        write(out, v, channels, there, at, plain(to.part), to, A, UNIT, WHOLE)
