"""The convolution of one tile and all that follows it up to the next cut, in one kernel.

``acc[co, p] = sum over taps and channels of w[co, tap, ci] * x[p + offset(tap), ci]``, once for
every member of the window; members meet in a running maximum or sum, width classes are joined so
that neighbours in memory are stored together, then come the steps, the statistic, the store.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.kernels.numbers import (
    larger,
    multiply_add,
    narrow,
)
from transfuse.backends.triton.kernels.statistics import gather, join, nothing, put
from transfuse.backends.triton.kernels.steps import steps
from transfuse.backends.triton.kernels.tiles import anchors, load_rows, place_in_sample, row_of


@triton.jit
def entry(table, axis, index, CLASSES: tl.constexpr, MEMBERS: tl.constexpr):
    """first, count, slot of a (class, member) along an axis."""
    at = table + 3 * index
    if axis > 0:
        at += 3 * CLASSES[0] * MEMBERS[0]
    if axis > 1:
        at += 3 * CLASSES[1] * MEMBERS[1]
    return tl.load(at), tl.load(at + 1), tl.load(at + 2)


@triton.jit
def within(first, count, slot, at, INPUTS: tl.constexpr, STEP: tl.constexpr):
    """The taps of an axis that read an input at all, for one anchor at ``at`` (in inputs)."""
    begin = tl.maximum(0, (first + at - INPUTS + STEP) // STEP)
    begin = tl.where(first + at < INPUTS, 0, begin)
    end = tl.minimum(count, (first + at + STEP) // STEP)
    end = tl.where(first + at < 0, 0, end)
    return first - begin * STEP, tl.maximum(end - begin, 0), slot + begin


@triton.jit
def accumulate(
    x, w, table, tile, batch, cd, ch, cw, member, row, group,
    FORM: tl.constexpr, BOX: tl.constexpr, ANCHORS: tl.constexpr, EXTENT: tl.constexpr,
    CROSS: tl.constexpr, CLASSES: tl.constexpr, MEMBERS: tl.constexpr, RESIDUES: tl.constexpr,
    STEP: tl.constexpr, LOW: tl.constexpr, INPUTS: tl.constexpr, TAPS: tl.constexpr,
    GROUP_CHANNELS: tl.constexpr, KEPT: tl.constexpr, CHANNELS: tl.constexpr,
    DEPTH: tl.constexpr, ACC: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """The convolution's outputs of one class and one member of the window: [channels, anchors]."""
    POSITIONS: tl.constexpr = BOX[0] * BOX[1] * BOX[2] * BOX[3]
    BLOCKS: tl.constexpr = (KEPT + DEPTH - 1) // DEPTH
    n, d, h, u = anchors(tile, 0, batch, FORM, BOX, ANCHORS, EXTENT, CROSS)
    rd = member // (MEMBERS[1] * MEMBERS[2])
    rh = member // MEMBERS[2] % MEMBERS[1]
    fd, nd, sd = entry(table, 0, cd * MEMBERS[0] + rd, CLASSES, MEMBERS)
    fh, nh, sh = entry(table, 1, ch * MEMBERS[1] + rh, CLASSES, MEMBERS)
    fw, nw, sw = entry(table, 2, cw * MEMBERS[2] + member % MEMBERS[2], CLASSES, MEMBERS)
    if FORM == "batch" and POSITIONS == BOX[3]:
        fd, nd, sd = within(fd, nd, sd, d * RESIDUES[0], INPUTS[0], STEP[0])
        fh, nh, sh = within(fh, nh, sh, h * RESIDUES[1], INPUTS[1], STEP[1])
        fw, nw, sw = within(fw, nw, sw, u * RESIDUES[2], INPUTS[2], STEP[2])
    acc = tl.zeros([CHANNELS, POSITIONS], ACC)
    for t in range(nd * nh * nw * BLOCKS):
        tap = t // BLOCKS
        block = t % BLOCKS * DEPTH
        td = tap // (nh * nw)
        th = tap // nw % nh
        tw = tap % nw
        rows = load_rows(
            x, n, d, h, u, batch,
            fd - td * STEP[0], fh - th * STEP[1], fw - tw * STEP[2], group * KEPT + block,
            FORM, BOX, EXTENT, RESIDUES, LOW, DEPTH,
        )  # fmt: skip
        slot = ((sd + td) * TAPS[1] + sh + th) * TAPS[2] + sw + tw
        acc = multiply_add(w.load([row, slot * KEPT + block]), rows.T, acc, ACC, DOT)
    return acc


