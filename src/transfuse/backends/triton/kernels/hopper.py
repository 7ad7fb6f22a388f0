"""The convolution for Hopper, in Gluon: two warps feed shared memory, two warpgroups multiply.

A *strip* holds the rows that all width taps of a tile read, for one tap of depth and height and
one block of channels. Each tap is a view of the strip from another row on: the tensor cores read
rows from any start, also one that is no multiple of the swizzle. Strips and weights come through
two rings; programs stay and walk over tiles, so that copies run ahead into the next tile while
the last one is finished and stored.

The steps are those of every kernel: Gluon compiles functions of Triton when it calls them, as
long as these make no tensors of their own.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from transfuse.backends.triton.kernels.numbers import narrow
from transfuse.backends.triton.kernels.statistics import gather, put
from transfuse.backends.triton.kernels.steps import steps
from transfuse.backends.triton.kernels.tiles import anchors


@gluon.jit
def pick(values: gl.constexpr, at):
    """``values[at]`` for an index known only at run time."""
    found = gl.to_tensor(values[0])
    for i in gl.static_range(1, len(values)):
        found = gl.where(at == i, values[i], found)
    return found


@gluon.constexpr_function
def of_axis(geometry, axis, part):
    """One of first, count, slot for all classes of an axis."""
    return tuple(entry[part] for entry in geometry.entries[axis])


@gluon.constexpr_function
def rows_of(geometry, config):
    """The tile as ``tiles.py`` takes it."""
    return geometry.rows(config.tile)


@gluon.jit
def entry(G: gl.constexpr, AXIS: gl.constexpr, of_class):
    """first, count, slot of a class along an axis."""
    FIRST: gl.constexpr = of_axis(G, AXIS, 0)
    COUNT: gl.constexpr = of_axis(G, AXIS, 1)
    SLOT: gl.constexpr = of_axis(G, AXIS, 2)
    return pick(FIRST, of_class), pick(COUNT, of_class), pick(SLOT, of_class)


@gluon.jit
def locate(tile, G: gl.constexpr, C: gl.constexpr):
    """The block of anchors of a tile and its classes of depth and height.

    Neighbours in time share their anchors, so the rows they read are still in the cache and the
    lines they both write meet there. Classes differ in work: a program meets all of them in turn,
    unless it holds the weights of one.
    """
    OF_BLOCK: gl.constexpr = G.classes[0] * G.classes[1]
    block = tile // OF_BLOCK
    turn = 0
    if OF_BLOCK > 1 and not C.hold:
        turn = block // gl.maximum(gl.num_programs(0) // OF_BLOCK, 1)
    of_class = (tile + turn) % OF_BLOCK
    return block, of_class // G.classes[1], of_class % G.classes[1]


@gluon.jit
def first_row(block, G: gl.constexpr, C: gl.constexpr):
    """The row of a block's first anchor."""
    if G.cross:
        return block * C.tile
    else:
        T: gl.constexpr = rows_of(G, C)
        return block // T.tiles_of_sample * G.sample + block % T.tiles_of_sample * C.tile


@gluon.jit
def view(ring, row, ROWS: gl.constexpr, C: gl.constexpr, SWIZZLED: gl.constexpr):
    """``ROWS`` rows of a ring of strips, from any row on."""
    return ring.index(row)._reinterpret(ring.dtype, [ROWS, C.depth], SWIZZLED)


