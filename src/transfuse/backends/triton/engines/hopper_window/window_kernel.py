# mypy: ignore-errors
"""The Hopper loop for a convolution that a window follows: two members of the window at once.

Two consumers take one box of anchors each. For every pair of width members they sum up into two
accumulators, which then meet the best so far (or the sum) in a third: results never leave the
registers until the last member. Weights serve both consumers, rows both members. Bodies of
loops are functions, as in ``strip_kernel.py``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from transfuse.backends.triton.engines.hopper_records import Results, Ring, WindowSizes
from transfuse.backends.triton.engines.hopper_strip.strip_store import alive, write
from transfuse.backends.triton.engines.hopper_strip.strip_tiles import (
    blocks_of_input,
    entry,
    pick,
)
from transfuse.backends.triton.engines.hopper_window import window_layout
from transfuse.backends.triton.epilogue.arithmetic import larger, narrow
from transfuse.backends.triton.epilogue.records import Channels, Operands
from transfuse.backends.triton.epilogue.tile_ops import apply_ops
from transfuse.backends.triton.versions import async_load, reinterpret

LIFT = gl.constexpr(window_layout.LIFT)


@gluon.jit
def taps_of_line(line, sizes, P: gl.constexpr):
    """first, count, slot of a member of depth, then of one of height."""
    fd, nd, sd = entry(sizes.entries, 0, P.members[0], line // P.members[1])
    fh, nh, sh = entry(sizes.entries, P.members[0], P.members[1], line % P.members[1])
    return fd, nd, sd, fh, nh, sh


@gluon.jit
def locate(program, sizes, P: gl.constexpr):
    """The tile of a program, and the first and last line of its share of the members, and which
    share that is; shares differ in work, so they turn."""
    split = sizes.split
    tile = program // split
    turn = tile // gl.maximum(gl.num_programs(0) // split, 1)
    share = (program + turn) % split
    lines = P.members[0] * P.members[1] // split
    return tile, share * lines, share * lines + lines, share


@gluon.jit
def corner(box, sizes, P: gl.constexpr):
    """The first anchor of a box: d, h, w, n. Samples vary fastest, then width."""
    high, wide, samples = sizes.boxes
    n = box % samples * P.box[3]
    box = box // samples
    w = box % wide * P.box[2]
    box = box // wide
    return box // high * P.box[0], box % high * P.box[1], w, n


@gluon.jit
def apart(raised, RESIDUES: gl.constexpr):
    """An offset, as it was told, as residue and shift."""
    return raised % RESIDUES, raised // RESIDUES - LIFT


@gluon.jit
def feed_offset(
    x, ring, step, corners, k, shift, sizes, P: gl.constexpr, C: gl.constexpr,
    BOXED: gl.constexpr,
):  # fmt: skip
    """Both consumers' boxes at all width offsets below the top one, each pair once its slot is
    empty; the step after them. ``shift``: residue and shift of depth, those of height, the top.
    """
    rd, od, rh, oh, top = shift
    COPIES: gl.constexpr = len(P.below)
    SHAPE: gl.constexpr = [P.box[0], P.box[1], P.box[2], P.box[3], C.depth]
    for i in gl.static_range(COPIES):
        rw, ow = apart(top - P.below[i], P.residues[2])
        slot = step % C.x_stages
        mbarrier.wait(ring.empty.index(slot), ((step // C.x_stages) & 1) ^ 1)
        bar = ring.full.index(slot)
        mbarrier.expect(bar, 2 * P.positions * C.depth * C.itemsize)
        deep = (rd * P.residues[1] + rh) * P.residues[2] + rw
        deep = deep * sizes.haloed + od - sizes.low
        for b in gl.static_range(2):
            d, h, w, n = corners[b]
            to = reinterpret(ring.slots.index(2 * slot + b), ring.slots.dtype, SHAPE, BOXED)
            async_load(x, [deep + d, h + oh, w + ow, n, k * C.depth], bar, to)
        step += 1
    return step


@gluon.jit
def feed_pair(
    x, ring, step, corners, top, taps, sizes,
    P: gl.constexpr, C: gl.constexpr, BOXED: gl.constexpr,
):  # fmt: skip
    """The boxes of one pair of members, at all its offsets; the step after them.

    ``taps`` are those of a line.
    """
    fd, nd, _, fh, nh, _ = taps
    blocks = blocks_of_input(sizes, C)
    for tap in range(nd * nh):
        rd, od = apart(fd - tap // nh * P.step[0], P.residues[0])
        rh, oh = apart(fh - tap % nh * P.step[1], P.residues[1])
        for k in range(blocks):
            shift = (rd, od, rh, oh, top)
            step = feed_offset(x, ring, step, corners, k, shift, sizes, P, C, BOXED)
    return step


@gluon.jit
def feed_boxes(x, ring, programs, sizes, P: gl.constexpr, C: gl.constexpr, BOXED: gl.constexpr):
    """Rows of both consumers' boxes at one offset after the other; outside they are zero."""
    PAIRS: gl.constexpr = P.pairs
    step = 0
    for program in range(gl.program_id(0), programs, gl.num_programs(0)):
        tile, begin, end, _ = locate(program, sizes, P)
        corners = corner(2 * tile, sizes, P), corner(2 * tile + 1, sizes, P)
        for line in range(begin, end):
            taps = taps_of_line(line, sizes, P)
            for pair in range(PAIRS):
                top = pick(sizes.tops, pair)
                step = feed_pair(x, ring, step, corners, top, taps, sizes, P, C, BOXED)


