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

from transfuse.backends.triton.engines.portable.anchors import anchors, load_rows, row_of
from transfuse.backends.triton.engines.portable.tile_records import (
    Cell,
    ChannelBlock,
    Factors,
    Into,
    Stored,
    Taps,
)
from transfuse.backends.triton.epilogue.arithmetic import larger, multiply_add, negative
from transfuse.backends.triton.epilogue.places_kernel import write
from transfuse.backends.triton.epilogue.records import Channels, Coordinates, Operands
from transfuse.backends.triton.epilogue.statistics_kernel import gather_tile, join, nothing, put
from transfuse.backends.triton.epilogue.tile_ops import apply_ops
from transfuse.backends.triton.told_kernel import over, parted, plain


@triton.jit
def entry(table, index, AXIS: tl.constexpr, T: tl.constexpr):
    """first, count, slot of a (class, member) along an axis."""
    at = table + 3 * index
    if AXIS > 0:
        at += 3 * T.classes[0] * T.members[0]
    if AXIS > 1:
        at += 3 * T.classes[1] * T.members[1]
    return tl.load(at), tl.load(at + 1), tl.load(at + 2)


@triton.jit
def taps_of(table, cell, member, T: tl.constexpr):
    """Those of the three axes."""
    rd = member // (T.members[1] * T.members[2])
    rh = member // T.members[2] % T.members[1]
    fd, nd, sd = entry(table, cell.cd * T.members[0] + rd, 0, T)
    fh, nh, sh = entry(table, cell.ch * T.members[1] + rh, 1, T)
    fw, nw, sw = entry(table, cell.cw * T.members[2] + member % T.members[2], 2, T)
    return Taps(fd, nd, sd, fh, nh, sh, fw, nw, sw)


