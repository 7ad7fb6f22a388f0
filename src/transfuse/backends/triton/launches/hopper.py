"""The loop written for Hopper, where it serves: strips of rows, for all width taps at once."""

from dataclasses import replace

from transfuse.backends.triton import config as tiling
from transfuse.backends.triton import hopper
from transfuse.backends.triton.draft import OUT, Draft, Partials, Place, numbers
from transfuse.backends.triton.kernels.hopper import convolve_hopper
from transfuse.backends.triton.launch import NO_MORE, At, Boxes
from transfuse.backends.triton.launches import prepare
from transfuse.backends.triton.lower import Arguments, Pass
from transfuse.backends.triton.tile import After, Tile
from transfuse.backends.triton.versions import ANY_ROW

SHORT, LONG = 256, 1024
"""Products of a sum: few, so that what follows takes longer; many, so that programs take long."""


def rows(draft: Draft, shape: tiling.Shape) -> tuple[tiling.Config, Tile]:
    """The portable tile that reads the same copies as this loop."""
    config = tiling.heuristic(shape, draft.gpu.capability, "rows")
    return config, Tile.of(shape, config, "")


def leaves(shape: tiling.Shape, tile: Tile) -> bool:
    """Whether weights that are not finite may meet zeros here, so that a careful launch follows."""
    # A block of channels may read on into the next tap's weights, and multiply by zero.
    reads_on = tile.slots > 1 and tile.kept % hopper.depth_of(tile.kept, shape.item) > 0
    return shape.lattice.leaves or reads_on


def add(draft: Draft, each: Pass, out: Place, shape: tiling.Shape) -> Partials | None:
    """The convolution and what follows; nothing where another kernel serves better."""
    core, lattice = draft.core, shape.lattice
    if not draft.on_hopper or not ANY_ROW or _short(shape):
        return None
    window = each.window is not None
    if hopper.verdict(lattice, core.out_channels, draft.item, core.groups, window):
        return None
    _, tile = rows(draft, shape)
    chosen = None if tile.depthwise else _choose(draft, each, out, shape, tile)
    if chosen is None:
        return None
    geometry, config, rest = chosen
    blocks = geometry.tiles(config.tile)
    tiles = blocks * config.tiles_of_block(geometry)
    # Few large tiles with long sums: smaller ones reach more multiprocessors.
    long = shape.channels * lattice.slots > LONG * lattice.classes
    if long and 2 * tiles < draft.gpu.multiprocessors:
        return None
    copy, packed, *_ = prepare.add(draft, lattice, tile)
    gathered = draft.gather(each, blocks, config.partials(geometry))
    arguments = Arguments()
    draft.after(each, out, arguments, geometry.ordered)  # its tensors and numbers
    sizes = core.batch * geometry.sample, tile.kept
    weights = tile.rows, tile.slots * tile.kept
    given = [
        Boxes(copy, sizes, (config.box, config.depth), config.layout),
        Boxes(copy, sizes, (config.halo or config.box, config.depth), config.layout),
        Boxes(packed, weights, (config.channels, config.depth), config.layout),
        At(out.number), NO_MORE, core.batch, tiles, draft.tensors(arguments), numbers(arguments),
        At(gathered.partials), gathered.plane, gathered.tiles, geometry, config, rest,
    ]  # fmt: skip
    programs = config.programs(geometry, draft.gpu.multiprocessors)
    options = {"num_warps": 4} | ({"maxnreg": 128} if config.consumers == 1 else {})
    draft.add(convolve_hopper, max(1, min(programs, tiles)), given, **options)
    return gathered


def _short(shape: tiling.Shape) -> bool:
    """Short sums before a statistic: what follows takes longer, and wants more warps."""
    lattice = shape.lattice
    return shape.per_sample and shape.channels * lattice.slots < SHORT * lattice.classes


def _choose(
    draft: Draft, each: Pass, out: Place, shape: tiling.Shape, tile: Tile
) -> tuple[hopper.Geometry, hopper.Config, After] | None:
    """What the kernel knows when it is compiled, if a layout fits.

    How large tiles are decides whether they cross samples, and that in turn how results are
    stored: so a layout is chosen, and then chosen again.
    """
    core = draft.core
    stored = draft.item if out.number == OUT else draft.wide.itemsize
    geometry = hopper.Geometry.of(shape.lattice, core.batch, core.out_channels, tile.kept, False)
    rest = draft.after(each, out, Arguments(), ordered=False)
    config = hopper.choose(geometry, draft.item, rest, stored)
    if config is None:
        return None
    geometry = replace(geometry, cross=tiling.crosses(shape, (1, 1, 1, config.tile)))
    rest = draft.after(each, out, Arguments(), geometry.ordered)
    return geometry, hopper.choose(geometry, draft.item, rest, stored) or config, rest
