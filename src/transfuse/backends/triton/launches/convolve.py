"""The convolution on any GPU, tile by tile, with all that follows up to the next cut."""

from typing import Any

from transfuse.backends.triton import config as tiling
from transfuse.backends.triton.draft import Draft, Partials, Place, numbers
from transfuse.backends.triton.kernels.convolve import convolve
from transfuse.backends.triton.launch import At, Boxes
from transfuse.backends.triton.launches import prepare
from transfuse.backends.triton.lower import Arguments, Pass
from transfuse.backends.triton.tile import Tile
from transfuse.problem import Problem


def gather(
    draft: Draft, each: Pass, shape: tiling.Shape, config: tiling.Config, tile: Tile
) -> Partials:
    """Memory for what the tiles of a pass gather."""
    tiles = tiling.tiles(shape, config.form, config.box, tile.cross)
    return draft.gather(each, tiles, tile.of_tile)


def add(
    draft: Draft,
    each: Pass,
    out: Place,
    shape: tiling.Shape,
    config: tiling.Config,
    tile: Tile,
    careful: bool = False,
    gathered: Partials | None = None,
) -> Partials:
    """All tiles; ``careful``, once more for weights that are not finite, else idle."""
    core, batch = draft.core, draft.core.batch
    rows, packed, wild, copied = prepare.add(draft, shape.lattice, tile)
    arguments = Arguments()
    rest = draft.after(each, out, arguments, tile.ordered)
    if gathered is None:
        gathered = gather(draft, each, shape, config, tile)
    x: At | Boxes = At(rows)
    w: At | Boxes = At(packed)
    if not tile.depthwise:
        x = Boxes(rows, prepare.sizes(tile, batch), (*config.box, config.depth))
        sizes = tile.groups * tile.rows, tile.slots * tile.kept
        w = Boxes(packed, sizes, (config.channels, config.depth))
    tiles = tiling.tiles(shape, config.form, config.box, tile.cross)
    programs = tiles * tile.of_tile * tile.channel_blocks
    given: list[Any] = [
        x, w, At(rows), At(packed), At(out.number), draft.constant(shape.lattice.table), At(wild),
        copied, batch, draft.tensors(arguments), numbers(arguments), At(gathered.partials),
        gathered.plane, gathered.tiles, programs, tile, rest, draft.acc, _dot(core), careful,
    ]  # fmt: skip
    if careful:
        draft.add(convolve, min(programs, 128), given, num_warps=32, num_stages=1)
    else:
        draft.add(convolve, programs, given, num_warps=config.warps, num_stages=config.stages)
    return gathered


def _dot(core: Problem) -> str:
    """How Triton multiplies: three products of tf32 make one of float32."""
    if core.dtype == "fp64":
        return "ieee"
    return "tf32x3" if core.arithmetic == "fp32" else "tf32"
