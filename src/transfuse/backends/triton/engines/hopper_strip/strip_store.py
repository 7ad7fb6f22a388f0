# mypy: ignore-errors
"""What the Hopper loop does with the sums of a tile: ops, statistic, store.

The tile ops are those of every kernel: Gluon compiles functions of Triton when it calls them, as
long as these make no tensors of their own.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from transfuse.backends.triton.epilogue.arithmetic import narrow
from transfuse.backends.triton.epilogue.records import Channels
from transfuse.backends.triton.epilogue.statistics_kernel import gather, put
from transfuse.backends.triton.epilogue.tile_ops import apply_ops


@gluon.constexpr_function
def rows_of(geometry, config):
    """The tile as ``tiles.py`` takes it."""
    return geometry.rows(config.tile)


@gluon.constexpr_function
def ops_left(geometry, config, after):
    """The ops that are left, where sums start from the first."""
    return after.after.rest(1 if config.bias(geometry, after.after) >= 0 else 0)


@gluon.constexpr_function
def rows_layout(axis, vector):
    """A warp along a row of positions, each thread at ``vector`` neighbours; a channel a warp."""
    if axis == 0:
        return gl.BlockedLayout([1, vector], [1, 32], [4, 1], [1, 0])
    return gl.BlockedLayout([vector, 1], [32, 1], [1, 4], [0, 1])


@gluon.jit
def indices(v, C: gl.constexpr):
    """Channels and positions of a tile, in its own layout."""
    LAYOUT: gl.constexpr = v.type.layout
    channel = gl.arange(0, C.channels, layout=gl.SliceLayout(1 - C.axis, LAYOUT))
    p = gl.arange(0, v.shape[1 - C.axis], layout=gl.SliceLayout(C.axis, LAYOUT))
    return channel, p


@gluon.jit
def finish_tile(
    v, tile, results, CONSUMER: gl.constexpr, G: gl.constexpr, C: gl.constexpr, A: gl.constexpr
):
    """Tile ops, statistic and store of one consumer's share of a tile."""
    out = results.out
    batch = results.batch
    block, cd, ch, first = tile
    AXIS: gl.constexpr = C.axis
    OPS: gl.constexpr = ops_left(G, C, A)
    WHOLE: gl.constexpr = G.channels % C.channels == 0
    channel, p = indices(v, C)
    channel += first
    live = channel < G.channels
    n0, there, _ = places(p, tile, batch, CONSUMER, G, C, A)
    v = apply_ops(v, Channels(channel, live), there, n0, results.operands, 1, OPS, AXIS, WHOLE)
    if A.late != "":
        LATE: gl.constexpr = A.late
        gl.static_assert(AXIS == 0, "a statistic takes channels first")
        # A row of partials for each channel of a sample, or of the batch.
        OF_TILE: gl.constexpr = C.consumers * G.classes[0] * G.classes[1]
        counted = results.counted
        at = (block // counted * A.counted + channel).to(gl.int64) * (counted * OF_TILE)
        at += block % counted * OF_TILE + (cd * G.classes[1] + ch) * C.consumers + CONSUMER
        put(results.partials + at, results.plane, gather(v, there, LATE), live)
    if A.stored:
        v = narrow(v, out.dtype.element_ty)
        if C.store == "rows" and not A.summed:
            ROWS: gl.constexpr = rows_layout(AXIS, C.vector)
            v = gl.convert_layout(v, ROWS)
            channel = gl.arange(0, 4, layout=gl.SliceLayout(1 - AXIS, ROWS))
            p = gl.arange(0, v.shape[1 - AXIS], layout=gl.SliceLayout(AXIS, ROWS))
            n0, there, place = places(p, tile, batch, CONSUMER, G, C, A)
            # One address for every fourth channel; the others lie at known distances.
            out += n0.to(gl.int64) * A.strides[0] + first * A.strides[1]
            out += gl.expand_dims(channel * A.strides[1], 1 - AXIS) + gl.expand_dims(place, AXIS)
            write_rows(out, v, first + channel, gl.expand_dims(there, AXIS), 0, G, C, A)
        else:
            n0, there, place = places(p, tile, batch, CONSUMER, G, C, A)
            write(out, v, channel, live, n0, there, place, A, AXIS)


@triton.jit
def anchors(tile, p, T: tl.constexpr):
    """Sample and anchor of each result ``p`` of a tile, width classes side by side: n, d, h, w."""
    LINE: tl.constexpr = T.extent[2] * T.joined
    PLANE: tl.constexpr = T.extent[1] * LINE
    if T.cross:  # tiles run on from one sample into the next
        at = tile * (T.positions * T.joined) + p
        n = at // (T.extent[0] * PLANE)
        at = at % (T.extent[0] * PLANE)
    else:
        n = tile // T.tiles_of_sample + 0 * p
        at = tile % T.tiles_of_sample * (T.positions * T.joined) + p
    return n, at // PLANE, at // LINE % T.extent[1], at % LINE


@gluon.jit
def places(
    p, tile, batch, CONSUMER: gl.constexpr, G: gl.constexpr, C: gl.constexpr, A: gl.constexpr
):
    """For positions of a tile: its first sample, which are results, where they lie from there."""
    block, cd, ch, _ = tile
    T: gl.constexpr = rows_of(G, C)
    START: gl.constexpr = CONSUMER * C.positions * G.joined
    n0, _, _, _ = anchors(block, START, T)
    if A.linear:  # rows follow each other as results do
        at = block % T.tiles_of_sample * (C.tile * G.joined) + START + p
        return n0, (at < G.sample * G.joined) & (n0 < batch), at * A.strides[4]
    else:
        n, d, h, u = anchors(block, START + p, T)
        yd = d * G.classes[0] + cd
        yh = h * G.classes[1] + ch
        there = (n < batch) & (yd < G.results[0]) & (yh < G.results[1]) & (u < G.results[2])
        place = (n - n0) * A.strides[0] + yd * A.strides[2] + yh * A.strides[3]
        return n0, there, place + u * A.strides[4]


@gluon.jit
def write_rows(
    out, v, channel, there,
    FIRST: gl.constexpr, G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """Store a tile's channels from ``FIRST`` on, four at a time.

    ``out`` are addresses of its first four, ``channel`` their numbers.
    """
    CHANNELS: gl.constexpr = v.shape[C.axis]
    POSITIONS: gl.constexpr = v.shape[1 - C.axis]
    if CHANNELS > 4:
        if C.axis == 0:
            both = gl.permute(gl.reshape(v, [2, CHANNELS // 2, POSITIONS]), [1, 2, 0])
        else:
            both = gl.permute(gl.reshape(v, [POSITIONS, 2, CHANNELS // 2]), [0, 2, 1])
        low, high = gl.split(both)
        write_rows(out, low, channel, there, FIRST, G, C, A)
        write_rows(out, high, channel, there, FIRST + CHANNELS // 2, G, C, A)
    elif G.channels > C.channels or G.channels > FIRST:
        v = gl.convert_layout(v, rows_layout(C.axis, C.vector), assert_trivial=True)
        if G.channels % C.channels != 0 and (G.channels > C.channels or G.channels < FIRST + 4):
            there &= gl.expand_dims(FIRST + channel < G.channels, 1 - C.axis)
        gl.store(out + FIRST * A.strides[1], v, mask=there)


@triton.jit
def write(out, v, channel, live, n0, there, place, A: tl.constexpr, AXIS: tl.constexpr):
    """Store a tile. Offsets from a sample's first result fit 32 bits."""
    out += n0.to(tl.int64) * A.strides[0]
    if A.summed:
        tl.store(out + tl.expand_dims(place, AXIS), v, mask=tl.expand_dims(there, AXIS))
    else:
        target = tl.expand_dims(channel * A.strides[1], 1 - AXIS) + tl.expand_dims(place, AXIS)
        keep = tl.expand_dims(live, 1 - AXIS) & tl.expand_dims(there, AXIS)
        tl.store(out + target, v, mask=keep)
