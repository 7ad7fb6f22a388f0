"""The engine of matrix products: which segments it takes, its tiles, its launches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from transfuse.backends.triton.arguments import At, Boxes
from transfuse.backends.triton.draft import Draft, X, gathered, numbers, spread_strides
from transfuse.backends.triton.engines.contract import Task, Unsuited
from transfuse.backends.triton.engines.gemm.careful_launch import careful
from transfuse.backends.triton.engines.gemm.gemm_geometry import (
    Anchors,
    Source,
    copy_of,
    destination,
    in_place,
)
from transfuse.backends.triton.engines.gemm.gemm_records import (
    GemmSizes,
    GemmTile,
)
from transfuse.backends.triton.engines.gemm.gemm_tiling import WARPS, GemmTiling, tiling
from transfuse.backends.triton.engines.gemm.phases_launch import (
    packed,
    weights_as_given,
    weights_in_place,
)
from transfuse.backends.triton.engines.hopper_strip.strip_launch import HopperStrip
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.packing import packing_launch
from transfuse.backends.triton.packing.packed_layout import PADDED, Copies
from transfuse.backends.triton.segments import Segment, TileOp
from transfuse.backends.triton.strides import CHANNELS as CHANNEL_AXIS
from transfuse.backends.triton.strides import Five, inner, three
from transfuse.backends.triton.told import all_told, divisor, told

MULTIPLY = Kernel("engines.gemm.gemm_kernel", "multiply", static=3, slow=True)

ROUNDED = {True: 4, False: 1}
"""Row blocks up to which inputs are rounded to tf32 on their way into each, by whether they have
their channels innermost: above, to round them once, in a copy, takes less."""
FEW = 6
"""Tiles of a multiprocessor, from a copy of the input, up to which strips are no faster. These keep
rows that several taps read, and pay with longer programs."""


@dataclass(frozen=True)
class Product:
    """The tiles of one product, and how its input is read."""

    anchors: Anchors
    source: Source
    tiling: GemmTiling

    def __str__(self) -> str:
        where = "copied" if self.source.copied else "in place"
        return f"{self.tiling} input {where}"


class Gemm:
    """All phases of all channels are rows of one matrix product."""

    name = "gemm"

    def verdict(self, task: Task) -> str:
        core, segment = task.draft.core, task.segment
        for axis in core.axes:
            if axis.k % axis.stride:
                return f"stride {axis.stride} does not divide kernel {axis.k}"
            if axis.stride == 1 < axis.k:
                return f"stride 1 has one phase, and kernel {axis.k} more taps"
            if axis.dilation > 1 and axis.k > 1:
                return f"it has no dilation, and there is one of {axis.dilation}"
            if axis.stride & (axis.stride - 1):
                return f"stride {axis.stride} is no power of two"
        if core.arithmetic not in ("tf32", "fp16", "bf16"):
            return f"it multiplies tf32, fp16 and bf16, not {core.arithmetic}"
        if core.groups > 1:
            return f"it has no groups, and there are {core.groups}"
        if segment.window is not None or gathered(segment) is not None:
            return "a window or a statistic follows the sums"
        if segment.channel_stage or segment.resident is not None:
            return "a stage sees more than one element"
        return ""

    def configs(self, task: Task) -> Iterator[Product]:
        anchors = Anchors.of(task.draft.core.axes, task.segment.result.spatial)
        for source in sources(task, anchors):
            count = source.sizes[0] * source.count
            if count >= 2**31:
                raise Unsuited(f"{count} positions have no 32-bit numbers")
            if source.copied or not rounds_often(task, anchors, source):
                yield Product(anchors, source, tiles_of(task, anchors, source))

    def share(self, tiles: Product) -> float:
        return 0.5

    def emit(self, task: Task, tiles: Product) -> None:
        draft, out = task.draft, task.out
        anchors, source, tiling = tiles.anchors, tiles.source, tiles.tiling
        segment = task.segment if source.copied else scaled(draft, task.segment)
        arguments = OpArguments(draft.spread, lambda strides: unit(task, tiles, strides))
        epilogue = draft.epilogue(segment, out, arguments)
        tile = tile_of(task, tiles, 16 // epilogue.unit)
        number = copied(draft, task, source) if source.copied else X
        box = (1, tile.anchors, tile.depth) if tile.channels_last else (1, tile.depth, tile.anchors)
        weights = packed(draft, anchors, tile) if tile.packed else None
        count = source.sizes[0] * blocks(tiles) * row_blocks(task, tiles)
        given = [
            Boxes(number, source.sizes, box, own_strides=source.strides or ()),
            weights_as_given(draft, anchors, tile) if weights is None else weights.boxes,
            At(out.number), draft.tensors(arguments), numbers(arguments),
            spread_strides(arguments), sizes_of(task, tiles, tile, count),
            destination(out.strides), tile, epilogue, draft.acc,
        ]  # fmt: skip
        programs = min(count, tiling.at_once * draft.gpu.multiprocessors)
        draft.add(MULTIPLY, programs, given, num_warps=WARPS, num_stages=tiling.stages)
        if weights is not None and anchors.leaves:
            careful(task, segment, anchors, source, number, weights)


def tiles_of(task: Task, anchors: Anchors, source: Source) -> GemmTiling:
    """The tiles that read a source; ``Unsuited`` where there are none, or strips are faster."""
    gpu, last, count = task.draft.gpu, channels_inner(task), source.sizes[0] * source.count
    staged = source.channels_last and not last
    found = tiling(*rows_of(task, anchors), count, last, staged, task.draft.item, gpu)
    if found is None:
        raise Unsuited(f"{anchors.phases} phases of two channels do not fit a tile")
    tiles = found.row_blocks(*rows_of(task, anchors)) * -(-count // found.anchors)
    many = source.copied and staged and tiles > FEW * gpu.multiprocessors
    if many and not HopperStrip().verdict(task):
        raise Unsuited(f"strips are faster from {FEW} tiles of a multiprocessor on")
    return found


def rounds_often(task: Task, anchors: Anchors, source: Source) -> bool:
    """Whether inputs would be rounded to tf32 so often that it takes less to copy them."""
    if task.draft.core.arithmetic != "tf32":
        return False
    found = tiles_of(task, anchors, source).row_blocks(*rows_of(task, anchors))
    return found > ROUNDED[source.channels_last]


def rows_of(task: Task, anchors: Anchors) -> tuple[int, int]:
    """Channels of the output, and phases of each."""
    return task.draft.core.out_channels, anchors.phases


def row_blocks(task: Task, tiles: Product) -> int:
    """Tiles that share their anchors."""
    return tiles.tiling.row_blocks(task.draft.core.out_channels, tiles.anchors.phases)


def blocks(tiles: Product) -> int:
    """Blocks of the anchors that tiles run over."""
    return -(-tiles.source.count // tiles.tiling.anchors)


def unit(task: Task, tiles: Product, strides: Five, item: int = 0) -> int:
    """How many results are one aligned piece of a tensor with elements of ``item`` bytes, or those
    of the input."""
    source, tiling = tiles.source, tiles.tiling
    side = tiling.channels if inner(strides) == CHANNEL_AXIS else tiling.anchors
    most, outputs = 16 // (item or task.draft.item), task.draft.core.out_channels
    # Other sizes are read in place, by kernels of their own: few are to be built for these.
    often = task.draft.core.arithmetic == "tf32" and row_blocks(task, tiles) > ROUNDED[False]
    any_size = source.copied and tiles.anchors.whole and not often
    return tiles.anchors.unit(strides, most, outputs, side, source.extent[2], any_size)


def tile_of(task: Task, tiles: Product, item: int) -> GemmTile:
    """What the kernel is compiled for; results have ``item`` bytes."""
    core, anchors, source, tiling = task.draft.core, tiles.anchors, tiles.source, tiles.tiling
    last = channels_inner(task)
    return GemmTile(
        anchors=tiling.anchors,
        channels=tiling.channels,
        held=tiling.held,
        depth=tiling.depth,
        phases=anchors.each("stride"),
        taps=anchors.each("taps"),
        channels_last=source.channels_last,
        crosses=source.crosses,
        packed=not weights_in_place(task.draft, anchors, tiling, last),
        channels_inner=last,
        tf32=core.arithmetic == "tf32" and not source.copied,
        whole=core.out_channels % tiling.channels == 0,
        cropped=anchors.cropped(source.extent),
        unit=unit(task, tiles, task.out.strides, item),
    )


def sizes_of(task: Task, tiles: Product, tile: GemmTile, count: int) -> GemmSizes:
    """What the kernel is told of ``count`` tiles."""
    core, anchors, source = task.draft.core, tiles.anchors, tiles.source
    channel_blocks = -(-core.out_channels // tile.channels)
    padded = channel_blocks * tile.channels if tile.packed else core.out_channels
    return GemmSizes(
        tiles=told(count),
        rows=divisor(row_blocks(task, tiles)),
        channel_blocks=divisor(channel_blocks),
        phase_rows=told(tile.held * padded),
        blocks=divisor(blocks(tiles)),
        steps=divisor(-(-core.in_channels // tile.depth)),
        sample=divisor(prod(source.extent)),
        plane=divisor(source.extent[1] * source.extent[2]),
        line=divisor(source.extent[2]),
        anchors=told(source.count),
        first=told(anchors.first(source.extent)),
        outputs=told(core.out_channels),
        results=all_told(anchors.each("results")),
        back=all_told(anchors.each("back")),
    )


def sources(task: Task, anchors: Anchors) -> Iterator[Source]:
    """How the input can be read, the best way first."""
    draft, core, lowered = task.draft, task.draft.core, task.draft.lowered
    crosses = not task.work.per_sample
    stages = lowered.prologue or lowered.after_pool or lowered.pool is not None
    if not stages and anchors.whole and X not in draft.unaligned:
        sizes, unit = anchors.each("inputs"), 16 // draft.item
        found = in_place(core.batch, core.in_channels, sizes, draft.x_strides, unit, crosses)
        if found is not None:
            yield found
    kept = -(-core.in_channels // PADDED) * PADDED
    yield copy_of(core.batch, kept, anchors.each("extent"), crosses)


def scaled(draft: Draft, segment: Segment) -> Segment:
    """A segment that begins with the factor of the weights, if there is one."""
    factor = draft.lowered.factor
    if factor == 1.0:
        return segment
    return replace(segment, after=(TileOp("scale_number", numbers=(factor,)), *segment.after))


def channels_inner(task: Task) -> bool:
    """Whether results have their channels innermost."""
    return inner(task.out.strides) == CHANNEL_AXIS


def copied(draft: Draft, task: Task, source: Source) -> int:
    """The number of the copy of the input."""
    core = draft.core
    copies = Copies(
        extent=source.extent,
        residues=(1, 1, 1),
        low=0,
        samples_last=False,
        taps=three(core.kernel, 1),
        groups=1,
        group_channels=core.in_channels,
        group_outputs=core.out_channels,
        kept=source.sizes[2],
        rows=0,
    )
    return packing_launch.add(draft, task.work.tap_table, copies).rows
