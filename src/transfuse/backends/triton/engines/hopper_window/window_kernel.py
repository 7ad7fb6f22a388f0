# mypy: ignore-errors
"""The Hopper loop for a convolution that a window follows: two members of the window at once.

Two consumers take one box of anchors each. For every pair of width members they sum up into two
accumulators, which then meet the best so far (or the sum) in a third: results never leave the
registers until the last member. Weights serve both consumers, rows both members. Bodies of
loops are functions, as in ``strip_kernel.py``.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from transfuse.backends.triton.engines.hopper_records import Results, Ring
from transfuse.backends.triton.engines.hopper_strip.strip_kernel import pick
from transfuse.backends.triton.engines.hopper_window import window_layout
from transfuse.backends.triton.epilogue.arithmetic import larger, narrow
from transfuse.backends.triton.epilogue.records import Channels, Operands
from transfuse.backends.triton.epilogue.tile_ops import apply_ops
from transfuse.backends.triton.versions import async_load, reinterpret

LIFT = gl.constexpr(window_layout.LIFT)


@gluon.constexpr_function
def of_axis(geometry, axis, part):
    """One of first, count, slot for all members of an axis."""
    return tuple(entry[part] for entry in geometry.entries[axis])


@gluon.jit
def entry(G: gl.constexpr, AXIS: gl.constexpr, member):
    """first, count, slot of a member along an axis."""
    FIRST: gl.constexpr = of_axis(G, AXIS, 0)
    COUNT: gl.constexpr = of_axis(G, AXIS, 1)
    SLOT: gl.constexpr = of_axis(G, AXIS, 2)
    return pick(FIRST, member), pick(COUNT, member), pick(SLOT, member)


@gluon.jit
def locate(program, G: gl.constexpr):
    """The tile of a program and its share of the members; shares differ in work, so they turn."""
    tile = program // G.split
    turn = tile // gl.maximum(gl.num_programs(0) // G.split, 1)
    return tile, (program + turn) % G.split


@gluon.jit
def corner(box, G: gl.constexpr):
    """The first anchor of a box: d, h, w, n. Samples vary fastest, then width."""
    BOXES: gl.constexpr = G.boxes
    n = box % BOXES[3] * G.box[3]
    box = box // BOXES[3]
    w = box % BOXES[2] * G.box[2]
    box = box // BOXES[2]
    return box // BOXES[1] * G.box[0], box % BOXES[1] * G.box[1], w, n


@gluon.jit
def apart(offset, RESIDUES: gl.constexpr):
    """An offset as residue and shift; a multiple of the residues keeps division positive."""
    raised = offset + LIFT * RESIDUES
    return raised % RESIDUES, raised // RESIDUES - LIFT


@gluon.jit
def feed_offset(
    x, ring, step, tile, k, top, shift, G: gl.constexpr, C: gl.constexpr, BOXED: gl.constexpr
):
    """Both consumers' boxes at all width offsets below ``top``, each pair once its slot is empty;
    the step after them. ``shift`` has residue and shift of depth, then of height.
    """
    rd, od, rh, oh = shift
    COPIES: gl.constexpr = len(G.below)
    SHAPE: gl.constexpr = [G.box[0], G.box[1], G.box[2], G.box[3], C.depth]
    for i in gl.static_range(COPIES):
        rw, ow = apart(top - G.below[i], G.residues[2])
        slot = step % C.x_stages
        mbarrier.wait(ring.empty.index(slot), ((step // C.x_stages) & 1) ^ 1)
        bar = ring.full.index(slot)
        mbarrier.expect(bar, 2 * G.positions * C.depth * C.itemsize)
        deep = (rd * G.residues[1] + rh) * G.residues[2] + rw
        deep = deep * G.extent[0] + od - G.low
        for b in gl.static_range(2):
            d, h, w, n = corner(2 * tile + b, G)
            to = reinterpret(ring.slots.index(2 * slot + b), ring.slots.dtype, SHAPE, BOXED)
            async_load(x, [deep + d, h + oh, w + ow, n, k * C.depth], bar, to)
        step += 1
    return step


@gluon.jit
def feed_pair(
    x, ring, step, tile, top, taps, G: gl.constexpr, C: gl.constexpr, BOXED: gl.constexpr
):
    """The boxes of one pair of members, at all its offsets; the step after them.

    ``taps`` has first offset and count of depth, then of height.
    """
    fd, nd, fh, nh = taps
    BLOCKS: gl.constexpr = (G.kept + C.depth - 1) // C.depth
    for tap in range(nd * nh):
        rd, od = apart(fd - tap // nh * G.step[0], G.residues[0])
        rh, oh = apart(fh - tap % nh * G.step[1], G.residues[1])
        for k in range(BLOCKS):
            step = feed_offset(x, ring, step, tile, k, top, (rd, od, rh, oh), G, C, BOXED)
    return step


@gluon.jit
def feed_boxes(x, ring, programs, G: gl.constexpr, C: gl.constexpr, BOXED: gl.constexpr):
    """Rows of both consumers' boxes at one offset after the other; outside they are zero."""
    PAIRS: gl.constexpr = len(G.tops)
    TOPS: gl.constexpr = G.tops
    step = 0
    for program in range(gl.program_id(0), programs, gl.num_programs(0)):
        tile, share = locate(program, G)
        for line in range(share * G.lines, (share + 1) * G.lines):
            fd, nd, _ = entry(G, 0, line // G.members[1])
            fh, nh, _ = entry(G, 1, line % G.members[1])
            for pair in range(PAIRS):
                top = pick(TOPS, pair)
                step = feed_pair(x, ring, step, tile, top, (fd, nd, fh, nh), G, C, BOXED)


@gluon.jit
def feed_products(w, ring, step, row, k, G: gl.constexpr, C: gl.constexpr):
    """Weights of all products at one offset, each once its slot is empty; the step after them."""
    COPIES: gl.constexpr = len(G.products)
    for i in gl.static_range(COPIES):
        for j in gl.static_range(len(G.products[i])):
            slot = step % C.w_stages
            mbarrier.wait(ring.empty.index(slot), ((step // C.w_stages) & 1) ^ 1)
            bar = ring.full.index(slot)
            mbarrier.expect(bar, G.padded * C.depth * C.itemsize)
            place = [0, (row + G.products[i][j][1]) * G.kept + k * C.depth]
            async_load(w, place, bar, ring.slots.index(slot))
            step += 1
    return step


@gluon.jit
def feed_weights_of_pair(w, ring, step, taps, G: gl.constexpr, C: gl.constexpr):
    """The weights of one pair of members, at all its offsets; the step after them.

    ``taps`` has count and first slot of depth, then of height.
    """
    nd, sd, nh, sh = taps
    BLOCKS: gl.constexpr = (G.kept + C.depth - 1) // C.depth
    for tap in range(nd * nh):
        row = ((sd + tap // nh) * G.slots[1] + sh + tap % nh) * G.slots[2]
        for k in range(BLOCKS):
            step = feed_products(w, ring, step, row, k, G, C)
    return step


@gluon.jit
def feed_weights(w, ring, programs, G: gl.constexpr, C: gl.constexpr):
    """Weights of one product after the other, in the order of use."""
    PAIRS: gl.constexpr = len(G.tops)
    step = 0
    for program in range(gl.program_id(0), programs, gl.num_programs(0)):
        _, share = locate(program, G)
        for line in range(share * G.lines, (share + 1) * G.lines):
            _, nd, sd = entry(G, 0, line // G.members[1])
            _, nh, sh = entry(G, 1, line % G.members[1])
            for _ in range(PAIRS):
                step = feed_weights_of_pair(w, ring, step, (nd, sd, nh, sh), G, C)


@gluon.jit
def multiply_offset(
    even, odd, rings, x_step, step, begun, CONSUMER: gl.constexpr, G: gl.constexpr, C: gl.constexpr
):  # fmt: skip
    """Both sums after all products at one offset, the last still in flight; the steps after them.

    The steps from ``begun`` on were this pair's before.
    """
    COPIES: gl.constexpr = len(G.products)
    rows, weights = rings
    for i in gl.static_range(COPIES):
        x_slot = x_step % C.x_stages
        mbarrier.wait(rows.full.index(x_slot), (x_step // C.x_stages) & 1)
        box = rows.slots.index(2 * x_slot + CONSUMER).permute([1, 0])
        for j in gl.static_range(len(G.products[i])):
            w_slot = step % C.w_stages
            mbarrier.wait(weights.full.index(w_slot), (step // C.w_stages) & 1)
            slot = weights.slots.index(w_slot)
            if G.products[i][j][0] == 0:
                even = warpgroup_mma(slot, box, even, is_async=True)
            else:
                odd = warpgroup_mma(slot, box, odd, is_async=True)
            even, odd = warpgroup_mma_wait(1, deps=[even, odd])
            last = (step + C.w_stages - 1) % C.w_stages
            mbarrier.arrive(weights.empty.index(last), pred=step > begun)
            if j == 0:  # the last product of the copy before is done
                last = (x_step + C.x_stages - 1) % C.x_stages
                mbarrier.arrive(rows.empty.index(last), pred=step > begun)
            step += 1
        x_step += 1
    return even, odd, x_step, step


@gluon.jit
def multiply_pair(
    rings, x_step, step, offsets, more,
    CONSUMER: gl.constexpr, G: gl.constexpr, C: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """The sums of one pair of members, so many offsets each; the steps after them."""
    SHAPE: gl.constexpr = [G.padded, G.positions]
    rows, weights = rings
    even = gl.zeros(SHAPE, gl.float32, ACC)
    odd = gl.zeros(SHAPE, gl.float32, ACC)
    begun = step
    rounds = gl.to_tensor(1)
    while rounds > 0:  # see ``strip_kernel.consume``
        for _ in range(offsets):
            even, odd, x_step, step = multiply_offset(
                even, odd, rings, x_step, step, begun, CONSUMER, G, C
            )
        even, odd = warpgroup_mma_wait(0, deps=[even, odd])
        rounds = more
    last = (step + C.w_stages - 1) % C.w_stages
    mbarrier.arrive(weights.empty.index(last), pred=step > begun)
    last = (x_step + C.x_stages - 1) % C.x_stages
    mbarrier.arrive(rows.empty.index(last), pred=step > begun)
    return even, odd, x_step, step


@gluon.jit
def consume(
    rings, results, programs, more, CONSUMER: gl.constexpr, G: gl.constexpr, C: gl.constexpr,
    A: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """One consumer: its box of every tile, through a share of the members, finished and stored."""
    BLOCKS: gl.constexpr = (G.kept + C.depth - 1) // C.depth
    PAIRS: gl.constexpr = len(G.tops)
    SHAPE: gl.constexpr = [G.padded, G.positions]
    NONE: gl.constexpr = 0.0 if G.window == "sum" else float("-inf")
    x_step = 0
    step = 0
    for program in range(gl.program_id(0), programs, gl.num_programs(0)):
        tile, share = locate(program, G)
        best = gl.full(SHAPE, NONE, gl.float32, ACC)
        for line in range(share * G.lines, (share + 1) * G.lines):
            _, nd, _ = entry(G, 0, line // G.members[1])
            _, nh, _ = entry(G, 1, line % G.members[1])
            for _pair in range(PAIRS):
                even, odd, x_step, step = multiply_pair(
                    rings, x_step, step, nd * nh * BLOCKS, more, CONSUMER, G, C, ACC
                )
                if G.window == "sum":
                    best += even + odd
                else:
                    best = larger(best, larger(even, odd))
        finish_box(best, 2 * tile + CONSUMER, share, results, G, A)


@gluon.jit
def finish_box(v, box, share, results, G: gl.constexpr, A: gl.constexpr):
    """Tile ops and store of one box."""
    out = results.out
    batch = results.batch
    LAYOUT: gl.constexpr = v.type.layout
    OPS: gl.constexpr = A.after
    WHOLE: gl.constexpr = G.channels == G.padded
    channel = gl.arange(0, G.padded, layout=gl.SliceLayout(1, LAYOUT))
    p = gl.arange(0, G.positions, layout=gl.SliceLayout(0, LAYOUT))
    d0, h0, w0, n0 = corner(box, G)
    n = n0 + p % G.box[3]
    w = w0 + p // G.box[3] % G.box[2]
    h = h0 + p // (G.box[3] * G.box[2]) % G.box[1]
    d = d0 + p // (G.box[3] * G.box[2] * G.box[1])
    there = (n < batch) & (d < G.results[0]) & (h < G.results[1]) & (w < G.results[2])
    live = channel < G.channels
    v = apply_ops(v, Channels(channel, live), there, n0, results.operands, 1, OPS, 0, WHOLE)
    place = n.to(gl.int64) * A.strides[0] + d * A.strides[2] + h * A.strides[3] + w * A.strides[4]
    out += share.to(gl.int64) * A.part
    write(out, narrow(v, out.dtype.element_ty), channel, live, there, place, A)


@triton.jit
def write(out, v, channel, live, there, place, A: tl.constexpr):
    """Store a tile, channels first."""
    if A.summed:
        tl.store(out + place[None, :], v, mask=there[None, :])
    else:
        target = (channel.to(tl.int64) * A.strides[1])[:, None] + place[None, :]
        tl.store(out + target, v, mask=live[:, None] & there[None, :])


@gluon.jit(do_not_specialize=["more"])
def convolve_window(
    x, w, out, more, batch, programs, tensors, numbers,
    G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """``x`` and ``w`` are tensor descriptors: boxes of the copy by residue, blocks of weights.

    ``more`` is 0, and weights that are not finite are as in ``convolve_strip``.
    """
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(C.swizzle, C.itemsize * 8, 2)
    BOXED: gl.constexpr = gl.NVMMASharedLayout(C.swizzle, C.itemsize * 8, 5)
    WIDE: gl.constexpr = G.positions
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 32 // C.itemsize])
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    X_STAGES: gl.constexpr = C.x_stages
    W_STAGES: gl.constexpr = C.w_stages
    rows = gl.allocate_shared_memory(x.dtype, [2 * C.x_stages, G.positions, C.depth], SWIZZLED)
    weights = gl.allocate_shared_memory(x.dtype, [C.w_stages, G.padded, C.depth], SWIZZLED)
    x_full = gl.allocate_shared_memory(gl.int64, [C.x_stages, 1], BARRIER)
    x_empty = gl.allocate_shared_memory(gl.int64, [C.x_stages, 1], BARRIER)
    w_full = gl.allocate_shared_memory(gl.int64, [C.w_stages, 1], BARRIER)
    w_empty = gl.allocate_shared_memory(gl.int64, [C.w_stages, 1], BARRIER)
    for i in gl.static_range(X_STAGES):
        mbarrier.init(x_full.index(i), count=1)
        mbarrier.init(x_empty.index(i), count=2)
    for i in gl.static_range(W_STAGES):
        mbarrier.init(w_full.index(i), count=1)
        mbarrier.init(w_empty.index(i), count=2)
    fence_async_shared()
    rows = Ring(rows, x_full, x_empty)
    weights = Ring(weights, w_full, w_empty)
    rings = (rows, weights)
    results = Results(out, batch, Operands(tensors, numbers))
    gl.warp_specialize(
        [
            (consume, (rings, results, programs, more, 0, G, C, A, ACC)),
            (consume, (rings, results, programs, more, 1, G, C, A, ACC)),
            (feed_boxes, (x, rows, programs, G, C, BOXED)),
            (feed_weights, (w, weights, programs, G, C)),
        ],
        [4, 1, 1],
        [C.registers, 24, 24],
    )
