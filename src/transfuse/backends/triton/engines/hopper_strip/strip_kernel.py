# mypy: ignore-errors
"""The convolution for Hopper, in Gluon: two warps feed shared memory, two warpgroups multiply.

A *strip* holds the rows that all width taps of a tile read, for one tap of depth and height and
one block of channels. Each tap is a view of the strip from another row on: the tensor cores read
rows from any start, also one that is no multiple of the swizzle. Strips and weights come through
two rings (``strip_feed.py``); programs stay and walk over tiles, so that copies run ahead into the
next tile while the last one is finished and stored (``strip_store.py``). The two consumers share
each tile, or have tiles of their own: then one multiplies while the other finishes, in turns.

Bodies of inner loops are functions of their own: Triton's front end goes through the body of a loop
twice, so through that of five loops 32 times, but through a function once.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from transfuse.backends.triton.engines.hopper_records import Results, Ring, StripSizes
from transfuse.backends.triton.engines.hopper_strip.strip_feed import (
    feed_strips,
    feed_weights,
    walked,
)
from transfuse.backends.triton.engines.hopper_strip.strip_store import finish_tile
from transfuse.backends.triton.engines.hopper_strip.strip_tiles import (
    blocks_of_input,
    locate,
    taps_of_depth,
    taps_of_height,
    view,
    weights_of_class,
)
from transfuse.backends.triton.epilogue.records import Operands


@gluon.constexpr_function
def flying(tap, pattern, config):
    """Products that may stay in flight after one tap: itself, so that those before let go.

    Weights that are held are asked for by nobody: a strip is let go of as a whole. Where consumers
    take turns, the next turn begins as few products before the end of this one.
    """
    return len(pattern.taps) if config.hold and tap > 0 and not config.own else 1


@gluon.jit
def multiply(rows, slot, acc, C: gl.constexpr):
    """``acc`` and one tap, channels along ``C.axis``; not yet waited for."""
    if C.axis == 0:
        return warpgroup_mma(slot, rows.permute([1, 0]), acc, is_async=True)
    else:
        return warpgroup_mma(rows, slot.permute([1, 0]), acc, is_async=True)


@gluon.constexpr_function
def taps_in_turn(pattern, config, consumer):
    """Width taps as a consumer meets them."""
    return pattern.taps[::-1] if config.back and consumer == 1 else pattern.taps


@gluon.jit
def release(weights, step, begun, count, turn, CONSUMER: gl.constexpr, C: gl.constexpr):
    """Let go of the weights of the step before, if it was one of this tile's."""
    if C.back:
        before = gl.maximum(step - 1 - begun, 0)
        last, _, moves = walked(before, count, turn, CONSUMER, C)
        mbarrier.arrive(weights.empty.index(last), pred=(step > begun) & moves)
    elif not C.hold:
        last = (step + C.w_stages - 1) % C.w_stages
        mbarrier.arrive(weights.empty.index(last), pred=step > begun)