@gluon.jit
def feed_strips(
    x, halo, strips, full, empty, tiles, G: gl.constexpr, C: gl.constexpr, SWIZZLED: gl.constexpr
):
    """Rows of input for all width taps at once; what lies outside the copy reads as zero."""
    BLOCKS: gl.constexpr = (G.kept + C.depth - 1) // C.depth
    BOXES: gl.constexpr = C.tile // C.box
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        block, cd, ch = locate(tile, G, C)
        start = first_row(block, G, C) + G.low
        fd, nd, _ = entry(G, 0, cd)
        fh, nh, _ = entry(G, 1, ch)
        for tap in range(nd * nh):
            line = (fd - tap // nh * G.step[0]) * G.extent[1] + fh - tap % nh * G.step[1]
            row = start + line * G.extent[2]
            for k in range(BLOCKS):
                slot = step % C.x_stages
                mbarrier.wait(empty.index(slot), ((step // C.x_stages) & 1) ^ 1)
                bar = full.index(slot)
                mbarrier.expect(bar, C.strip * C.depth * C.itemsize)
                at = slot * C.strip
                for i in gl.static_range(BOXES):
                    target = view(strips, at + i * C.box, C.box, C, SWIZZLED)
                    place = [row + i * C.box, k * C.depth]
                    tma.async_copy_global_to_shared(x, place, bar, target)
                if C.halo > 0:
                    target = view(strips, at + C.tile, C.halo, C, SWIZZLED)
                    place = [row + C.tile, k * C.depth]
                    tma.async_copy_global_to_shared(halo, place, bar, target)
                step += 1


@gluon.jit
def feed_weights(w, weights, full, empty, tiles, G: gl.constexpr, C: gl.constexpr):
    """Weights of one tap and one block of channels after the other, in the order of use.

    The last block may reach into the next slot: the strip is zero there.
    """
    BLOCKS: gl.constexpr = (G.kept + C.depth - 1) // C.depth
    TAPS: gl.constexpr = len(G.taps)
    if C.hold:  # those of the first tile serve all
        tiles = gl.minimum(tiles, gl.program_id(0) + 1)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        block, cd, ch = locate(tile, G, C)
        _, nd, sd = entry(G, 0, cd)
        _, nh, sh = entry(G, 1, ch)
        for tap in range(nd * nh):
            line = ((sd + tap // nh) * G.slots[1] + sh + tap % nh) * G.slots[2]
            for k in range(BLOCKS):
                for i in gl.static_range(TAPS):
                    slot = step % C.w_stages
                    mbarrier.wait(empty.index(slot), ((step // C.w_stages) & 1) ^ 1)
                    bar = full.index(slot)
                    mbarrier.expect(bar, C.channels * C.depth * C.itemsize)
                    column = (line + G.taps[i][2]) * G.kept + k * C.depth
                    tma.async_copy_global_to_shared(w, [0, column], bar, weights.index(slot))
                    step += 1


@gluon.jit
def multiply(rows, slot, acc, C: gl.constexpr):
    """``acc`` and one tap, channels along ``C.axis``; not yet waited for."""
    if C.axis == 0:
        return warpgroup_mma(slot, rows.permute([1, 0]), acc, is_async=True)
    else:
        return warpgroup_mma(rows, slot.permute([1, 0]), acc, is_async=True)


@gluon.jit
def consume(
    rings, rest, CONSUMER: gl.constexpr, G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
    SWIZZLED: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """One consumer: its half of every tile, multiplied, finished and stored."""
    BLOCKS: gl.constexpr = (G.kept + C.depth - 1) // C.depth
    TAPS: gl.constexpr = len(G.taps)
    strips, weights, x_full, x_empty, w_full, w_empty, go = rings
    out, batch, tiles, tensors, numbers, partials, plane, counted = rest
    if C.axis == 0:
        SHAPE: gl.constexpr = [C.channels, C.positions]
    else:
        SHAPE: gl.constexpr = [C.positions, C.channels]
    strip = 0
    step = 0
    if C.stagger > 0 and CONSUMER == 1:
        mbarrier.wait(go, 0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        block, cd, ch = locate(tile, G, C)
        _, nd, _ = entry(G, 0, cd)
        _, nh, _ = entry(G, 1, ch)
        even = gl.zeros(SHAPE, gl.float32, ACC)
        if G.joined == 2:
            odd = gl.zeros(SHAPE, gl.float32, ACC)
        begun = step
        for s in range(nd * nh * BLOCKS):
            x_slot = strip % C.x_stages
            mbarrier.wait(x_full.index(x_slot), (strip // C.x_stages) & 1)
            first = x_slot * C.strip + CONSUMER * C.positions
            for i in gl.static_range(TAPS):
                if C.hold:  # filled once: the barrier stays open
                    w_slot = step - begun
                    mbarrier.wait(w_full.index(w_slot), 0)
                else:
                    w_slot = step % C.w_stages
                    mbarrier.wait(w_full.index(w_slot), (step // C.w_stages) & 1)
                rows = view(strips, first + G.taps[i][1], C.positions, C, SWIZZLED)
                if G.taps[i][0] == 0:
                    even = multiply(rows, weights.index(w_slot), even, C)
                else:
                    odd = multiply(rows, weights.index(w_slot), odd, C)
                # One product stays in flight; the one before it has let go of what it read.
                if G.joined == 2:
                    even, odd = warpgroup_mma_wait(1, deps=[even, odd])
                else:
                    even = warpgroup_mma_wait(1, deps=[even])
                if not C.hold:
                    last = (step + C.w_stages - 1) % C.w_stages
                    mbarrier.arrive(w_empty.index(last), pred=step > begun)
                if i == 0:
                    last = (strip + C.x_stages - 1) % C.x_stages
                    mbarrier.arrive(x_empty.index(last), pred=s > 0)
                step += 1
                if C.stagger > 0 and CONSUMER == 0:
                    mbarrier.arrive(go, pred=step == C.stagger)
            strip += 1
        if G.joined == 2:
            even, odd = warpgroup_mma_wait(0, deps=[even, odd])
        else:
            even = warpgroup_mma_wait(0, deps=[even])
        if not C.hold:
            last = (step + C.w_stages - 1) % C.w_stages
            mbarrier.arrive(w_empty.index(last), pred=step > begun)
        last = (strip + C.x_stages - 1) % C.x_stages
        mbarrier.arrive(x_empty.index(last), pred=step > begun)
        if G.joined == 2:
            v = interleave(even, odd, C)
        else:
            v = even
        finish(v, block, cd, ch, rest, CONSUMER, G, C, A)
    if C.stagger > 0 and CONSUMER == 0:
        mbarrier.arrive(go, pred=step < C.stagger)


@gluon.jit
def interleave(even, odd, C: gl.constexpr):
    """The two width classes of a tile, each result beside its neighbour: registers only."""
    both = gl.join(even, odd)
    if C.axis == 0:
        return gl.reshape(both, [C.channels, 2 * C.positions])
    else:
        return gl.reshape(gl.permute(both, [0, 2, 1]), [2 * C.positions, C.channels])


@gluon.constexpr_function
def rows_layout(axis, vector):
    """A warp along a row of positions, each thread at ``vector`` neighbours."""
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
def finish(
    v, block, cd, ch, rest,
    CONSUMER: gl.constexpr, G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """Steps, statistic and store of one consumer's share of a tile."""
    out, batch, tiles, tensors, numbers, partials, plane, counted = rest
    AXIS: gl.constexpr = C.axis
    STEPS: gl.constexpr = A.after
    WHOLE: gl.constexpr = G.channels == C.channels
    channel, p = indices(v, C)
    live = channel < G.channels
    n0, there, _ = places(block, p, batch, cd, ch, CONSUMER, G, C, A)
    v = steps(v, channel, live, there, n0, tensors, numbers, 1, STEPS, AXIS, WHOLE)
    if A.late != "":
        LATE: gl.constexpr = A.late
        gl.static_assert(AXIS == 0, "a statistic takes channels first")
        # A row of partials for each channel of a sample, or of the batch.
        OF_TILE: gl.constexpr = C.consumers * G.classes[0] * G.classes[1]
        at = (block // counted * A.counted + channel).to(gl.int64) * (counted * OF_TILE)
        at += block % counted * OF_TILE + (cd * G.classes[1] + ch) * C.consumers + CONSUMER
        put(partials + at, plane, gather(v, there, LATE), live)
    if A.stored:
        if C.store == "lines" and not A.summed:
            write_lines(out, v, batch, block, cd, ch, CONSUMER, G, C, A)
        else:
            v = narrow(v, out.dtype.element_ty)
            if C.store == "rows" and not A.summed:
                ROWS: gl.constexpr = rows_layout(AXIS, C.vector)
                v = gl.convert_layout(v, ROWS)
                channel, p = indices(v, C)
            n0, there, place = places(block, p, batch, cd, ch, CONSUMER, G, C, A)
            write(out, v, channel, channel < G.channels, n0, there, place, A, AXIS)


@gluon.jit
def places(
    block, p, batch, cd, ch,
    CONSUMER: gl.constexpr, G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """For positions of a tile: its first sample, which are results, where they lie from there."""
    T: gl.constexpr = rows_of(G, C)
    START: gl.constexpr = CONSUMER * C.positions * G.joined
    n0, _, _, _ = anchors(block, START, batch, T, True)
    if A.linear:  # rows follow each other as results do
        at = block % T.tiles_of_sample * (C.tile * G.joined) + START + p
        return n0, (at < G.sample * G.joined) & (n0 < batch), at * A.strides[4]
    else:
        n, d, h, u = anchors(block, START + p, batch, T, True)
        yd = d * G.classes[0] + cd
        yh = h * G.classes[1] + ch
        there = (n < batch) & (yd < G.results[0]) & (yh < G.results[1]) & (u < G.results[2])
        place = (n - n0) * A.strides[0] + yd * A.strides[2] + yh * A.strides[3]
        return n0, there, place + u * A.strides[4]


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


@gluon.constexpr_function
def lines_layout(axis, channels, words, part):
    """A warp along a row, 32 words at once; a thread's registers run through the row first.

    Then through its channels of one ``part``, then through the parts.
    """

    def at(position, channel):
        return [channel, position] if axis == 0 else [position, channel]

    def bits(begin, end):
        return [1 << i for i in range(begin.bit_length() - 1, end.bit_length() - 1)]

    across = [at(each, 0) for each in bits(32, words)]
    down = [at(0, each) for each in bits(1, part // 4) + bits(part, channels)]
    lanes = [at(each, 0) for each in bits(1, 32)]
    warps = [at(0, each) for each in bits(part // 4, part)]
    return gl.DistributedLinearLayout(across + down, lanes, warps, [], at(words, channels))


@gluon.constexpr_function
def turn_code(count):
    """PTX that turns ``count`` registers of 32 lanes, a ring of words, by 0 to 31 words.

    A lane first picks the register from which its word moves on, then words change lanes.
    """
    lines = ["{ .reg .b32 lane, from, to; .reg .pred wraps;", f".reg .b32 t<{count}>;"]
    lines += ["mov.u32 lane, %laneid;", f"add.u32 to, lane, ${2 * count};"]
    lines += ["setp.gt.u32 wraps, to, 31;", f"sub.u32 from, lane, ${2 * count};"]
    for i in range(count):
        lines.append(f"selp.b32 t{i}, ${count + (i - 1) % count}, ${count + i}, wraps;")
    for i in range(count):
        lines.append(f"shfl.sync.idx.b32 ${i}, t{i}, from, 31, 0xffffffff;")
    return "\n".join(lines) + "}"


@gluon.constexpr_function
def turn_operands(count):
    return ",".join(["=&r"] * count + ["r"] * (2 * count))


@gluon.jit
def turned(v, by, COUNT: gl.constexpr):
    """Rows of a tile in ``lines_layout``, each turned by its own number of words below 32."""
    CODE: gl.constexpr = turn_code(COUNT)
    OPERANDS: gl.constexpr = turn_operands(COUNT)
    return gl.inline_asm_elementwise(
        CODE, OPERANDS, [v, by], dtype=gl.int32, is_pure=False, pack=COUNT
    )


@gluon.jit
def runs(
    block, batch, cd, ch,
    CONSUMER: gl.constexpr, G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """A tile no longer than a line is at most two runs of results: where they lie and end.

    Position ``q`` lies at ``first + q`` if ``q < break`` and at ``second + q`` if not.
    """
    T: gl.constexpr = rows_of(G, C)
    START: gl.constexpr = CONSUMER * C.positions
    n, d, h, w = anchors(block, START, batch, T)
    left = G.extent[2] - w
    m, e, i, _ = anchors(block, START + left, batch, T)
    yd = d * G.classes[0] + cd
    yh = h * G.classes[1] + ch
    first = yd * A.strides[2] + yh * A.strides[3] + w * G.joined
    here = (n < batch) & (yd < G.results[0]) & (yh < G.results[1])
    turn = left * G.joined
    ROW: gl.constexpr = C.positions * G.joined
    end = gl.minimum(gl.minimum(turn, G.results[2] - w * G.joined), ROW)
    first_end = gl.where(here, end, 0)
    yd = e * G.classes[0] + cd
    yh = i * G.classes[1] + ch
    second = (m - n) * A.strides[0] + yd * A.strides[2] + yh * A.strides[3] - turn
    here = (m < batch) & (yd < G.results[0]) & (yh < G.results[1])
    second_end = gl.where(here, gl.minimum(turn + G.results[2], ROW), 0)
    return n, turn, first, first_end, second, second_end


@gluon.jit
def write_lines(
    out, v, batch, block, cd, ch,
    CONSUMER: gl.constexpr, G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """Store rows of any width and alignment as whole lines of 128 bytes.

    A line that a warp meets halfway costs two requests instead of one, and they are what limits
    stores. So each channel's row is turned until its words lie in the lanes where lines begin.
    """
    ROW: gl.constexpr = C.positions * G.joined
    if out.dtype.element_ty.primitive_bitwidth == 16:
        WORDS: gl.constexpr = ROW // 2
        v = paired(v, out.dtype.element_ty, C)
    else:
        WORDS: gl.constexpr = ROW
        v = v.to(gl.int32, bitcast=True)
    # 16 words of a thread at once: their addresses must not crowd out the other results.
    PART: gl.constexpr = 2048 // WORDS
    LINES: gl.constexpr = lines_layout(C.axis, C.channels, WORDS, PART)
    v = gl.convert_layout(v, LINES)
    n, turn, first, first_end, second, second_end = runs(block, batch, cd, ch, CONSUMER, G, C, A)
    place = (turn, first, first_end, second, second_end)
    write_part(out, v, n, place, 0, PART, WORDS, G, C, A)


@gluon.jit
def write_part(
    out, v, n, place, FIRST: gl.constexpr, PART: gl.constexpr, WORDS: gl.constexpr,
    G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """Rows of words from channel ``FIRST`` on, ``PART`` channels at a time."""
    CHANNELS: gl.constexpr = v.shape[C.axis]
    if CHANNELS > PART:
        if C.axis == 0:
            low, high = gl.split(gl.permute(gl.reshape(v, [2, CHANNELS // 2, WORDS]), [1, 2, 0]))
        else:
            low, high = gl.split(gl.permute(gl.reshape(v, [WORDS, 2, CHANNELS // 2]), [0, 2, 1]))
        write_part(out, low, n, place, FIRST, PART, WORDS, G, C, A)
        write_part(out, high, n, place, FIRST + CHANNELS // 2, PART, WORDS, G, C, A)
    elif out.dtype.element_ty.primitive_bitwidth == 16:
        write_pairs(out, v, n, place, FIRST, PART, WORDS, G, C, A)
    else:
        write_words(out, v, n, place, FIRST, PART, WORDS, G, C, A)


@gluon.jit
def of_part(
    v, n, first, FIRST: gl.constexpr, PART: gl.constexpr, WORDS: gl.constexpr,
    G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """A part in its own layout; its words' numbers; its rows: real, from where, in which phase.

    The phase is where a row begins within its line; the tensor itself begins with one.
    """
    LAYOUT: gl.constexpr = lines_layout(C.axis, PART, WORDS, PART)
    v = gl.convert_layout(v, LAYOUT, assert_trivial=True)
    channel = FIRST + gl.arange(0, PART, layout=gl.SliceLayout(1 - C.axis, LAYOUT))
    t = gl.expand_dims(gl.arange(0, WORDS, layout=gl.SliceLayout(C.axis, LAYOUT)), C.axis)
    live = gl.expand_dims(channel < G.channels, 1 - C.axis)
    row = gl.expand_dims(channel * A.strides[1], 1 - C.axis)
    return v, t, live, row, row + first + (n.to(gl.int64) * A.strides[0]).to(gl.int32)


@gluon.jit
def write_words(
    out, v, n, place, FIRST: gl.constexpr, PART: gl.constexpr, WORDS: gl.constexpr,
    G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """Rows of 32-bit results."""
    COUNT: gl.constexpr = WORDS // 32
    turn, first, first_end, second, second_end = place
    v, t, live, row, phase = of_part(v, n, first, FIRST, PART, WORDS, G, C, A)
    by = phase & 31
    v = turned(v, by, COUNT)
    q = (t - by) & (WORDS - 1)
    at = gl.where(q < turn, first, second) + q
    keep = live & (q < gl.where(q < turn, first_end, second_end))
    out += n.to(gl.int64) * A.strides[0]
    gl.store(out + (row + at), v.to(gl.float32, bitcast=True), mask=keep)


@gluon.jit
def write_pairs(
    out, v, n, place, FIRST: gl.constexpr, PART: gl.constexpr, WORDS: gl.constexpr,
    G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """Rows of pairs of 16-bit results, turned by an odd number too: then pairs are made anew."""
    COUNT: gl.constexpr = WORDS // 32
    ROW: gl.constexpr = 2 * WORDS
    turn, first, first_end, second, second_end = place
    v, t, live, row, phase = of_part(v, n, first, FIRST, PART, WORDS, G, C, A)
    sample = n.to(gl.int64) * A.strides[0]
    # A second run in another phase has no words of its own.
    aligned = ((second - first) & 1) == 0
    second_words = gl.where(aligned, second_end, 0)
    write_ends(out + sample, v, t, live, row, place, aligned)
    by = phase & 63
    before = turned(v, by * 0 + 1, COUNT)
    shifted = (v << 16) | ((before >> 16) & 0xFFFF)
    v = turned(gl.where((by & 1) == 1, shifted, v), by >> 1, COUNT)
    q = (2 * t - by) & (ROW - 1)
    in_first = q < turn
    keep = live & (q + 1 < gl.where(in_first, first_end, second_words))
    odd = sample.to(gl.int32) & 1  # count from an even element
    at = row + (gl.where(in_first, first, second) + odd) + q
    words = (out + (sample - odd)).to(gl.pointer_type(gl.int32), bitcast=True)
    gl.store(words + (at >> 1), v, mask=keep)


@gluon.jit
def write_ends(out, v, t, live, row, place, aligned):
    """The first and last results of both runs, which may share a word with what is not theirs."""
    HALF: gl.constexpr = out.dtype.element_ty
    turn, first, first_end, second, second_end = place
    for half in gl.static_range(2):
        q = 2 * t + half
        in_first = q < turn
        start = gl.where(in_first, 0, turn)
        end = gl.where(in_first, first_end, second_end)
        keep = (q < end) & ((q == start) | (q == end - 1) | ~(in_first | aligned))
        at = gl.where(in_first, first, second) + q
        u = (v >> (16 * half)).to(gl.int16).to(HALF, bitcast=True)
        gl.store(out + (row + at), u, mask=live & keep)


@gluon.jit
def paired(v, KIND: gl.constexpr, C: gl.constexpr):
    """Neighbouring results of a row as two 16-bit halves of one word: registers only."""
    if C.axis == 0:
        low, high = gl.split(gl.reshape(v, [v.shape[0], v.shape[1] // 2, 2]))
    else:
        low, high = gl.split(gl.permute(gl.reshape(v, [v.shape[0] // 2, 2, v.shape[1]]), [0, 2, 1]))
    if KIND == gl.float16:
        CODE: gl.constexpr = "cvt.rn.f16x2.f32 $0, $2, $1;"
    else:
        CODE: gl.constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;"
    return gl.inline_asm_elementwise(
        CODE, "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit(do_not_specialize=["epoch"])
def convolve_hopper(
    x, halo, w, out, flag, epoch, batch, tiles, tensors, numbers, partials, plane, counted,
    G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """``x``, ``halo``, ``w`` are tensor descriptors of the rows (two box sizes) and the weights.

    Weights that are not finite are left to the kernel that tells taps outside the input apart:
    this one then has no tiles.
    """
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(C.swizzle, C.itemsize * 8, 2)
    WIDE: gl.constexpr = C.positions if C.axis == 0 else C.channels
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 32 // C.itemsize])
    tiles = gl.where(gl.load(flag) >= epoch, 0, tiles)
    # A row is indexed by its own: the strip's views start anywhere.
    strips = gl.allocate_shared_memory(x.dtype, [C.x_stages * C.strip, 1, C.depth], SWIZZLED)
    weights = gl.allocate_shared_memory(x.dtype, [C.w_stages, C.channels, C.depth], SWIZZLED)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    x_full = gl.allocate_shared_memory(gl.int64, [C.x_stages, 1], BARRIER)
    x_empty = gl.allocate_shared_memory(gl.int64, [C.x_stages, 1], BARRIER)
    w_full = gl.allocate_shared_memory(gl.int64, [C.w_stages, 1], BARRIER)
    w_empty = gl.allocate_shared_memory(gl.int64, [C.w_stages, 1], BARRIER)
    go = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    X_STAGES: gl.constexpr = C.x_stages
    W_STAGES: gl.constexpr = C.w_stages
    for i in gl.static_range(X_STAGES):
        mbarrier.init(x_full.index(i), count=1)
        mbarrier.init(x_empty.index(i), count=C.consumers)
    for i in gl.static_range(W_STAGES):
        mbarrier.init(w_full.index(i), count=1)
        mbarrier.init(w_empty.index(i), count=C.consumers)
    mbarrier.init(go, count=1)
    fence_async_shared()
    rings = (strips, weights, x_full, x_empty, w_full, w_empty, go)
    rest = (out, batch, tiles, tensors, numbers, partials, plane, counted)
    if C.consumers == 2:
        gl.warp_specialize(
            [
                (consume, (rings, rest, 0, G, C, A, SWIZZLED, ACC)),
                (consume, (rings, rest, 1, G, C, A, SWIZZLED, ACC)),
                (feed_strips, (x, halo, strips, x_full, x_empty, tiles, G, C, SWIZZLED)),
                (feed_weights, (w, weights, w_full, w_empty, tiles, G, C)),
            ],
            [4, 1, 1],
            [C.registers, 24, 24],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (rings, rest, 0, G, C, A, SWIZZLED, ACC)),
                (feed_strips, (x, halo, strips, x_full, x_empty, tiles, G, C, SWIZZLED)),
                (feed_weights, (w, weights, w_full, w_empty, tiles, G, C)),
            ],
            [1, 1],
            [24, 24],
        )