@gluon.jit
def feed_products(w, ring, step, row, k, kept, P: gl.constexpr, C: gl.constexpr):
    """Weights of all products at one offset, each once its slot is empty; the step after them."""
    COPIES: gl.constexpr = len(P.products)
    for i in gl.static_range(COPIES):
        for j in gl.static_range(len(P.products[i])):
            slot = step % C.w_stages
            mbarrier.wait(ring.empty.index(slot), ((step // C.w_stages) & 1) ^ 1)
            bar = ring.full.index(slot)
            mbarrier.expect(bar, P.padded * C.depth * C.itemsize)
            place = [0, (row + P.products[i][j][1]) * kept + k * C.depth]
            async_load(w, place, bar, ring.slots.index(slot))
            step += 1
    return step


@gluon.jit
def feed_weights_of_pair(w, ring, step, taps, sizes, P: gl.constexpr, C: gl.constexpr):
    """The weights of one pair of members, at all its offsets; the step after them.

    ``taps`` are those of a line.
    """
    _, nd, sd, _, nh, sh = taps
    blocks = blocks_of_input(sizes, C)
    for tap in range(nd * nh):
        row = ((sd + tap // nh) * P.slots[1] + sh + tap % nh) * P.slots[2]
        for k in range(blocks):
            step = feed_products(w, ring, step, row, k, sizes.kept, P, C)
    return step


@gluon.jit
def feed_weights(w, ring, programs, sizes, P: gl.constexpr, C: gl.constexpr):
    """Weights of one product after the other, in the order of use."""
    PAIRS: gl.constexpr = P.pairs
    step = 0
    for program in range(gl.program_id(0), programs, gl.num_programs(0)):
        _, begin, end, _ = locate(program, sizes, P)
        for line in range(begin, end):
            taps = taps_of_line(line, sizes, P)
            for _ in range(PAIRS):
                step = feed_weights_of_pair(w, ring, step, taps, sizes, P, C)


@gluon.jit
def multiply_offset(
    even, odd, rings, x_step, step, begun, CONSUMER: gl.constexpr, P: gl.constexpr, C: gl.constexpr
):  # fmt: skip
    """Both sums after all products at one offset, the last still in flight; the steps after them.

    The steps from ``begun`` on were this pair's before.
    """
    COPIES: gl.constexpr = len(P.products)
    rows, weights = rings
    for i in gl.static_range(COPIES):
        x_slot = x_step % C.x_stages
        mbarrier.wait(rows.full.index(x_slot), (x_step // C.x_stages) & 1)
        box = rows.slots.index(2 * x_slot + CONSUMER).permute([1, 0])
        for j in gl.static_range(len(P.products[i])):
            w_slot = step % C.w_stages
            mbarrier.wait(weights.full.index(w_slot), (step // C.w_stages) & 1)
            slot = weights.slots.index(w_slot)
            if P.products[i][j][0] == 0:
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
    CONSUMER: gl.constexpr, P: gl.constexpr, C: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """The sums of one pair of members, so many offsets each; the steps after them."""
    SHAPE: gl.constexpr = [P.padded, P.positions]
    rows, weights = rings
    even = gl.zeros(SHAPE, gl.float32, ACC)
    odd = gl.zeros(SHAPE, gl.float32, ACC)
    begun = step
    rounds = gl.to_tensor(1)
    while rounds > 0:  # see ``strip_kernel.consume``
        for _ in range(offsets):
            even, odd, x_step, step = multiply_offset(
                even, odd, rings, x_step, step, begun, CONSUMER, P, C
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
    rings, results, programs, more, sizes, CONSUMER: gl.constexpr, P: gl.constexpr,
    C: gl.constexpr, A: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """One consumer: its box of every tile, through a share of the members, finished and stored."""
    blocks = blocks_of_input(sizes, C)
    PAIRS: gl.constexpr = P.pairs
    SHAPE: gl.constexpr = [P.padded, P.positions]
    NONE: gl.constexpr = 0.0 if P.window == "sum" else float("-inf")
    x_step = 0
    step = 0
    for program in range(gl.program_id(0), programs, gl.num_programs(0)):
        tile, begin, end, share = locate(program, sizes, P)
        best = gl.full(SHAPE, NONE, gl.float32, ACC)
        for line in range(begin, end):
            _, nd, _, _, nh, _ = taps_of_line(line, sizes, P)
            for _pair in range(PAIRS):
                even, odd, x_step, step = multiply_pair(
                    rings, x_step, step, nd * nh * blocks, more, CONSUMER, P, C, ACC
                )
                if P.window == "sum":
                    best += even + odd
                else:
                    best = larger(best, larger(even, odd))
        finish_box(best, 2 * tile + CONSUMER, share, results, sizes, P, A)


@gluon.jit
def finish_box(v, box, share, results, sizes, P: gl.constexpr, A: gl.constexpr):
    """Tile ops and store of one box."""
    out = results.out
    LAYOUT: gl.constexpr = v.type.layout
    OPS: gl.constexpr = A.after
    channel = gl.arange(0, P.padded, layout=gl.SliceLayout(1, LAYOUT))
    p = gl.arange(0, P.positions, layout=gl.SliceLayout(0, LAYOUT))
    d0, h0, w0, n0 = corner(box, sizes, P)
    n = n0 + p % P.box[3]
    w = w0 + p // P.box[3] % P.box[2]
    h = h0 + p // (P.box[3] * P.box[2]) % P.box[1]
    d = d0 + p // (P.box[3] * P.box[2] * P.box[1])
    depth, height, width = sizes.results
    there = (n < sizes.batch) & (d < depth) & (h < height) & (w < width)
    live = alive(channel, sizes.channels, 1, P)
    v = apply_ops(v, Channels(channel, live), there, n0, results.operands, OPS, 0, P.whole)
    of_samples, of_channels, of_depth, of_height, of_width = sizes.strides
    place = n.to(gl.int64) * of_samples + d.to(gl.int64) * of_depth
    place += h.to(gl.int64) * of_height + w.to(gl.int64) * of_width
    out += share.to(gl.int64) * sizes.part
    v = narrow(v, out.dtype.element_ty)
    write(out, v, channel, live, there, place, of_channels, A, 0)


AT_RUN_TIME = [
    "more", "programs", "batch", "channels", "kept", "haloed", "low", "split",
    "high_boxes", "wide_boxes", "samples_boxes",
    "depth_results", "height_results", "width_results",
    "of_samples", "of_channels", "of_depth", "of_height", "of_width", "part",
]  # fmt: skip
"""Integers that no build is to depend on."""


@gluon.jit(do_not_specialize=AT_RUN_TIME)
def convolve_window(
    x, w, out, more, programs, tensors, numbers,
    batch, channels, kept, haloed, low, split, high_boxes, wide_boxes, samples_boxes,
    depth_results, height_results, width_results,
    of_samples, of_channels, of_depth, of_height, of_width, part, entries, tops,
    P: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """``x`` and ``w`` are tensor descriptors: boxes of the copy by residue, blocks of weights.

    ``more`` is 0, and weights that are not finite are as in ``convolve_strip``. All other integers
    are those of ``WindowGeometry.sizes``, in its order.
    """
    sizes = WindowSizes(
        batch, channels, kept, haloed, low, split, (high_boxes, wide_boxes, samples_boxes),
        (depth_results, height_results, width_results),
        (of_samples, of_channels, of_depth, of_height, of_width), part, entries, tops,
    )  # fmt: skip
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(C.swizzle, C.itemsize * 8, 2)
    BOXED: gl.constexpr = gl.NVMMASharedLayout(C.swizzle, C.itemsize * 8, 5)
    WIDE: gl.constexpr = P.positions
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 32 // C.itemsize])
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    X_STAGES: gl.constexpr = C.x_stages
    W_STAGES: gl.constexpr = C.w_stages
    rows = gl.allocate_shared_memory(x.dtype, [2 * C.x_stages, P.positions, C.depth], SWIZZLED)
    weights = gl.allocate_shared_memory(x.dtype, [C.w_stages, P.padded, C.depth], SWIZZLED)
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
    results = Results(out, Operands(tensors, numbers))
    gl.warp_specialize(
        [
            (consume, (rings, results, programs, more, sizes, 0, P, C, A, ACC)),
            (consume, (rings, results, programs, more, sizes, 1, P, C, A, ACC)),
            (feed_boxes, (x, rows, programs, sizes, P, C, BOXED)),
            (feed_weights, (w, weights, programs, sizes, P, C)),
        ],
        [4, 1, 1],
        [C.registers, 24, 24],
    )