@gluon.jit
def multiply_strip(
    sums, rings, strip, step, s, tile,
    CONSUMER: gl.constexpr, P: gl.constexpr, C: gl.constexpr, SWIZZLED: gl.constexpr,
):  # fmt: skip
    """The sums after all width taps of one strip, the last still in flight; the step after them.

    ``s`` strips were this tile's before. ``tile``: the step that it began with, how many weights it
    meets, and its number among its program's.
    """
    begun, count, turn = tile
    TAPS: gl.constexpr = len(P.taps)
    PART: gl.constexpr = 0 if C.own else CONSUMER
    EACH: gl.constexpr = taps_in_turn(P, C, CONSUMER)
    even, odd = sums
    strips, weights, _, _ = rings
    x_slot = strip % C.x_stages
    mbarrier.wait(strips.full.index(x_slot), (strip // C.x_stages) & 1)
    first = x_slot * C.strip + PART * C.positions
    for i in gl.static_range(TAPS):
        if C.hold:
            w_slot = step - begun
        elif C.back:
            w_slot, phase, _ = walked(step - begun, count, turn, CONSUMER, C)
            mbarrier.wait(weights.full.index(w_slot), phase)
        else:
            w_slot = step % C.w_stages
            mbarrier.wait(weights.full.index(w_slot), (step // C.w_stages) & 1)
        rows = view(strips.slots, first + EACH[i][1], C.positions, C, SWIZZLED)
        if EACH[i][0] == 0:
            even = multiply(rows, weights.slots.index(w_slot), even, C)
        else:
            odd = multiply(rows, weights.slots.index(w_slot), odd, C)
        if P.joined == 2:
            even, odd = warpgroup_mma_wait(flying(i, P, C), deps=[even, odd])
        else:
            even = warpgroup_mma_wait(flying(i, P, C), deps=[even])
        release(weights, step, begun, count, turn, CONSUMER, C)
        if i == 0:
            last = (strip + C.x_stages - 1) % C.x_stages
            mbarrier.arrive(strips.empty.index(last), pred=s > 0)
        step += 1
    return even, odd, step


@gluon.jit
def consume(
    rings, results, counts, sizes, CONSUMER: gl.constexpr, P: gl.constexpr, C: gl.constexpr,
    A: gl.constexpr, SWIZZLED: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """One consumer: its half of every tile, or every other tile, multiplied, finished and stored.

    ``rings``: of strips, of weights; the product that sums start from, if there is one; barriers
    that tell that one consumer's products are on their way, if the other waits for that.
    ``counts``: how many tiles there are, and ``more``, see below.
    """
    tiles, more = counts
    blocks = blocks_of_input(sizes, C)
    strips, weights, bias, begins = rings
    if C.axis == 0:
        SHAPE: gl.constexpr = [C.channels, C.positions]
    else:
        SHAPE: gl.constexpr = [C.positions, C.channels]
    strip = 0
    step = 0
    BIASED: gl.constexpr = bias_of(P, C, A) >= 0
    if C.hold and gl.program_id(0) < tiles:  # filled once: the barriers stay open
        HELD: gl.constexpr = C.w_stages
        for i in gl.static_range(HELD):
            mbarrier.wait(weights.full.index(i), 0)
    FIRST: gl.constexpr = CONSUMER if C.own else 0
    EVERY: gl.constexpr = 2 if C.own else 1
    if C.back and CONSUMER == 1:  # as if it had met the first weights in a tile before the first
        count = weights_of_class(locate(gl.program_id(0), sizes, P, C), sizes, P, C)
        for i in range(count - C.w_stages):
            mbarrier.arrive(weights.empty.index(i))
    each = gl.num_programs(0)
    for tile in range(gl.program_id(0) + FIRST * each, tiles, EVERY * each):
        turn = tile // each
        here = locate(tile, sizes, P, C)
        _, nd, _ = taps_of_depth(here, sizes, P)
        _, nh, _ = taps_of_height(here, sizes, P)
        count = weights_of_class(here, sizes, P, C)
        even = gl.zeros(SHAPE, gl.float32, ACC)
        odd = even
        if C.own:
            strip = turn * (nd * nh * blocks)  # those between were the other's
            mbarrier.wait(begins.index(1 - CONSUMER), (turn // 2 + 1 - CONSUMER) & 1)
        if BIASED:
            ones, column = bias
            even = multiply(ones.index(0), column, even, C)
            if P.joined == 2:
                odd = multiply(ones.index(1), column, odd, C)
                even, odd = warpgroup_mma_wait(2, deps=[even, odd])
            else:
                even = warpgroup_mma_wait(1, deps=[even])
        begun = step
        # This loop runs once: ``more`` is 0. It is there for the assembler (ptxas 12.8), which
        # moves the first use of the sums before the wait for them, but moves nothing into a loop.
        # It must not know that there is one round only: ``more`` is an argument at run time.
        rounds = gl.to_tensor(1)
        while rounds > 0:
            for s in range(nd * nh * blocks):
                even, odd, step = multiply_strip(
                    (even, odd), rings, strip, step, s, (begun, count, turn),
                    CONSUMER, P, C, SWIZZLED,
                )  # fmt: skip
                strip += 1
            if C.own:
                mbarrier.arrive(begins.index(CONSUMER))
            if P.joined == 2:
                even, odd = warpgroup_mma_wait(0, deps=[even, odd])
            else:
                even = warpgroup_mma_wait(0, deps=[even])
            rounds = more
        release(weights, step, begun, count, turn, CONSUMER, C)
        last = (strip + C.x_stages - 1) % C.x_stages
        mbarrier.arrive(strips.empty.index(last), pred=step > begun)
        if P.joined == 2:
            v = interleave(even, odd, C)
        else:
            v = even
        PART: gl.constexpr = 0 if C.own else CONSUMER
        finish_tile(v, here, results, sizes, PART, P, C, A)


@gluon.constexpr_function
def bias_of(pattern, config, after):
    """Where the operand stands that sums start from; -1: they start from zero."""
    return config.bias(pattern.alone, after.after)


@gluon.jit
def bias_as_product(x, tensors, channels, P: gl.constexpr, C: gl.constexpr, A: gl.constexpr):
    """Rows for both width classes, and weights, whose product is the bias; of the type of ``x``.

    Sums that start from it cost no instruction for each element, not even to set them to zero.
    """
    AT: gl.constexpr = bias_of(P, C, A)
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])
    NARROW: gl.constexpr = gl.NVMMASharedLayout(32, 16, 2)
    channel = gl.arange(0, C.channels, layout=gl.SliceLayout(1, FLAT))
    column = gl.arange(0, 16, layout=gl.SliceLayout(0, FLAT))
    bias = gl.load(tensors[AT] + channel, mask=channel < channels, other=0.0)
    bias = gl.where(gl.expand_dims(column == 0, 0), gl.expand_dims(bias, 1), 0.0)
    rows = gl.allocate_shared_memory(x.dtype, [2, C.positions, 16], NARROW)
    for i in gl.static_range(2):  # twice, or the compiler would make one product of the two
        rows.index(i).store(gl.full([C.positions, 16], 1.0, x.dtype, FLAT))
    return rows, gl.allocate_shared_memory(x.dtype, [C.channels, 16], NARROW, bias.to(x.dtype))


@gluon.jit
def interleave(even, odd, C: gl.constexpr):
    """The two width classes of a tile, each result beside its neighbour: registers only."""
    both = gl.join(even, odd)
    if C.axis == 0:
        return gl.reshape(both, [C.channels, 2 * C.positions])
    else:
        return gl.reshape(gl.permute(both, [0, 2, 1]), [2 * C.positions, C.channels])


AT_RUN_TIME = [
    "more", "tiles", "plane", "sharing", "counted",
    "batch", "channels", "kept", "high", "wide", "sample", "tiles_of_sample", "low",
    "line", "area", "space", "depth_results", "height_results", "width_results",
    "by_line", "by_line_shift", "by_area", "by_area_shift", "by_space", "by_space_shift",
    "by_sample", "by_sample_shift", "by_tiles", "by_tiles_shift",
    "of_samples", "of_channels", "of_depth", "of_height", "of_width", "span",
]  # fmt: skip
"""Integers that no build is to depend on."""


@gluon.jit(do_not_specialize=AT_RUN_TIME)
def convolve_strip(
    x, halo, w, out, more, tiles, tensors, numbers, partials, plane, sharing, counted,
    batch, channels, kept, high, wide, sample, tiles_of_sample, low,
    line, area, space, depth_results, height_results, width_results,
    by_line, by_line_shift, by_area, by_area_shift, by_space, by_space_shift,
    by_sample, by_sample_shift, by_tiles, by_tiles_shift,
    of_samples, of_channels, of_depth, of_height, of_width, span, entries,
    P: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """``x``, ``halo``, ``w`` are tensor descriptors of the rows (two box sizes) and the weights.

    ``more`` is 0: see ``consume``. Weights that are not finite meet the zeros around the input
    here; where they are, the careful launch of ``convolve`` writes every result once more.
    All other integers are those of ``strip_sizes.py``, in its order.
    """
    sizes = StripSizes(
        batch, channels, kept, high, wide, sample, tiles_of_sample, low,
        line, area, space, (depth_results, height_results, width_results),
        (by_line, by_line_shift), (by_area, by_area_shift), (by_space, by_space_shift),
        (by_sample, by_sample_shift), (by_tiles, by_tiles_shift),
        (of_samples, of_channels, of_depth, of_height, of_width), span, entries,
    )  # fmt: skip
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(C.swizzle, C.itemsize * 8, 2)
    WIDE: gl.constexpr = C.positions if C.axis == 0 else C.channels
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 32 // C.itemsize])
    # The first axis counts single rows of all strips, so that a view can start at any row.
    strips = gl.allocate_shared_memory(x.dtype, [C.x_stages * C.strip, 1, C.depth], SWIZZLED)
    weights = gl.allocate_shared_memory(x.dtype, [C.w_stages, C.channels, C.depth], SWIZZLED)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    x_full = gl.allocate_shared_memory(gl.int64, [C.x_stages, 1], BARRIER)
    x_empty = gl.allocate_shared_memory(gl.int64, [C.x_stages, 1], BARRIER)
    w_full = gl.allocate_shared_memory(gl.int64, [C.w_stages, 1], BARRIER)
    w_empty = gl.allocate_shared_memory(gl.int64, [C.w_stages, 1], BARRIER)
    X_STAGES: gl.constexpr = C.x_stages
    W_STAGES: gl.constexpr = C.w_stages
    for i in gl.static_range(X_STAGES):
        mbarrier.init(x_full.index(i), count=1)
        mbarrier.init(x_empty.index(i), count=C.sharing)
    for i in gl.static_range(W_STAGES):
        mbarrier.init(w_full.index(i), count=1)
        mbarrier.init(w_empty.index(i), count=C.consumers)
    bias = ()
    if bias_of(P, C, A) >= 0:
        bias = bias_as_product(x, tensors, channels, P, C, A)
    begins = ()
    if C.own:
        begins = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
        for i in gl.static_range(2):
            mbarrier.init(begins.index(i), count=1)
    fence_async_shared()
    strips = Ring(strips, x_full, x_empty)
    weights = Ring(weights, w_full, w_empty)
    rings = (strips, weights, bias, begins)
    results = Results(out, Operands(tensors, numbers), partials, plane, sharing, counted)
    if C.consumers == 2:
        gl.warp_specialize(
            [
                (consume, (rings, results, (tiles, more), sizes, 0, P, C, A, SWIZZLED, ACC)),
                (consume, (rings, results, (tiles, more), sizes, 1, P, C, A, SWIZZLED, ACC)),
                (feed_strips, (x, halo, strips, tiles, sizes, P, C, SWIZZLED)),
                (feed_weights, (w, weights, tiles, sizes, P, C)),
            ],
            [4, 1, 1],
            [C.registers, 24, 24],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (rings, results, (tiles, more), sizes, 0, P, C, A, SWIZZLED, ACC)),
                (feed_strips, (x, halo, strips, tiles, sizes, P, C, SWIZZLED)),
                (feed_weights, (w, weights, tiles, sizes, P, C)),
            ],
            [1, 1],
            [24, 24],
        )
