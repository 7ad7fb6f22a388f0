# mypy: ignore-errors
"""What the warps of the strip loop all ask of a tile: its classes, its rows, its weights."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from transfuse.backends.triton.engines.hopper_records import StripTile
from transfuse.backends.triton.engines.hopper_strip.strip_store import quotient
from transfuse.backends.triton.told_kernel import plain
from transfuse.backends.triton.versions import reinterpret


@gluon.jit
def pick(told, at):
    """Number ``at`` of those that a kernel was told, for an index known only at run time."""
    found = plain(told[0])
    for i in gl.static_range(1, len(told)):
        found = gl.where(at == i, plain(told[i]), found)
    return found


@gluon.jit
def entry(entries, FROM: gl.constexpr, COUNT: gl.constexpr, at):
    """first, count, slot of one of ``COUNT`` classes (or members) of an axis, from ``FROM`` on."""
    first = plain(entries[3 * FROM])
    count = plain(entries[3 * FROM + 1])
    slot = plain(entries[3 * FROM + 2])
    for i in gl.static_range(FROM + 1, FROM + COUNT):
        here = at == i - FROM
        first = gl.where(here, plain(entries[3 * i]), first)
        count = gl.where(here, plain(entries[3 * i + 1]), count)
        slot = gl.where(here, plain(entries[3 * i + 2]), slot)
    return first, count, slot


@gluon.jit
def taps_of_depth(tile, sizes, P: gl.constexpr):
    """first, count, slot of a tile's class of depth."""
    return entry(sizes.entries, 0, P.classes[0], tile.cd)


@gluon.jit
def taps_of_height(tile, sizes, P: gl.constexpr):
    """first, count, slot of a tile's class of height."""
    return entry(sizes.entries, P.classes[0], P.classes[1], tile.ch)


@gluon.jit
def blocks_of_input(sizes, C: gl.constexpr):
    """Blocks of the channels that are summed over."""
    return (sizes.kept + C.depth - 1) // C.depth


@gluon.jit
def weights_of_class(here, sizes, P: gl.constexpr, C: gl.constexpr):
    """Blocks of weights that a tile meets."""
    _, nd, _ = taps_of_depth(here, sizes, P)
    _, nh, _ = taps_of_height(here, sizes, P)
    return nd * nh * blocks_of_input(sizes, C) * len(P.taps)


@gluon.jit
def locate(tile, sizes, P: gl.constexpr, C: gl.constexpr):
    """The block of anchors of a tile, its classes of depth and height, its first channel.

    Neighbours in time share their anchors, so the rows they read are still in the cache and the
    lines they both write meet there. Classes differ in work: a program meets all of them in turn,
    unless it holds the weights of one.
    """
    CLASSES: gl.constexpr = P.classes[0] * P.classes[1]
    if P.alone:
        columns = 1
    else:
        columns = (sizes.channels + C.channels - 1) // C.channels
    of_block = CLASSES * columns
    block = tile // of_block
    rest = tile % of_block
    if not C.stays:
        turn = block // gl.maximum(gl.num_programs(0) // of_block, 1)
        rest = (tile + turn) % of_block
    of_class = rest // columns
    first = rest % columns * C.channels
    return StripTile(block, of_class // P.classes[1], of_class % P.classes[1], first)


@gluon.jit
def first_row(block, sizes, P: gl.constexpr, C: gl.constexpr):
    """The row of a block's first anchor."""
    if P.cross:
        return block * C.tile
    else:
        n = quotient(2 * block, sizes.by_tiles)
        return n * sizes.sample + (block - n * sizes.tiles_of_sample) * C.tile


@gluon.jit
def view(ring, row, ROWS: gl.constexpr, C: gl.constexpr, SWIZZLED: gl.constexpr):
    """``ROWS`` rows of a ring of strips, from any row on."""
    return reinterpret(ring.index(row), ring.dtype, [ROWS, C.depth], SWIZZLED)