@triton.jit
def within(first, count, slot, at, inputs, STEP: tl.constexpr):
    """The taps of an axis that find an input at all, for one anchor at input ``at``."""
    begin = (first + at - inputs + STEP) // STEP
    begin = tl.where(first + at < inputs, 0, begin)
    end = tl.minimum(count, (first + at + STEP) // STEP)
    end = tl.where(first + at < 0, 0, end)
    return first - begin * STEP, tl.maximum(end - begin, 0), slot + begin


@triton.jit
def accumulate(factors, cell, member, block, S, T: tl.constexpr, M: tl.constexpr):
    """Outputs of one class and one member of the window, [channels, anchors]: on tensor cores."""
    CHANNELS: tl.constexpr = T.channels
    POSITIONS: tl.constexpr = T.positions
    ACC: tl.constexpr = M.acc
    DOT: tl.constexpr = M.dot
    n, d, h, u = anchors(cell.tile, 0, S, T)
    fd, nd, sd, fh, nh, sh, fw, nw, sw = taps_of(factors.table, cell, member, T)
    if T.lone:
        fd, nd, sd = within(fd, nd, sd, d * T.residues[0], plain(S.inputs[0]), T.step[0])
        fh, nh, sh = within(fh, nh, sh, h * T.residues[1], plain(S.inputs[1]), T.step[1])
        fw, nw, sw = within(fw, nw, sw, u * T.residues[2], plain(S.inputs[2]), T.step[2])
    kept = plain(S.kept)
    first = block.group * kept
    acc = tl.zeros([CHANNELS, POSITIONS], ACC)
    # Counters instead of divisions: these would take as long as the products.
    td = 0
    th = 0
    tw = 0
    k = 0
    for _ in range(nd * nh * nw * (kept // T.depth)):
        offset = (fd - td * T.step[0], fh - th * T.step[1], fw - tw * T.step[2])
        rows = load_rows(factors.x, (n, d, h, u), offset, first + k, S, T)
        slot = ((sd + td) * T.taps[1] + sh + th) * T.taps[2] + sw + tw
        acc = multiply_add(factors.w.load([block.row, slot * kept + k]), rows.T, acc, ACC, DOT)
        k += T.depth
        tw += tl.where(k == kept, 1, 0)
        k = tl.where(k == kept, 0, k)
        th += tl.where(tw == nw, 1, 0)
        tw = tl.where(tw == nw, 0, tw)
        td += tl.where(th == nh, 1, 0)
        th = tl.where(th == nh, 0, th)
    return acc


@triton.jit
def accumulate_singly(factors, cell, member, block, S, T: tl.constexpr, M: tl.constexpr):
    """The same, product by product: where a group has one channel, and where weights hold NaN.

    What a tap finds outside the input is not multiplied, so no NaN or Inf of a weight shows there.
    """
    CHANNELS: tl.constexpr = T.channels
    POSITIONS: tl.constexpr = T.positions
    ACC: tl.constexpr = M.acc
    BESIDE: tl.constexpr = T.beside
    p = tl.arange(0, POSITIONS)
    channel, live = block.channels
    n, d, h, u = anchors(cell.tile, p, S, T)
    fd, nd, sd, fh, nh, sh, fw, nw, sw = taps_of(factors.table, cell, member, T)
    row = (block.row + tl.arange(0, CHANNELS)).to(tl.int64)
    kept = plain(S.kept)
    if T.beside > 1:
        own = channel
    elif T.depthwise:  # neighbours among channels mostly read neighbours
        own = tl.max_contiguous(over(channel, S.group_outputs) + block.group, 2)
    weights = factors.weights + row * (T.slots * kept)
    acc = tl.zeros([CHANNELS, POSITIONS], ACC)
    for t in range(nd * nh * nw * plain(S.group_channels[0])):
        tap, ci = parted(t, S.group_channels)
        td = tap // (nh * nw)
        th = tap // nw % nh
        tw = tap % nw
        i = d * T.residues[0] + fd - td * T.step[0]
        j = h * T.residues[1] + fh - th * T.step[1]
        k = u * T.residues[2] + fw - tw * T.step[2]
        there = (n < plain(S.batch)) & (i >= 0) & (i < plain(S.inputs[0]))
        there &= (j >= 0) & (j < plain(S.inputs[1])) & (k >= 0) & (k < plain(S.inputs[2]))
        there = live[:, None] & there[None, :]
        if T.beside > 1:
            there = tl.max_constancy(there, [BESIDE, 1])
        residue = i % T.apart[0] * T.apart[1] + j % T.apart[1]
        residue = residue * T.apart[2] + k % T.apart[2]
        at = row_of(n, i // T.apart[0], j // T.apart[1], k // T.apart[2], residue, S, T)
        at = at.to(tl.int64)[None, :] * (plain(S.width) * T.beside)
        if T.depthwise:
            at += own[:, None]
        else:
            at += block.group * kept + ci
        slot = ((sd + td) * T.taps[1] + sh + th) * T.taps[2] + sw + tw
        factor = tl.load(weights + slot * kept + ci, mask=live, other=0.0).to(ACC)
        part = tl.load(factors.rows + at, mask=there, other=0.0).to(ACC) * factor[:, None]
        acc += tl.where(there, part, 0.0)
    return acc


@triton.jit
def outputs(factors, cell, member, block, S, T: tl.constexpr, M: tl.constexpr):
    """The convolution's outputs of one class and one member of the window: [channels, anchors]."""
    if M.singly:
        acc = accumulate_singly(factors, cell, member, block, S, T, M)
    else:
        acc = accumulate(factors, cell, member, block, S, T, M)
    return acc


@triton.jit
def output_of(d, h, u, cell, member, T: tl.constexpr):
    """The convolution's output that an anchor meets with a member of its window."""
    od = (d * T.classes[0] + cell.cd) * T.window_stride[0] - T.window_padding[0]
    oh = (h * T.classes[1] + cell.ch) * T.window_stride[1] - T.window_padding[1]
    ow = (u * T.classes[2] + cell.cw) * T.window_stride[2] - T.window_padding[2]
    od += member // (T.members[1] * T.members[2])
    oh += member // T.members[2] % T.members[1]
    ow += member % T.members[2]
    return od, oh, ow


@triton.jit
def member_places(p, cell, member, S, T: tl.constexpr):
    """Which anchors meet an output of the convolution with a member of their window."""
    n, d, h, u = anchors(cell.tile, p, S, T)
    od, oh, ow = output_of(d, h, u, cell, member, T)
    # Where there is no anchor there is no output, either.
    there = is_within(od, S.outputs[0], T.window_padding[0])
    there &= is_within(oh, S.outputs[1], T.window_padding[1])
    return there & is_within(ow, S.outputs[2], T.window_padding[2]) & (n < plain(S.batch))


@triton.jit
def last_of(cell, S, T: tl.constexpr):
    """The last sample and anchor of a box, where the first are those of position 0."""
    n, d, h, u = anchors(cell.tile, 0, S, T)
    if T.form == "box":
        return n, d + T.box[1] - 1, h + T.box[2] - 1, u + T.box[3] - 1
    else:
        return n + T.box[3] - 1, d + T.box[0] - 1, h + T.box[1] - 1, u + T.box[2] - 1


@triton.jit
def full_of_members(cell, member, S, T: tl.constexpr):
    """Whether all anchors of a box meet an output with a member of their window."""
    n, d, h, u = last_of(cell, S, T)
    od, oh, ow = output_of(d, h, u, cell, member, T)
    # A statistic before a window takes no padding, so that none lies before the first.
    full = (od < plain(S.outputs[0])) & (oh < plain(S.outputs[1]))
    return full & (ow < plain(S.outputs[2])) & (n < plain(S.batch))


@triton.jit
def full_of_results(cell, JOINED: tl.constexpr, S, T: tl.constexpr):
    """Whether all results of a box are there."""
    n, d, h, u = last_of(cell, S, T)
    full = (d * T.classes[0] + cell.cd < plain(S.results[0])) & (n < plain(S.batch))
    full &= h * T.classes[1] + cell.ch < plain(S.results[1])
    return full & (u * T.classes[2] + cell.cw + JOINED - 1 < plain(S.results[2]))


@triton.jit
def is_within(at, size, PADDING: tl.constexpr):
    """Whether an output is one of ``size``; without padding none lies before the first."""
    found = at < plain(size)
    if PADDING > 0:
        found &= at >= 0
    return found


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
            part = apply_ops(part, block.channels, there, cell.n0, operands, 1, BEFORE, 0, WHOLE)
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
def result_places(p, cell, S, T: tl.constexpr, JOINED: tl.constexpr):
    """Where each result of a tile belongs, and which of them there are.

    Positions are anchors, or the results of ``JOINED`` width classes of each side by side.
    """
    n, d, h, u = anchors(cell.tile, p // JOINED, S, T)
    yd = d * T.classes[0] + cell.cd
    yh = h * T.classes[1] + cell.ch
    yw = u * T.classes[2] + cell.cw
    if JOINED > 1:  # these are all width classes
        yw += p % JOINED
    there = (yd < plain(S.results[0])) & (yh < plain(S.results[1]))
    there = there & (yw < plain(S.results[2])) & (n < plain(S.batch))
    return Coordinates(n, yd, yh, yw), there


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
def channels_of(group, of_group, S, T: tl.constexpr):
    """The channels of a block of a group."""
    inner = of_group * T.channels + tl.arange(0, T.channels)
    channel = inner
    if not T.depthwise:  # there, all groups are one
        channel = group * plain(S.tiled) + inner
    return Channels(channel, inner < plain(S.tiled))


@triton.jit
def store(
    into, v, cell, block, S, T: tl.constexpr, A: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Store the results of a tile, width classes side by side."""
    JOINED: tl.constexpr = T.joined
    POSITIONS: tl.constexpr = T.positions
    spot, there = result_places(tl.arange(0, POSITIONS * JOINED), cell, S, T, JOINED)
    if A.summed:
        channel = tl.arange(0, 1)
        channels = Channels(channel, channel == 0)
    else:
        channels = channels_of(block.group, block.of_group, S, T)
    WHOLE: tl.constexpr = T.whole or A.summed
    write(into.out, v, channels, there, spot, block.share, into.to, A, UNIT, WHOLE)


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
            v = apply_ops(v, channels, there, n0, operands, 1, AFTER, 0, WHOLE, spot)
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
        v = apply_ops(v, channels, there, n0, operands, 1, AFTER, 0, WHOLE, spot)
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
        UNIT: tl.constexpr = A.unit
        # Places are computed once more in each branch: across one, they would take registers.
        if plain(into.to.even) > 0:
            store(into, v, cell, Stored(group, of_group, share), S, T, A, UNIT)
        else:
            store(into, v, cell, Stored(group, of_group, share), S, T, A, 1)


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
