# mypy: ignore-errors
"""The convolution of one tile and all that follows it up to the next cut, in one kernel.

``acc[co, p] = sum over taps and channels of w[co, tap, ci] * x[p + offset(tap), ci]``, once for
every member of the window; members meet in a running maximum or sum, width classes are joined so
that neighbours in memory are stored together, then come the tile ops, the statistic, the store.
``T`` is a ``Tile``, ``A`` an ``Epilogue``, ``M`` a ``Multiply``: all that is known when a kernel is
compiled. What is known when it runs goes from function to function in the records of
``tile_records.py``; ``S`` are its ``TileSizes``.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.engines.portable.anchored_kernel import (
    channels_of,
    full_of_members,
    full_of_results,
    member_places,
    result_places,
)
from transfuse.backends.triton.engines.portable.anchors import anchors
from transfuse.backends.triton.engines.portable.sums_kernel import outputs
from transfuse.backends.triton.engines.portable.tile_records import (
    Cell,
    ChannelBlock,
    Factors,
    Into,
    Stored,
)
from transfuse.backends.triton.epilogue.arithmetic import larger, negative
from transfuse.backends.triton.epilogue.places_kernel import write
from transfuse.backends.triton.epilogue.records import Channels, Operands
from transfuse.backends.triton.epilogue.statistics_kernel import gather_tile, join, nothing, put
from transfuse.backends.triton.epilogue.tile_ops import apply_ops
from transfuse.backends.triton.told_kernel import parted, plain


@triton.jit
def meet(
    factors, cell, block, share, partial, operands, S,
    T: tl.constexpr, A: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """The results of one class: the convolution's outputs, or what a window makes of them.

    ``share``: which of the shares of the window's members. What is gathered before the window goes
    on with ``partial``.
    """
    CHANNELS: tl.constexpr = T.channels
    POSITIONS: tl.constexpr = T.positions
    WHOLE: tl.constexpr = T.whole
    ACC: tl.constexpr = M.acc
    EARLY: tl.constexpr = A.early
    BEFORE: tl.constexpr = A.before
    BOXES: tl.constexpr = T.form != "rows"
    if T.window == "":
        one = outputs(factors, cell, 0, block, S, T, M)
    else:
        p = tl.arange(0, POSITIONS)
        none = 0.0 if T.window == "sum" else float("-inf")
        one = tl.full([CHANNELS, POSITIONS], none, ACC)
        for member in range(share * plain(S.share), (share + 1) * plain(S.share)):
            part = outputs(factors, cell, member, block, S, T, M)
            there = member_places(p, cell, member, S, T)
            part = apply_ops(part, block.channels, there, cell.n0, operands, BEFORE, 0, WHOLE)
            if EARLY != "":
                full = full_of_members(cell, member, S, T)
                partial = join(partial, gather_tile(part, there, full, EARLY, BOXES), EARLY)
            if T.window == "sum":
                one += tl.where(there[None, :], part, 0.0)
            else:
                if T.window == "sign":
                    part = part * block.flip
                one = larger(one, tl.where(there[None, :], part, float("-inf")))
        if T.window == "sign":
            one = one * block.flip
    return one, partial


@triton.jit
def not_finite(wild, copied):
    """Whether one of the ``copied`` programs that copied weights met NaN or Inf; for ``merge``, it
    is put before their answers.
    """
    BLOCK: tl.constexpr = 1024
    at = tl.arange(0, BLOCK)
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(0, copied, BLOCK):
        found |= tl.load(wild + 1 + start + at, mask=start + at < copied, other=0)
    met = tl.max(found, 0)
    if tl.program_id(0) == 0:
        tl.store(wild, met)
    return met > 0


@triton.jit
def store(
    into, v, cell, block, S, T: tl.constexpr, A: tl.constexpr, FULL: tl.constexpr
):  # fmt: skip
    """Store the results of a tile, width classes side by side. ``FULL``: all of them are there."""
    JOINED: tl.constexpr = T.joined
    POSITIONS: tl.constexpr = T.positions
    spot, there = result_places(tl.arange(0, POSITIONS * JOINED), cell, S, T, JOINED)
    if FULL:
        there = None
    if A.summed:
        channel = tl.arange(0, 1)
        channels = Channels(channel, channel == 0)
    else:
        channels = channels_of(block.group, block.of_group, S, T)
    WHOLE: tl.constexpr = T.whole or A.summed
    write(into.out, v, channels, there, spot, block.share, into.to, A, A.unit, WHOLE)


@triton.jit
def compute(
    program, factors, into, operands, S, T: tl.constexpr, A: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """One tile: convolution, tile ops, statistic, store."""
    CHANNELS: tl.constexpr = T.channels
    POSITIONS: tl.constexpr = T.positions
    JOINED: tl.constexpr = T.joined
    WHOLE: tl.constexpr = T.whole
    ACC: tl.constexpr = M.acc
    EARLY: tl.constexpr = A.early
    LATE: tl.constexpr = A.late
    AFTER: tl.constexpr = A.after
    BOXES: tl.constexpr = T.form != "rows"
    rest, of_channels = parted(program, S.channel_blocks)
    # Depth and height classes next to each other in time: they read the same input.
    cw = rest % (T.classes[2] // T.joined)
    rest = rest // (T.classes[2] // T.joined)
    ch = rest % T.classes[1]
    rest = rest // T.classes[1]
    cd = rest % T.classes[0]
    tile, share = parted(rest // T.classes[0], S.split)

    group, of_group = parted(of_channels, S.blocks_of_group)
    channels = channels_of(group, of_group, S, T)
    channel, live = channels
    row = group * plain(S.rows) + of_group * T.channels
    n0, _, _, _ = anchors(tile, 0, S, T)
    p = tl.arange(0, POSITIONS)
    flip = 1.0
    if T.window == "sign":
        sign = tl.load(operands.tensors[A.sign] + channel, mask=live, other=0.0)
        flip = tl.where(negative(sign), -1.0, 1.0).to(ACC)[:, None]
    block = ChannelBlock(channels, row, group, flip)
    partial = nothing(tl.sum(tl.zeros([CHANNELS, POSITIONS], ACC), 1), EARLY + LATE)
    if A.only_gathers:  # class by class: a statistic takes them as they come
        for j in range(JOINED):
            cell = Cell(tile, n0, cd, ch, cw + j)
            v, partial = meet(factors, cell, block, share, partial, operands, S, T, A, M)
            spot, there = result_places(p, cell, S, T, 1)
            v = apply_ops(v, channels, there, n0, operands, AFTER, 0, WHOLE, spot)
            full = full_of_results(cell, 1, S, T)
            partial = join(partial, gather_tile(v, there, full, LATE, BOXES), LATE)
    else:
        for j in tl.static_range(JOINED):
            cell = Cell(tile, n0, cd, ch, cw + T.order[j])
            one, partial = meet(factors, cell, block, share, partial, operands, S, T, A, M)
            # Classes come in bit-reversed order: neighbours in memory end up side by side.
            if j % 2 == 1:
                one = tl.reshape(tl.join(single, one), [CHANNELS, 2 * POSITIONS])
                if j % 4 == 3:
                    one = tl.reshape(tl.join(double, one), [CHANNELS, 4 * POSITIONS])
                    if j % 8 == 7:
                        one = tl.reshape(tl.join(fourfold, one), [CHANNELS, 8 * POSITIONS])
                    else:
                        fourfold = one
                else:
                    double = one
            else:
                single = one
            v = one
        cell = Cell(tile, n0, cd, ch, cw)
        spot, there = result_places(tl.arange(0, POSITIONS * JOINED), cell, S, T, JOINED)
        v = apply_ops(v, channels, there, n0, operands, AFTER, 0, WHOLE, spot)
        if A.summed:
            channel = tl.arange(0, 1)
            live = channel == 0
        if LATE != "":
            partial = gather_tile(v, there, full_of_results(cell, JOINED, S, T), LATE, BOXES)
    if EARLY != "" or LATE != "":
        of_class = (share * T.classes[0] + cd) * T.classes[1] + ch
        of_class = of_class * (T.classes[2] // T.joined) + cw
        of_tile = plain(S.split[0]) * T.of_tile
        tiles = plain(into.gathered.tiles)
        at = (tile // tiles * plain(into.gathered.counted) + channel).to(tl.int64)
        at = at * (tiles * of_tile) + tile % tiles * of_tile + of_class
        put(into.partials + at, plain(into.gathered.plane), partial, live)
    if A.stored:
        stored = Stored(group, of_group, share)
        MAY: tl.constexpr = BOXES and A.unit > 1 and (T.whole or A.summed)
        # A box that is whole, as most are, needs no masks. They would take registers, and so would
        # places computed before the branch, which leave room for fewer programs at once.
        if MAY and full_of_results(cell, JOINED, S, T):
            store(into, v, cell, stored, S, T, A, True)
        else:
            store(into, v, cell, stored, S, T, A, False)


@triton.jit
def convolve(
    x, w, rows, weights, out, table, partials, tensors, numbers, strides, to, gathered, S,
    T: tl.constexpr, A: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """A program for each tile. ``x`` and ``w`` are descriptors of the copies ``rows`` and
    ``weights``, unless products are made one by one; ``table`` has the taps of the three axes.
    """
    factors = Factors(x, w, rows, weights, table)
    operands = Operands(tensors, numbers, strides)
    into = Into(out, to, partials, gathered)
    compute(tl.program_id(0), factors, into, operands, S, T, A, M)


@triton.jit
def convolve_carefully(
    rows, weights, out, table, wild, copied, partials, tensors, numbers, strides, to, gathered, S,
    T: tl.constexpr, A: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """A second launch, which leaves at once unless weights hold NaN or Inf: such a weight must not
    meet the zeros around the input. As a branch of the first it would cost that one its registers.

    Tiles, as many at once as programs run.
    """
    if not not_finite(wild, plain(copied)):
        return
    factors = Factors(rows, weights, rows, weights, table)
    operands = Operands(tensors, numbers, strides)
    into = Into(out, to, partials, gathered)
    for program in range(tl.program_id(0), plain(S.programs), tl.num_programs(0)):
        compute(program, factors, into, operands, S, T, A, M)
