# mypy: ignore-errors
"""What the Hopper loop does with the sums of a tile: ops, statistic, store.

The tile ops are those of every kernel: Gluon compiles functions of Triton when it calls them, as
long as these make no tensors of their own.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from transfuse.backends.triton.engines.hopper_records import Halves
from transfuse.backends.triton.epilogue.arithmetic import narrow
from transfuse.backends.triton.epilogue.records import Channels
from transfuse.backends.triton.epilogue.statistics_kernel import gather, put
from transfuse.backends.triton.epilogue.tile_ops import apply_ops
from transfuse.backends.triton.strides import CHANNELS as BY_CHANNELS

CHANNELS = gl.constexpr(BY_CHANNELS)


@gluon.jit
def quotient(n, by):
    """``n`` of [0, 2**31) divided by a number of at least 2: see ``strip_sizes.divisor``."""
    magic, shift = by
    high = gl.umulhi(n.to(gl.uint32), magic.to(gl.uint32, bitcast=True))
    return (high >> shift.to(gl.uint32)).to(gl.int32)


@gluon.constexpr_function
def ops_left(pattern, config, after):
    """The ops that are left, where sums start from the first."""
    return after.after.part(1 if config.bias(pattern.alone, after.after) >= 0 else 0)


@gluon.constexpr_function
def rows_layout(axis, vector):
    """A warp along a row of positions, each thread at ``vector`` neighbours; a channel a warp."""
    if axis == 0:
        return gl.BlockedLayout([1, vector], [1, 32], [4, 1], [1, 0])
    return gl.BlockedLayout([vector, 1], [32, 1], [1, 4], [0, 1])


@gluon.constexpr_function
def piece_of(dtype):
    """Channels of a position that are stored together: whole sectors of memory."""
    return 64 if dtype.primitive_bitwidth == 16 else 16


@gluon.constexpr_function
def channels_layout(channels, vector):
    """A warp along the channels of positions, each thread at ``vector`` of them; channels last."""
    lanes = min(32, channels // vector)
    return gl.BlockedLayout([1, vector], [32 // lanes, lanes], [4, 1], [1, 0])


@gluon.jit
def indices(v, C: gl.constexpr):
    """Channels and positions of a tile, in its own layout."""
    LAYOUT: gl.constexpr = v.type.layout
    channel = gl.arange(0, v.shape[C.axis], layout=gl.SliceLayout(1 - C.axis, LAYOUT))
    p = gl.arange(0, v.shape[1 - C.axis], layout=gl.SliceLayout(C.axis, LAYOUT))
    return channel, p


@gluon.jit
def alive(channel, channels, VECTOR: gl.constexpr, P: gl.constexpr):
    """Which channels of a tile are real ones; of ``VECTOR`` neighbours all are, or none."""
    if P.whole:
        return channel == channel
    else:
        return gl.max_constancy(channel < channels, [VECTOR])


@gluon.jit
def finish_tile(
    v, tile, results, sizes,
    CONSUMER: gl.constexpr, P: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """Tile ops, statistic and store of one consumer's share of a tile."""
    out = results.out
    block, cd, ch, first = tile
    AXIS: gl.constexpr = C.axis
    OPS: gl.constexpr = ops_left(P, C, A)
    channel, p = indices(v, C)
    channel += first
    live = alive(channel, sizes.channels, 1, P)
    n0, there, _ = places(p, tile, sizes, 1, 1, CONSUMER, P, C)
    v = apply_ops(v, Channels(channel, live), there, n0, results.operands, OPS, AXIS, P.whole)
    if A.late != "":
        LATE: gl.constexpr = A.late
        gl.static_assert(AXIS == 0, "a statistic takes channels first")
        # A row of partials for each channel of a sample, or of the batch.
        OF_TILE: gl.constexpr = C.sharing * P.classes[0] * P.classes[1]
        sharing = results.sharing
        row = block // sharing * results.counted + channel
        at = row.to(gl.int64) * (sharing * OF_TILE)
        at += block % sharing * OF_TILE + (cd * P.classes[1] + ch) * C.sharing + CONSUMER
        put(results.partials + at, results.plane, gather(v, there, LATE), live)
    if A.stored:
        v = narrow(v, out.dtype.element_ty)
        of_samples, of_channels, _, _, _ = sizes.strides
        out += n0.to(gl.int64) * (of_samples * C.vector)
        if C.store == "rows":
            finish_rows(out, v, tile, sizes, CONSUMER, P, C, A)
        elif C.store == "channels":
            finish_channels(out, v, tile, sizes, first, CONSUMER, P, C, A)
        else:
            _, there, place = places(p, tile, sizes, 1, 1, CONSUMER, P, C)
            write(out, v, channel, live, there, place, of_channels, A, AXIS)


