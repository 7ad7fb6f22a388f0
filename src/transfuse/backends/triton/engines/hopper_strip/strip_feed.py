# mypy: ignore-errors
"""The two warps that feed the strip loop: one copies strips, one copies weights, in order of use.

Where consumers have tiles of their own (``C.own``), they take turns to multiply; a tile's *turn* is
its number among those of its program. Consumers that share a tile share its weights; these two do
not, and would read them twice as often. So weights stay in shared memory: all of them (``C.hold``),
or at least half, walked forth in one turn and back in the next (``C.back``), which begins with
those that the turn before has left. Strips come in the same order.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from transfuse.backends.triton.engines.hopper_strip.strip_tiles import (
    blocks_of_input,
    first_row,
    locate,
    taps_of_depth,
    taps_of_height,
    view,
    weights_of_class,
)
from transfuse.backends.triton.versions import async_load


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
def forth_and_back(at, count, turn, C: gl.constexpr):
    """Number ``at`` of ``count``; those of every other turn from the last on, where ``C.back``."""
    if C.back:
        return gl.where(turn % 2 == 1, count - 1 - at, at)
    else:
        return at


@gluon.jit
def feed_strips(
    x, halo, ring, tiles, sizes, P: gl.constexpr, C: gl.constexpr, SWIZZLED: gl.constexpr
):
    """Rows of input for all width taps at once; what lies outside the copy reads as zero."""
    blocks = blocks_of_input(sizes, C)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        here = locate(tile, sizes, P, C)
        start = first_row(here.block, sizes, P, C) + sizes.low
        fd, nd, _ = taps_of_depth(here, sizes, P)
        fh, nh, _ = taps_of_height(here, sizes, P)
        for i in range(nd * nh):
            tap = forth_and_back(i, nd * nh, turn, C)
            line = (fd - tap // nh * P.step[0]) * sizes.high + fh - tap % nh * P.step[1]
            row = start + line * sizes.wide
            for k in range(blocks):
                block = forth_and_back(k, blocks, turn, C)
                feed_strip(x, halo, ring, step, row, block, C, SWIZZLED)
                step += 1


@gluon.jit
def feed_taps(w, ring, step, first, line, k, kept, P: gl.constexpr, C: gl.constexpr):
    """Weights of all width taps for one strip, each once its slot is empty; the step after them."""
    TAPS: gl.constexpr = len(P.taps)
    for i in gl.static_range(TAPS):
        slot = step % C.w_stages
        mbarrier.wait(ring.empty.index(slot), ((step // C.w_stages) & 1) ^ 1)
        bar = ring.full.index(slot)
        mbarrier.expect(bar, C.channels * C.depth * C.itemsize)
        column = (line + P.taps[i][2]) * kept + k * C.depth
        async_load(w, [first, column], bar, ring.slots.index(slot))
        step += 1
    return step


@gluon.jit
def feed_forth(w, ring, tiles, sizes, P: gl.constexpr, C: gl.constexpr):
    """Weights of one tap and one block of channels after the other, in the order of use.

    The last block may reach into the next slot: the strip is zero there.
    """
    blocks = blocks_of_input(sizes, C)
    if C.hold:  # those of the first tile serve all
        tiles = gl.minimum(tiles, gl.program_id(0) + 1)
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        here = locate(tile, sizes, P, C)
        _, nd, sd = taps_of_depth(here, sizes, P)
        _, nh, sh = taps_of_height(here, sizes, P)
        for tap in range(nd * nh):
            line = ((sd + tap // nh) * P.slots[1] + sh + tap % nh) * P.slots[2]
            for k in range(blocks):
                step = feed_taps(w, ring, step, here.channel, line, k, sizes.kept, P, C)


@gluon.jit
def feed_one(w, ring, at, here, sizes, P: gl.constexpr, C: gl.constexpr):
    """Weights number ``at`` of a class, in the order of use, into the slot that is theirs."""
    TAPS: gl.constexpr = len(P.taps)
    blocks = blocks_of_input(sizes, C)
    _, _, sd = taps_of_depth(here, sizes, P)
    _, nh, sh = taps_of_height(here, sizes, P)
    tap = at // TAPS // blocks
    slot = ((sd + tap // nh) * P.slots[1] + sh + tap % nh) * P.slots[2]
    for i in gl.static_range(TAPS):
        slot += gl.where(at % TAPS == i, P.taps[i][2], 0)
    column = slot * sizes.kept + at // TAPS % blocks * C.depth
    bar = ring.full.index(at % C.w_stages)
    mbarrier.expect(bar, C.channels * C.depth * C.itemsize)
    async_load(w, [here.channel, column], bar, ring.slots.index(at % C.w_stages))


@gluon.jit
def feed_back(w, ring, tiles, sizes, P: gl.constexpr, C: gl.constexpr):
    """Weights of one class, forth for one tile and back for the next, which starts with those
    that are still there.

    At least half of them fit. Those in the middle stay where they are; of the others, first and
    last ones share slots, and each filling serves the end of one tile and the start of the next.
    """
    here = locate(gl.program_id(0), sizes, P, C)
    count = weights_of_class(here, sizes, P, C)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        turn = tile // gl.num_programs(0)
        if turn == 0:
            for i in range(C.w_stages):
                feed_one(w, ring, i, here, sizes, P, C)
        for i in range(C.w_stages, count):
            at = forth_and_back(i, count, turn, C)
            mbarrier.wait(ring.empty.index(at % C.w_stages), turn & 1)
            feed_one(w, ring, at, here, sizes, P, C)


@gluon.jit
def feed_weights(w, ring, tiles, sizes, P: gl.constexpr, C: gl.constexpr):
    """Weights in the order of use."""
    if C.back:
        feed_back(w, ring, tiles, sizes, P, C)
    else:
        feed_forth(w, ring, tiles, sizes, P, C)


@gluon.jit
def walked(i, count, turn, CONSUMER: gl.constexpr, C: gl.constexpr):
    """The slot of a tile's ``i``-th weights of ``feed_back``, the phase of their filling, and
    whether their slot is filled anew after the next tile or this one."""
    at = count - 1 - i if CONSUMER == 1 else i
    first = i < count - C.w_stages
    last = i >= C.w_stages
    phase = gl.where(first, turn, gl.where(last, turn + 1, 0)) & 1
    slot = gl.where(at < C.w_stages, at, at - C.w_stages)  # there are at most twice as many
    return slot, phase, first | last
