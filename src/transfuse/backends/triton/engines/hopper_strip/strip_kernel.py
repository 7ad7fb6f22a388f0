# mypy: ignore-errors
"""The convolution for Hopper, in Gluon: two warps feed shared memory, two warpgroups multiply.

A *strip* holds the rows that all width taps of a tile read, for one tap of depth and height and
one block of channels. Each tap is a view of the strip from another row on: the tensor cores read
rows from any start, also one that is no multiple of the swizzle. Strips and weights come through
two rings; programs stay and walk over tiles, so that copies run ahead into the next tile while
the last one is finished and stored (``hopper_store.py``).

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

from transfuse.backends.triton.engines.hopper_records import Results, Ring, StripTile
from transfuse.backends.triton.engines.hopper_strip.strip_store import finish_tile, rows_of
from transfuse.backends.triton.epilogue.records import Operands
from transfuse.backends.triton.versions import async_load, reinterpret


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
def tiles_of_block(geometry, config):
    return config.tiles_of_block(geometry)


@gluon.jit
def entry(G: gl.constexpr, AXIS: gl.constexpr, of_class):
    """first, count, slot of a class along an axis."""
    FIRST: gl.constexpr = of_axis(G, AXIS, 0)
    COUNT: gl.constexpr = of_axis(G, AXIS, 1)
    SLOT: gl.constexpr = of_axis(G, AXIS, 2)
    return pick(FIRST, of_class), pick(COUNT, of_class), pick(SLOT, of_class)


@gluon.jit
def locate(tile, G: gl.constexpr, C: gl.constexpr):
    """The block of anchors of a tile, its classes of depth and height, its first channel.

    Neighbours in time share their anchors, so the rows they read are still in the cache and the
    lines they both write meet there. Classes differ in work: a program meets all of them in turn,
    unless it holds the weights of one.
    """
    OF_BLOCK: gl.constexpr = tiles_of_block(G, C)
    BLOCKS: gl.constexpr = OF_BLOCK // (G.classes[0] * G.classes[1])
    block = tile // OF_BLOCK
    turn = 0
    if OF_BLOCK > 1 and not C.hold:
        turn = block // gl.maximum(gl.num_programs(0) // OF_BLOCK, 1)
    rest = (tile + turn) % OF_BLOCK
    of_class = rest // BLOCKS
    first = rest % BLOCKS * C.channels
    return StripTile(block, of_class // G.classes[1], of_class % G.classes[1], first)


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
    return reinterpret(ring.index(row), ring.dtype, [ROWS, C.depth], SWIZZLED)


@gluon.jit
def feed_strip(x, halo, ring, step, row, k, C: gl.constexpr, SWIZZLED: gl.constexpr):
    """One strip from ``row`` on, of the ``k``-th block of channels, once its slot is empty."""
    BOXES: gl.constexpr = C.tile // C.box
    slot = step % C.x_stages
    mbarrier.wait(ring.empty.index(slot), ((step // C.x_stages) & 1) ^ 1)
    bar = ring.full.index(slot)
    mbarrier.expect(bar, C.strip * C.depth * C.itemsize)
    at = slot * C.strip
    for i in gl.static_range(BOXES):
        target = view(ring.slots, at + i * C.box, C.box, C, SWIZZLED)
        place = [row + i * C.box, k * C.depth]
        async_load(x, place, bar, target)
    if C.halo > 0:
        target = view(ring.slots, at + C.tile, C.halo, C, SWIZZLED)
        place = [row + C.tile, k * C.depth]
        async_load(halo, place, bar, target)


@gluon.jit
def feed_strips(x, halo, ring, tiles, G: gl.constexpr, C: gl.constexpr, SWIZZLED: gl.constexpr):
    """Rows of input for all width taps at once; what lies outside the copy reads as zero."""
    BLOCKS: gl.constexpr = (G.kept + C.depth - 1) // C.depth
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        block, cd, ch, _ = locate(tile, G, C)
        start = first_row(block, G, C) + G.low
        fd, nd, _ = entry(G, 0, cd)
        fh, nh, _ = entry(G, 1, ch)
        for tap in range(nd * nh):
            line = (fd - tap // nh * G.step[0]) * G.extent[1] + fh - tap % nh * G.step[1]
            row = start + line * G.extent[2]
            for k in range(BLOCKS):
                feed_strip(x, halo, ring, step, row, k, C, SWIZZLED)
                step += 1


@gluon.jit
def feed_taps(w, ring, step, first, line, k, G: gl.constexpr, C: gl.constexpr):
    """Weights of all width taps for one strip, each once its slot is empty; the step after them."""
    TAPS: gl.constexpr = len(G.taps)
    for i in gl.static_range(TAPS):
        slot = step % C.w_stages
        mbarrier.wait(ring.empty.index(slot), ((step // C.w_stages) & 1) ^ 1)
        bar = ring.full.index(slot)
        mbarrier.expect(bar, C.channels * C.depth * C.itemsize)
        column = (line + G.taps[i][2]) * G.kept + k * C.depth
        async_load(w, [first, column], bar, ring.slots.index(slot))
        step += 1
    return step


@gluon.jit
def feed_weights(w, ring, tiles, G: gl.constexpr, C: gl.constexpr):
    """Weights of one tap and one block of channels after the other, in the order of use.

    The last block may reach into the next slot: the strip is zero there.
    """
    BLOCKS: gl.constexpr = (G.kept + C.depth - 1) // C.depth
    if C.hold:  # those of the first tile serve all
        tiles = gl.minimum(tiles, gl.program_id(0) + 1)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        _, cd, ch, first = locate(tile, G, C)
        _, nd, sd = entry(G, 0, cd)
        _, nh, sh = entry(G, 1, ch)
        for tap in range(nd * nh):
            line = ((sd + tap // nh) * G.slots[1] + sh + tap % nh) * G.slots[2]
            for k in range(BLOCKS):
                step = feed_taps(w, ring, step, first, line, k, G, C)


@gluon.constexpr_function
def flying(tap, geometry, config):
    """Products that may stay in flight after one tap: itself, so that those before let go.

    Weights that are held are asked for by nobody: a strip is let go of as a whole.
    """
    return len(geometry.taps) if config.hold and tap > 0 else 1


@gluon.jit
def multiply(rows, slot, acc, C: gl.constexpr):
    """``acc`` and one tap, channels along ``C.axis``; not yet waited for."""
    if C.axis == 0:
        return warpgroup_mma(slot, rows.permute([1, 0]), acc, is_async=True)
    else:
        return warpgroup_mma(rows, slot.permute([1, 0]), acc, is_async=True)


@gluon.jit
def multiply_strip(
    sums, rings, strip, step, begun, s,
    CONSUMER: gl.constexpr, G: gl.constexpr, C: gl.constexpr, SWIZZLED: gl.constexpr,
):  # fmt: skip
    """The sums after all width taps of one strip, the last still in flight; the step after them.

    ``s`` strips and the steps from ``begun`` on were this tile's before.
    """
    TAPS: gl.constexpr = len(G.taps)
    even, odd = sums
    strips, weights, _ = rings
    x_slot = strip % C.x_stages
    mbarrier.wait(strips.full.index(x_slot), (strip // C.x_stages) & 1)
    first = x_slot * C.strip + CONSUMER * C.positions
    for i in gl.static_range(TAPS):
        if C.hold:
            w_slot = step - begun
        else:
            w_slot = step % C.w_stages
            mbarrier.wait(weights.full.index(w_slot), (step // C.w_stages) & 1)
        rows = view(strips.slots, first + G.taps[i][1], C.positions, C, SWIZZLED)
        if G.taps[i][0] == 0:
            even = multiply(rows, weights.slots.index(w_slot), even, C)
        else:
            odd = multiply(rows, weights.slots.index(w_slot), odd, C)
        if G.joined == 2:
            even, odd = warpgroup_mma_wait(flying(i, G, C), deps=[even, odd])
        else:
            even = warpgroup_mma_wait(flying(i, G, C), deps=[even])
        if not C.hold:
            last = (step + C.w_stages - 1) % C.w_stages
            mbarrier.arrive(weights.empty.index(last), pred=step > begun)
        if i == 0:
            last = (strip + C.x_stages - 1) % C.x_stages
            mbarrier.arrive(strips.empty.index(last), pred=s > 0)
        step += 1
    return even, odd, step


@gluon.jit
def consume(
    rings, results, tiles, more, CONSUMER: gl.constexpr, G: gl.constexpr, C: gl.constexpr,
    A: gl.constexpr, SWIZZLED: gl.constexpr, ACC: gl.constexpr,
):  # fmt: skip
    """One consumer: its half of every tile, multiplied, finished and stored.

    ``rings``: of strips, of weights, and the product that sums start from, if there is one.
    """
    BLOCKS: gl.constexpr = (G.kept + C.depth - 1) // C.depth
    strips, weights, bias = rings
    if C.axis == 0:
        SHAPE: gl.constexpr = [C.channels, C.positions]
    else:
        SHAPE: gl.constexpr = [C.positions, C.channels]
    strip = 0
    step = 0
    BIASED: gl.constexpr = bias_of(G, C, A) >= 0
    if C.hold and gl.program_id(0) < tiles:  # filled once: the barriers stay open
        HELD: gl.constexpr = C.w_stages
        for i in gl.static_range(HELD):
            mbarrier.wait(weights.full.index(i), 0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        here = locate(tile, G, C)
        _, nd, _ = entry(G, 0, here.cd)
        _, nh, _ = entry(G, 1, here.ch)
        even = gl.zeros(SHAPE, gl.float32, ACC)
        odd = even
        if BIASED:
            ones, column = bias
            even = multiply(ones.index(0), column, even, C)
            if G.joined == 2:
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
            for s in range(nd * nh * BLOCKS):
                even, odd, step = multiply_strip(
                    (even, odd), rings, strip, step, begun, s, CONSUMER, G, C, SWIZZLED
                )
                strip += 1
            if G.joined == 2:
                even, odd = warpgroup_mma_wait(0, deps=[even, odd])
            else:
                even = warpgroup_mma_wait(0, deps=[even])
            rounds = more
        if not C.hold:
            last = (step + C.w_stages - 1) % C.w_stages
            mbarrier.arrive(weights.empty.index(last), pred=step > begun)
        last = (strip + C.x_stages - 1) % C.x_stages
        mbarrier.arrive(strips.empty.index(last), pred=step > begun)
        if G.joined == 2:
            v = interleave(even, odd, C)
        else:
            v = even
        finish_tile(v, here, results, CONSUMER, G, C, A)


@gluon.constexpr_function
def bias_of(geometry, config, after):
    """Where the operand stands that sums start from; -1: they start from zero."""
    return config.bias(geometry, after.after)


@gluon.jit
def bias_as_product(x, tensors, G: gl.constexpr, C: gl.constexpr, A: gl.constexpr):
    """Rows for both width classes, and weights, whose product is the bias; of the type of ``x``.

    Sums that start from it cost no instruction for each element, not even to set them to zero.
    """
    AT: gl.constexpr = bias_of(G, C, A)
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])
    NARROW: gl.constexpr = gl.NVMMASharedLayout(32, 16, 2)
    channel = gl.arange(0, C.channels, layout=gl.SliceLayout(1, FLAT))
    column = gl.arange(0, 16, layout=gl.SliceLayout(0, FLAT))
    bias = gl.load(tensors[AT] + channel, mask=channel < G.channels, other=0.0)
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


@gluon.jit(do_not_specialize=["more"])
def convolve_strip(
    x, halo, w, out, more, batch, tiles, tensors, numbers, partials, plane, counted,
    G: gl.constexpr, C: gl.constexpr, A: gl.constexpr,
):  # fmt: skip
    """``x``, ``halo``, ``w`` are tensor descriptors of the rows (two box sizes) and the weights.

    ``more`` is 0: see ``consume``. Weights that are not finite meet the zeros around the input
    here; where they are, the careful launch of ``convolve`` writes every result once more.
    """
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
        mbarrier.init(x_empty.index(i), count=C.consumers)
    for i in gl.static_range(W_STAGES):
        mbarrier.init(w_full.index(i), count=1)
        mbarrier.init(w_empty.index(i), count=C.consumers)
    bias = ()
    if bias_of(G, C, A) >= 0:
        bias = bias_as_product(x, tensors, G, C, A)
    fence_async_shared()
    strips = Ring(strips, x_full, x_empty)
    weights = Ring(weights, w_full, w_empty)
    rings = (strips, weights, bias)
    results = Results(out, batch, Operands(tensors, numbers), partials, plane, counted)
    if C.consumers == 2:
        gl.warp_specialize(
            [
                (consume, (rings, results, tiles, more, 0, G, C, A, SWIZZLED, ACC)),
                (consume, (rings, results, tiles, more, 1, G, C, A, SWIZZLED, ACC)),
                (feed_strips, (x, halo, strips, tiles, G, C, SWIZZLED)),
                (feed_weights, (w, weights, tiles, G, C)),
            ],
            [4, 1, 1],
            [C.registers, 24, 24],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (rings, results, tiles, more, 0, G, C, A, SWIZZLED, ACC)),
                (feed_strips, (x, halo, strips, tiles, G, C, SWIZZLED)),
                (feed_weights, (w, weights, tiles, G, C)),
            ],
            [1, 1],
            [24, 24],
        )