@gluon.jit
def finish_rows(
    out, v, tile, sizes, CONSUMER: gl.constexpr, P: gl.constexpr, C: gl.constexpr, A: gl.constexpr
):
    """Store one consumer's share of a tile, a warp along a row."""
    AXIS: gl.constexpr = C.axis
    ROWS: gl.constexpr = rows_layout(AXIS, C.vector)
    p = gl.arange(0, v.shape[1 - AXIS], layout=gl.SliceLayout(AXIS, ROWS))
    _, there, place = places(p, tile, sizes, C.vector, C.vector, CONSUMER, P, C)
    _, of_channels, _, _, _ = sizes.strides
    apart = of_channels * C.vector
    # One address for every fourth channel; the others lie at one distance from it.
    four = gl.arange(0, 4, layout=gl.SliceLayout(1 - AXIS, ROWS))
    to = gl.expand_dims(four * apart, 1 - AXIS) + gl.expand_dims(place, AXIS)
    four += tile.channel
    here = gl.expand_dims(there, AXIS)
    if not halved_addresses(out.dtype.element_ty, C.vector):
        at = out + tile.channel * apart + to
        write_rows(at, gl.convert_layout(v, ROWS), four, here, sizes.channels, apart, P, C)
    elif near(out, sizes.span):
        # The layout is changed on either side: results are stored while others are on their way.
        at = halves(out + tile.channel * apart + to)
        write_rows(at, gl.convert_layout(v, ROWS), four, here, sizes.channels, 2 * apart, P, C)
    else:
        channel = tile.channel + gl.arange(0, C.channels, layout=gl.SliceLayout(1 - AXIS, ROWS))
        live = alive(channel, sizes.channels, 1, P)
        wide = gl.convert_layout(v, ROWS)
        write(out, wide, channel, live, there, place, of_channels, A, AXIS)


