"""The loop for Hopper of a convolution that a window follows: its members in pairs."""

from transfuse.backends.triton import config as tiling
from transfuse.backends.triton import hopper, hopper_window
from transfuse.backends.triton.draft import Draft, Place, apart, kind_of, numbers
from transfuse.backends.triton.kernels.hopper_window import convolve_window
from transfuse.backends.triton.launch import NO_MORE, At, Boxes
from transfuse.backends.triton.launches import convolve, finish, prepare
from transfuse.backends.triton.lower import Arguments, Pass
from transfuse.backends.triton.tile import Tile


def add(draft: Draft, each: Pass, out: Place, between: bool) -> bool:
    """A whole pass, where this loop serves; ``between``: another one reads its results."""
    core, kind = draft.core, kind_of(each.window)
    if not draft.on_hopper or between:
        return False
    shape = draft.shape(each)
    lattice, before = shape.lattice, bool(each.before) or each.early is not None
    if hopper_window.verdict(lattice, core.out_channels, core.groups, kind, before):
        return False
    depth, multiprocessors = tiling.depth_of(shape), draft.gpu.multiprocessors
    kept = -(-shape.channels // depth) * depth
    found = hopper_window.choose(
        lattice, core.batch, core.out_channels, kept, depth, draft.item, kind, multiprocessors
    )
    if found is None or shape.per_sample or shape.depthwise:
        return False
    geometry, rings = found
    config = tiling.Config("batch", geometry.box, geometry.padded, depth, 8, 2, geometry.split)
    if config.lone:
        return False
    alone, rest = apart(each, core.out_channels)
    shares = draft.between(alone.result, "batch", geometry.split)
    tile = Tile.of(shape, config, kind)
    rows, packed, *_ = prepare.add(draft, lattice, tile)
    layouts = [hopper.swizzled(rings.swizzle, draft.item, rank) for rank in (5, 2)]
    weights = tile.rows, tile.slots * tile.kept
    programs = geometry.tiles * geometry.split
    arguments = Arguments()
    after = draft.after(alone, shares, arguments, ordered=False)
    given = [
        Boxes(rows, prepare.sizes(tile, core.batch), (*geometry.box, depth), layouts[0]),
        Boxes(packed, weights, (geometry.padded, depth), layouts[1]),
        At(shares.number), NO_MORE, core.batch, programs, draft.tensors(arguments),
        numbers(arguments), geometry, rings, after,
    ]  # fmt: skip
    draft.add(convolve_window, min(multiprocessors, programs), given, num_warps=4)
    if lattice.leaves:
        convolve.add(draft, alone, shares, shape, config, tile, careful=True)
    finish.add(draft, rest, shares, out)
    return True