@triton.jit
def accumulate_exact(
    x, w, table, tile, batch, cd, ch, cw, member, channel, live, row, group,
    FORM: tl.constexpr, BOX: tl.constexpr, ANCHORS: tl.constexpr, EXTENT: tl.constexpr,
    CROSS: tl.constexpr, CLASSES: tl.constexpr, MEMBERS: tl.constexpr, RESIDUES: tl.constexpr,
    STEP: tl.constexpr, LOW: tl.constexpr, INPUTS: tl.constexpr, TAPS: tl.constexpr,
    DEPTHWISE: tl.constexpr, GROUPS: tl.constexpr, GROUP_CHANNELS: tl.constexpr,
    GROUP_OUTPUTS: tl.constexpr, KEPT: tl.constexpr, CHANNELS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The same, product by product: where a group has one channel, and where weights hold NaN.

    What a tap finds outside the input is not multiplied, so no NaN or Inf of a weight shows there.
    """
    POSITIONS: tl.constexpr = BOX[0] * BOX[1] * BOX[2] * BOX[3]
    SLOTS: tl.constexpr = TAPS[0] * TAPS[1] * TAPS[2]
    n, d, h, u = anchors(
        tile, tl.arange(0, POSITIONS), batch, FORM, BOX, ANCHORS, EXTENT, CROSS
    )
    rd = member // (MEMBERS[1] * MEMBERS[2])
    rh = member // MEMBERS[2] % MEMBERS[1]
    fd, nd, sd = entry(table, 0, cd * MEMBERS[0] + rd, CLASSES, MEMBERS)
    fh, nh, sh = entry(table, 1, ch * MEMBERS[1] + rh, CLASSES, MEMBERS)
    fw, nw, sw = entry(table, 2, cw * MEMBERS[2] + member % MEMBERS[2], CLASSES, MEMBERS)
    weights = w + (row + tl.arange(0, CHANNELS)).to(tl.int64) * (SLOTS * KEPT)
    acc = tl.zeros([CHANNELS, POSITIONS], ACC)
    for t in range(nd * nh * nw * GROUP_CHANNELS):
        tap = t // GROUP_CHANNELS
        ci = t % GROUP_CHANNELS
        td = tap // (nh * nw)
        th = tap // nw % nh
        tw = tap % nw
        i = d * RESIDUES[0] + fd - td * STEP[0]
        j = h * RESIDUES[1] + fh - th * STEP[1]
        k = u * RESIDUES[2] + fw - tw * STEP[2]
        there = (i >= 0) & (i < INPUTS[0]) & (j >= 0) & (j < INPUTS[1]) & (n < batch)
        there = live[:, None] & (there & (k >= 0) & (k < INPUTS[2]))[None, :]
        at = row_of(
            n, i // RESIDUES[0], j // RESIDUES[1], k // RESIDUES[2], batch,
            (i % RESIDUES[0] * RESIDUES[1] + j % RESIDUES[1]) * RESIDUES[2] + k % RESIDUES[2],
            FORM, EXTENT, LOW,
        ).to(tl.int64)[None, :] * (GROUPS * KEPT)  # fmt: skip
        if DEPTHWISE:
            at += (channel // GROUP_OUTPUTS)[:, None]
        else:
            at += group * KEPT + ci
        slot = ((sd + td) * TAPS[1] + sh + th) * TAPS[2] + sw + tw
        factor = tl.load(weights + slot * KEPT + ci, mask=live, other=0.0).to(ACC)
        part = tl.load(x + at, mask=there, other=0.0).to(ACC) * factor[:, None]
        acc += tl.where(there, part, 0.0)
    return acc


@triton.jit
def outputs(
    x, w, rows, packed, table, tile, batch, cd, ch, cw, member, channel, live, row, group,
    FORM: tl.constexpr, BOX: tl.constexpr, ANCHORS: tl.constexpr, EXTENT: tl.constexpr,
    CROSS: tl.constexpr, CLASSES: tl.constexpr, MEMBERS: tl.constexpr, RESIDUES: tl.constexpr,
    STEP: tl.constexpr, LOW: tl.constexpr, INPUTS: tl.constexpr, TAPS: tl.constexpr,
    DEPTHWISE: tl.constexpr, CAREFUL: tl.constexpr, GROUPS: tl.constexpr,
    GROUP_CHANNELS: tl.constexpr, GROUP_OUTPUTS: tl.constexpr, KEPT: tl.constexpr,
    CHANNELS: tl.constexpr, DEPTH: tl.constexpr, ACC: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """The convolution's outputs of one class and one member of the window: [channels, anchors]."""
    if DEPTHWISE or CAREFUL:
        acc = accumulate_exact(
            rows, packed, table, tile, batch, cd, ch, cw, member, channel, live, row, group,
            FORM, BOX, ANCHORS, EXTENT, CROSS, CLASSES, MEMBERS, RESIDUES, STEP, LOW, INPUTS, TAPS,
            DEPTHWISE, GROUPS, GROUP_CHANNELS, GROUP_OUTPUTS, KEPT, CHANNELS, ACC,
        )  # fmt: skip
    else:
        acc = accumulate(
            x, w, table, tile, batch, cd, ch, cw, member, row, group,
            FORM, BOX, ANCHORS, EXTENT, CROSS, CLASSES, MEMBERS, RESIDUES, STEP, LOW, INPUTS, TAPS,
            GROUP_CHANNELS, KEPT, CHANNELS, DEPTH, ACC, DOT,
        )  # fmt: skip
    return acc


@triton.jit
def convolve(
    x, w, rows, packed, out, table, flag, epoch, batch, tensors, numbers, partials, plane, tiles, programs,
    FORM: tl.constexpr, BOX: tl.constexpr, ANCHORS: tl.constexpr, EXTENT: tl.constexpr,
    CROSS: tl.constexpr, ORDER: tl.constexpr,  # width classes of one tile: all of them, or (0,)
    JOINED_BOX: tl.constexpr, JOINED_ANCHORS: tl.constexpr, JOINED_EXTENT: tl.constexpr,
    CLASSES: tl.constexpr, MEMBERS: tl.constexpr, RESIDUES: tl.constexpr, STEP: tl.constexpr,
    LOW: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, RESULTS: tl.constexpr,
    TAPS: tl.constexpr, WINDOW: tl.constexpr, WINDOW_STRIDE: tl.constexpr,
    WINDOW_PADDING: tl.constexpr, SIGN: tl.constexpr,
    DEPTHWISE: tl.constexpr, CAREFUL: tl.constexpr, GROUPS: tl.constexpr,
    GROUP_CHANNELS: tl.constexpr, GROUP_OUTPUTS: tl.constexpr, KEPT: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr, DEPTH: tl.constexpr, ACC: tl.constexpr, DOT: tl.constexpr,
    BEFORE: tl.constexpr, BEFORE_AT: tl.constexpr, BEFORE_SIZE: tl.constexpr,
    BEFORE_COUNT: tl.constexpr,
    AFTER: tl.constexpr, AFTER_AT: tl.constexpr, AFTER_SIZE: tl.constexpr,
    AFTER_COUNT: tl.constexpr,
    EARLY: tl.constexpr, LATE: tl.constexpr,  # the statistic gathered before the window, or last
    SUMMED: tl.constexpr,  # the steps end with one channel
    STORED: tl.constexpr, LINEAR: tl.constexpr, STRIDES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Tiles, as many at once as programs run. ``CAREFUL`` is a second launch that leaves at once unless weights hold NaN or Inf:
    such a weight must not meet the zeros around the input. As a branch of the first launch it
    would cost that one its registers.
    """
    if CAREFUL:
        if tl.load(flag) < epoch:
            return
    POSITIONS: tl.constexpr = BOX[0] * BOX[1] * BOX[2] * BOX[3]
    JOINED: tl.constexpr = len(ORDER)
    if DEPTHWISE:
        ALL: tl.constexpr = GROUPS * GROUP_OUTPUTS
        BLOCKS: tl.constexpr = (ALL + CHANNELS - 1) // CHANNELS
    else:
        ALL: tl.constexpr = GROUP_OUTPUTS
        BLOCKS: tl.constexpr = GROUPS * ((ALL + CHANNELS - 1) // CHANNELS)
    for program in range(tl.program_id(0), programs, tl.num_programs(0)):
        block = program % BLOCKS
        rest = program // BLOCKS
        # Depth and height classes next to each other in time: they read the same input.
        cw = rest % (CLASSES[2] // JOINED)
        rest = rest // (CLASSES[2] // JOINED)
        ch = rest % CLASSES[1]
        rest = rest // CLASSES[1]
        cd = rest % CLASSES[0]
        tile = rest // CLASSES[0]

        group = block // ((ALL + CHANNELS - 1) // CHANNELS)
        inner = block % ((ALL + CHANNELS - 1) // CHANNELS) * CHANNELS + tl.arange(0, CHANNELS)
        channel = group * ALL + inner
        live = inner < ALL
        row = group * ROWS + block % ((ALL + CHANNELS - 1) // CHANNELS) * CHANNELS
        n0, _, _, _ = anchors(tile, 0, batch, FORM, BOX, ANCHORS, EXTENT, CROSS)
        p = tl.arange(0, POSITIONS)
        if WINDOW == "sign":
            sign = tl.load(tensors[SIGN] + channel, mask=live, other=0.0)
            flip = tl.where(sign < 0, -1.0, 1.0).to(ACC)[:, None]
        like = tl.sum(tl.zeros([CHANNELS, POSITIONS], ACC), 1)
        partial = nothing(like, EARLY)
        for j in tl.static_range(JOINED):
            if WINDOW == "":
                one = outputs(
                    x, w, rows, packed, table, tile, batch, cd, ch, cw + ORDER[j], 0,
                    channel, live, row, group,
                    FORM, BOX, ANCHORS, EXTENT, CROSS, CLASSES, MEMBERS, RESIDUES, STEP, LOW, INPUTS,
                    TAPS, DEPTHWISE, CAREFUL, GROUPS, GROUP_CHANNELS, GROUP_OUTPUTS, KEPT, CHANNELS,
                    DEPTH, ACC, DOT,
                )  # fmt: skip
            else:
                one = tl.full([CHANNELS, POSITIONS], 0.0 if WINDOW == "sum" else float("-inf"), ACC)
                for member in range(MEMBERS[0] * MEMBERS[1] * MEMBERS[2]):
                    part = outputs(
                        x, w, rows, packed, table, tile, batch, cd, ch, cw + ORDER[j], member,
                        channel, live, row, group,
                        FORM, BOX, ANCHORS, EXTENT, CROSS, CLASSES, MEMBERS, RESIDUES, STEP, LOW, INPUTS,
                        TAPS, DEPTHWISE, CAREFUL, GROUPS, GROUP_CHANNELS, GROUP_OUTPUTS, KEPT, CHANNELS,
                        DEPTH, ACC, DOT,
                    )  # fmt: skip
                    n, d, h, u = anchors(tile, p, batch, FORM, BOX, ANCHORS, EXTENT, CROSS)
                    yd = d * CLASSES[0] + cd
                    yh = h * CLASSES[1] + ch
                    yw = u * CLASSES[2] + cw + ORDER[j]
                    od = yd * WINDOW_STRIDE[0] - WINDOW_PADDING[0] + member // (MEMBERS[1] * MEMBERS[2])
                    oh = yh * WINDOW_STRIDE[1] - WINDOW_PADDING[1] + member // MEMBERS[2] % MEMBERS[1]
                    ow = yw * WINDOW_STRIDE[2] - WINDOW_PADDING[2] + member % MEMBERS[2]
                    there = (n < batch) & (d < ANCHORS[0]) & (h < ANCHORS[1]) & (u < ANCHORS[2])
                    there &= (od >= 0) & (od < OUTPUTS[0]) & (oh >= 0) & (oh < OUTPUTS[1])
                    there &= (ow >= 0) & (ow < OUTPUTS[2])
                    part = steps(
                        part, channel, live, there, n0, tensors, numbers, 1,
                        BEFORE, BEFORE_AT, BEFORE_SIZE, BEFORE_COUNT, 0,
                    )  # fmt: skip
                    if EARLY != "":
                        partial = join(partial, gather(part, there, EARLY), EARLY)
                    if WINDOW == "sum":
                        one += tl.where(there[None, :], part, 0.0)
                    else:
                        if WINDOW == "sign":
                            part = part * flip
                        one = larger(one, tl.where(there[None, :], part, float("-inf")))
                if WINDOW == "sign":
                    one = one * flip
            # Classes come in bit-reversed order: neighbours in memory end up next to each other.
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
        pj = tl.arange(0, POSITIONS * JOINED)
        n, d, h, u = anchors(
            tile, pj, batch, FORM, JOINED_BOX, JOINED_ANCHORS, JOINED_EXTENT, CROSS
        )
        yd = d * CLASSES[0] + cd
        yh = h * CLASSES[1] + ch
        yw = u * (CLASSES[2] // JOINED) + cw
        there = (n < batch) & (d < ANCHORS[0]) & (h < ANCHORS[1]) & (u < JOINED_ANCHORS[2])
        there &= (yd < RESULTS[0]) & (yh < RESULTS[1]) & (yw < RESULTS[2])
        v = steps(
            v, channel, live, there, n0, tensors, numbers, 1,
            AFTER, AFTER_AT, AFTER_SIZE, AFTER_COUNT, 0,
        )  # fmt: skip
        if SUMMED:
            channel = tl.arange(0, 1)
            live = channel == 0
        if LATE != "":
            partial = gather(v, there, LATE)
        if EARLY != "" or LATE != "":
            of_class = (cd * CLASSES[1] + ch) * (CLASSES[2] // JOINED) + cw
            OF_TILE: tl.constexpr = CLASSES[0] * CLASSES[1] * (CLASSES[2] // JOINED)
            COUNTED: tl.constexpr = 1 if SUMMED else (ALL if DEPTHWISE else GROUPS * ALL)
            at = (tile // tiles * COUNTED + channel).to(tl.int64) * (tiles * OF_TILE)
            put(partials + at + tile % tiles * OF_TILE + of_class, plane, partial, live)
        if STORED:
            target = out + channel.to(tl.int64)[:, None] * STRIDES[1]
            if LINEAR:  # rows follow each other as results do
                target += n0.to(tl.int64) * STRIDES[0] + place_in_sample(tile, JOINED_BOX, RESULTS)
                target += (pj * STRIDES[4])[None, :]
            elif WIDE:
                place = n.to(tl.int64) * STRIDES[0] + yd.to(tl.int64) * STRIDES[2]
                target += (place + yh.to(tl.int64) * STRIDES[3] + yw.to(tl.int64) * STRIDES[4])[None, :]
            else:
                place = n * STRIDES[0] + yd * STRIDES[2] + yh * STRIDES[3] + yw * STRIDES[4]
                target += place[None, :]
            tl.store(target, narrow(v, out.dtype.element_ty), mask=live[:, None] & there[None, :])
