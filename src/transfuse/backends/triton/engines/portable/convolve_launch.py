"""The convolution on any GPU, tile by tile, with all that follows up to the next cut."""

from collections.abc import Iterator
from typing import Any

from transfuse.backends.triton.draft import (
    Draft,
    Partials,
    Place,
    apart,
    gathered,
    kind_of,
    numbers,
    spread_strides,
)
from transfuse.backends.triton.engines.contract import Task
from transfuse.backends.triton.engines.portable import tiling
from transfuse.backends.triton.engines.portable.convolve_kernel import convolve
from transfuse.backends.triton.engines.portable.tile import Multiply, Tile
from transfuse.backends.triton.engines.portable.tiling import Tiling
from transfuse.backends.triton.engines.workload import Workload
from transfuse.backends.triton.epilogue import statistics_launch, stored_launch
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.launch import At, Boxes
from transfuse.backends.triton.lower import Segment
from transfuse.backends.triton.packing import packing_launch
from transfuse.problem import Problem


class Portable:
    """The engine for every GPU, every geometry and every element type."""

    name = "portable"

    def verdict(self, task: Task) -> str:
        return ""

    def configs(self, task: Task) -> Iterator[Tiling]:
        yield task.tiling
        yield from tiling.space(task.work, task.draft.gpu.capability)

    def emit(self, task: Task, tiles: Tiling) -> None:
        draft, segment = task.draft, task.segment
        if tiles.split == 1:
            _emit(draft, segment, task.out, tiles)
            return
        # Several programs meet the members of a window; their results meet in another launch.
        alone, rest = apart(segment, draft.core.out_channels)
        shares = draft.between(alone.result, tiles.form, tiles.split)
        _emit(draft, alone, shares, tiles)
        stored_launch.add(draft, rest, shares, task.out)


def _emit(draft: Draft, segment: Segment, out: Place, tiles: Tiling) -> None:
    """The convolution and what follows; once more for weights that are not finite."""
    work = draft.workload(segment)
    tile = Tile.of(work, tiles, kind_of(segment.window))
    found = add(draft, segment, out, work, tiles, tile)
    if work.tap_table.leaves and not tile.depthwise:
        add(draft, segment, out, work, tiles, tile, careful=True, partials=found)
    statistic = gathered(segment)
    if statistic is not None:
        statistics_launch.add(draft, statistic, found, found)


def gather(draft: Draft, segment: Segment, work: Workload, tiles: Tiling, tile: Tile) -> Partials:
    """Memory for what the tiles of a segment gather."""
    count = tiling.tiles(work, tiles.form, tiles.box, tile.cross)
    return draft.gather(segment, count, tile.of_tile)


def add(
    draft: Draft,
    segment: Segment,
    out: Place,
    work: Workload,
    tiles: Tiling,
    tile: Tile,
    careful: bool = False,
    partials: Partials | None = None,
) -> Partials:
    """All tiles; ``careful``, once more for weights that are not finite, else idle."""
    core, batch = draft.core, draft.core.batch
    rows, packed, wild, copied = packing_launch.add(draft, work.tap_table, tile)
    order = tile.order_of_results
    arguments = OpArguments(draft.spread, lambda strides: draft.unit(order, tile.tiled, strides))
    epilogue = draft.epilogue(segment, out, arguments)
    if partials is None:
        partials = gather(draft, segment, work, tiles, tile)
    x: At | Boxes = At(rows)
    w: At | Boxes = At(packed)
    if not tile.depthwise:
        x = Boxes(rows, packing_launch.sizes(tile, batch), (*tiles.box, tiles.depth))
        sizes = tile.groups * tile.rows, tile.slots * tile.kept
        w = Boxes(packed, sizes, (tiles.channels, tiles.depth))
    count = tiling.tiles(work, tiles.form, tiles.box, tile.cross)
    programs = count * tile.of_tile * tile.channel_blocks
    given: list[Any] = [
        x, w, At(rows), At(packed), At(out.number), draft.constant(work.tap_table.flat), At(wild),
        copied, batch, draft.tensors(arguments), numbers(arguments), spread_strides(arguments),
        At(partials.partials), draft.destination(out, order, tile.tiled),
        draft.gathered(segment, partials), programs, tile, epilogue,
        Multiply(draft.acc, _dot(core), careful),
    ]  # fmt: skip
    if careful:
        draft.add(convolve, min(programs, 128), given, num_warps=32, num_stages=1)
    else:
        draft.add(convolve, programs, given, num_warps=tiles.warps, num_stages=tiles.stages)
    return partials


def _dot(core: Problem) -> str:
    """How Triton multiplies: three products of tf32 make one of float32."""
    if core.dtype == "fp64":
        return "ieee"
    return "tf32x3" if core.arithmetic == "fp32" else "tf32"