@gluon.jit
def finish_channels(
    out, v, tile, sizes, first,
    CONSUMER: gl.constexpr, P: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """Store one consumer's share of a tile from channel ``first`` on, a warp along channels.

    Piece by piece: a change of layout takes as much shared memory as what is changed.
    """
    CHANNELS: gl.constexpr = v.shape[C.axis]
    if CHANNELS > piece_of(out.dtype.element_ty):
        low, high = halved(v, C.axis)
        finish_channels(out, low, tile, sizes, first, CONSUMER, P, C, A)
        finish_channels(out, high, tile, sizes, first + CHANNELS // 2, CONSUMER, P, C, A)
    else:
        gl.static_assert(C.axis == 1, "a warp goes along channels that are last")
        LAYOUT: gl.constexpr = channels_layout(CHANNELS, C.vector)
        v = gl.convert_layout(v, LAYOUT)
        channel, p = indices(v, C)
        channel += first
        live = alive(channel, sizes.channels, C.vector, P)
        _, there, place = places(p, tile, sizes, 1, C.vector, CONSUMER, P, C)
        write(out, v, channel, live, there, place, 1, A, C.axis)


@gluon.jit
def halved(v, AXIS: gl.constexpr):
    """The lower and the upper half of a tile's channels."""
    CHANNELS: gl.constexpr = v.shape[AXIS]
    POSITIONS: gl.constexpr = v.shape[1 - AXIS]
    if AXIS == 0:
        both = gl.permute(gl.reshape(v, [2, CHANNELS // 2, POSITIONS]), [1, 2, 0])
    else:
        both = gl.permute(gl.reshape(v, [POSITIONS, 2, CHANNELS // 2]), [0, 2, 1])
    return gl.split(both)


@gluon.constexpr_function
def halved_addresses(dtype, vector):
    """Whether the lower halves of addresses are moved alone: one addition in place of two.

    That takes another way to store, for tiles on both sides of a border of 4 GiB. It is worth it
    for single results of 16 bits; for those of 32 the longer code was measured to cost more.
    """
    return vector == 1 and dtype.primitive_bitwidth == 16


@gluon.jit
def near(out, span):
    """Whether so many elements of 16 bits from an address on have the same upper half of theirs."""
    low = out.to(gl.int64) & 0xFFFFFFFF
    return low + 2 * span.to(gl.int64) < 1 << 32


@gluon.jit
def places(
    p, tile, sizes, RUN: gl.constexpr, ALIGNED: gl.constexpr,
    CONSUMER: gl.constexpr, P: gl.constexpr, C: gl.constexpr,
):  # fmt: skip
    """For positions of a tile: its first sample, which are results, where they lie from there.

    Of ``RUN`` neighbours all are results or none, and they lie side by side. The first of them lies
    at a multiple of ``ALIGNED``.
    """
    START: gl.constexpr = CONSUMER * C.positions * P.joined
    of_samples, _, of_depth, of_height, of_width = sizes.strides
    block = tile.block
    if P.cross:
        n0 = quotient(block * C.tile, sizes.by_sample)
        at = (block * C.tile - n0 * sizes.sample) * P.joined + START + p
        ahead = quotient(at, sizes.by_space)
        at -= ahead * sizes.space
        there = n0 + ahead < sizes.batch
    else:
        n0 = quotient(2 * block, sizes.by_tiles)
        at = (block - n0 * sizes.tiles_of_sample) * (C.tile * P.joined) + START + p
        there = at < sizes.space
    d = 0
    h = 0
    if not P.linear:  # rows do not follow each other as results do
        depth, height, width = sizes.results
        if P.rank > 2:
            d = quotient(at, sizes.by_area)
            at -= d * sizes.area
            d = d * P.classes[0] + tile.cd
            there &= d < depth
        if P.rank > 1:
            if P.thin:
                h = at
                at = 0 * at
            else:
                h = quotient(at, sizes.by_line)
                at -= h * sizes.line
            h = h * P.classes[1] + tile.ch
            there &= h < height
        there &= at < width
    place = at if RUN > 1 else at * of_width
    if P.cross:
        place += ahead * (of_samples * C.vector)
    if P.rank > 2 and not P.linear:
        place += d * of_depth
    if P.rank > 1 and not P.linear:
        place += h * of_height
    # The compiler heeds this of what this very function computes, not of its arguments and results.
    there = gl.max_constancy(there, [RUN])
    return n0, there, gl.max_contiguous(gl.multiple_of(place, [ALIGNED]), [RUN])


@gluon.jit
def halves(out):
    """Addresses as lower and upper half, and their type: a step within 4 GiB is one addition."""
    at = out.to(gl.int64)
    return Halves(at.to(gl.int32), (at >> 32).to(gl.int32), out)


@gluon.jit
def write_rows(out, v, channel, there, channels, apart, P: gl.constexpr, C: gl.constexpr):
    """Store a tile's channels four at a time; where, and which channels would come after them.

    ``out`` are addresses of the first four, ``channel`` their numbers, ``apart`` how far two lie:
    in elements, or in bytes where addresses are halved.
    """
    if v.shape[C.axis] > 4:
        low, high = halved(v, C.axis)
        out, channel = write_rows(out, low, channel, there, channels, apart, P, C)
        return write_rows(out, high, channel, there, channels, apart, P, C)
    else:
        v = gl.convert_layout(v, rows_layout(C.axis, C.vector), assert_trivial=True)
        if not P.whole:
            there &= gl.expand_dims(channel < channels, 1 - C.axis)
        if halved_addresses(v.dtype, C.vector):
            low, high, like = out
            at = gl.inline_asm_elementwise(
                "mov.b64 $0, {$1, $2};", "=l,r,r", [low, high], dtype=gl.int64, is_pure=True, pack=1
            )
            gl.store(at.to(like.dtype), v, mask=there)
            return Halves(low + 4 * apart, high, like), channel + 4
        else:
            gl.store(out, v, mask=there)
            return out + 4 * apart, channel + 4


@triton.jit
def write(out, v, channel, live, there, place, of_channels, A: tl.constexpr, AXIS: tl.constexpr):
    """Store a tile as it lies; ``place`` has where the positions of a channel lie."""
    if A.summed:
        tl.store(out + tl.expand_dims(place, AXIS), v, mask=tl.expand_dims(there, AXIS))
    else:
        if A.inner != CHANNELS:
            channel = channel * of_channels
        target = tl.expand_dims(channel, 1 - AXIS) + tl.expand_dims(place, AXIS)
        keep = tl.expand_dims(live, 1 - AXIS) & tl.expand_dims(there, AXIS)
        tl.store(out + target, v, mask=keep)
