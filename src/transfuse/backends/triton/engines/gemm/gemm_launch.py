"""The engine of matrix products: which segments it takes, its tiles, its launches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import torch

from transfuse.backends.triton.draft import WEIGHT, Draft, X, gathered, numbers, spread_strides
from transfuse.backends.triton.engines.contract import Task, Unsuited
from transfuse.backends.triton.engines.gemm.careful_kernel import (
    CHANNELS,
    POSITIONS,
    multiply_carefully,
)
from transfuse.backends.triton.engines.gemm.columns_kernel import pack_columns
from transfuse.backends.triton.engines.gemm.gemm_geometry import Anchors, Rows, rows
from transfuse.backends.triton.engines.gemm.gemm_kernel import multiply
from transfuse.backends.triton.engines.gemm.gemm_records import (
    CarefulSizes,
    Columns,
    ColumnSizes,
    GemmSizes,
    GemmTile,
)
from transfuse.backends.triton.engines.gemm.gemm_tiling import GemmTiling, tilings
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.epilogue.records import Destination, Epilogue
from transfuse.backends.triton.launch import At, Boxes
from transfuse.backends.triton.lower import Segment, TileOp
from transfuse.backends.triton.strides import CHANNELS as CHANNEL_AXIS
from transfuse.backends.triton.strides import Five, inner, three
from transfuse.backends.triton.told import all_told, divisor, told
from transfuse.elements import ELEMENTS

MOST_PHASES = 64
"""A tile has two channels at least, and all phases of each."""


@dataclass(frozen=True)
class Product:
    """The tiles of one product, and how its input is read."""

    anchors: Anchors
    rows: Rows
    tiling: GemmTiling

    def __str__(self) -> str:
        layout = "channels last" if self.rows.channels_last else "positions last"
        return f"{self.tiling} input {layout}"


class Gemm:
    """All phases of all channels are columns of one matrix product."""

    name = "gemm"

    def verdict(self, task: Task) -> str:
        draft, core, segment = task.draft, task.draft.core, task.segment
        for axis in core.axes:
            if axis.k % axis.stride:
                return f"stride {axis.stride} does not divide kernel {axis.k}"
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
        lowered = draft.lowered
        if lowered.prologue or lowered.after_pool or lowered.pool is not None:
            return "stages before the convolution store its input anew, in another order"
        found = anchors_of(task)
        if found.phases > MOST_PHASES:
            return f"{found.phases} phases do not fit a tile; {MOST_PHASES} is the most"
        if not found.flat:
            return "anchors do not follow each other as inputs do"
        return ""

    def configs(self, task: Task) -> Iterator[Product]:
        draft, core = task.draft, task.draft.core
        anchors, unit = anchors_of(task), 16 // draft.item
        crosses = all(each.whole for each in anchors.axes) and not task.work.per_sample
        sizes = anchors.each("inputs")
        found = rows(core.batch, core.in_channels, sizes, draft.x_strides, unit, crosses)
        if found is None or X not in draft.aligned:
            raise Unsuited("the input does not lie as the copy engine reads it")
        count = anchors.count * (core.batch if found.crosses else 1)
        columns = core.out_channels * anchors.phases
        least = 2 * anchors.phases
        for each in tilings(count, columns, least, draft.item, draft.gpu.capability):
            yield Product(anchors, found, each)

    def emit(self, task: Task, tiles: Product) -> None:
        draft, core, segment = task.draft, task.draft.core, scaled(task.draft, task.segment)
        anchors, source, tiling = tiles.anchors, tiles.rows, tiles.tiling
        outputs, channels = core.out_channels, tiling.columns // anchors.phases
        last = inner(task.out.strides) == CHANNEL_AXIS
        packs = last or not in_place(draft, anchors)
        columns = -(-outputs // channels)
        side = channels if last else tiling.anchors

        def unit(strides: Five, item: int) -> int:
            return anchors.unit(strides, 16 // item, outputs, side)

        arguments = OpArguments(draft.spread, lambda strides: unit(strides, draft.item))
        epilogue = draft.epilogue(segment, task.out, arguments)
        tile = GemmTile(
            anchors=tiling.anchors,
            channels=channels,
            depth=tiling.depth,
            phases=anchors.each("stride"),
            taps=anchors.taps,
            channels_last=source.channels_last,
            crosses=source.crosses,
            packed=packs,
            channels_inner=packs and last,
            tf32=core.arithmetic == "tf32",
            whole=outputs % channels == 0,
            cropped=anchors.cropped,
            unit=unit(task.out.strides, 16 // epilogue.unit),
        )
        if packs:
            made = packed(draft, anchors, tile)
            w, wild = made.boxes, made.wild
        else:
            sizes = core.in_channels, outputs * anchors.phases
            w = Boxes(
                WEIGHT, sizes, (tile.depth, tile.columns), own_strides=(draft.weight_strides[0], 1)
            )
        count = anchors.count * (core.batch if source.crosses else 1)
        blocks = -(-count // tile.anchors)
        d, h, wide = anchors.each("anchors")
        told_sizes = GemmSizes(
            columns=divisor(columns),
            blocks=divisor(blocks),
            sample=divisor(anchors.count),
            plane=divisor(h * wide),
            line=divisor(wide),
            anchors=told(count),
            first=told(anchors.width.first),
            channels=told(core.in_channels),
            outputs=told(outputs),
            results=all_told(anchors.each("results")),
            back=all_told(anchors.each("back")),
        )
        box = (1, tile.anchors, tile.depth) if source.channels_last else (1, tile.depth, tile.anchors)
        to = Destination(all_told(task.out.strides), told(0), told(0))
        given = [
            Boxes(X, source.sizes, box, own_strides=source.strides), w, At(task.out.number),
            draft.tensors(arguments), numbers(arguments), spread_strides(arguments), told_sizes,
            to, tile, epilogue, draft.acc,
        ]  # fmt: skip
        programs = source.sizes[0] * blocks * columns
        draft.add(multiply, programs, given, num_warps=tiling.warps, num_stages=tiling.stages)
        if packs and anchors.leaves:
            careful(draft, task, segment, anchors, made)


def anchors_of(task: Task) -> Anchors:
    return Anchors.of(task.draft.core.axes, task.segment.result.spatial)


def scaled(draft: Draft, segment: Segment) -> Segment:
    """A segment that begins with the factor of the weights, if there is one."""
    factor = draft.lowered.factor
    if factor == 1.0:
        return segment
    return replace(segment, after=(TileOp("scale_number", numbers=(factor,)), *segment.after))


def in_place(draft: Draft, anchors: Anchors) -> bool:
    """Whether weights lie as the columns of the product, ready for tensor cores.

    Those of tf32 do not: they are rounded, and tensor cores take them along the sum alone.
    """
    if draft.item != 2 or anchors.taps > 1 or anchors.leaves or WEIGHT not in draft.aligned:
        return False
    outputs, dense = draft.core.out_channels, 1
    for size, stride in zip(
        (outputs, *anchors.each("stride"))[::-1], draft.weight_strides[:0:-1], strict=True
    ):
        if size > 1 and stride != dense:
            return False
        dense *= size
    return draft.weight_strides[0] % (16 // draft.item) == 0


@dataclass(frozen=True)
class PackedColumns:
    """The weights as columns of a product: where they lie, what was found in them."""

    columns: Columns
    boxes: Boxes
    wild: int
    programs: int


def packed(draft: Draft, anchors: Anchors, tile: GemmTile) -> PackedColumns:
    """The launch that packs weights for tiles."""
    core, unit = draft.core, 16 // draft.item
    columns = Columns(
        tile.phases, anchors.each("taps"), tile.channels, tile.channels_inner, tile.tf32
    )
    kept = -(-core.in_channels // unit) * unit
    rows = -(-core.out_channels // tile.channels) * tile.columns
    depths = -(-kept // columns.depth)
    programs = -(-rows // columns.block) * depths * anchors.taps
    memory = draft.memory(rows * anchors.taps * kept, ELEMENTS[core.dtype].dtype)
    wild = draft.memory(1 + programs, torch.int32)
    sizes = ColumnSizes(
        divisor(depths), told(core.out_channels), told(core.in_channels), told(kept), told(rows)
    )
    given = [At(WEIGHT), At(memory), At(wild), sizes, all_told(draft.weight_strides), columns]
    draft.add(pack_columns, programs, given, num_warps=4)
    boxes = Boxes(memory, (rows, anchors.taps, kept), (tile.columns, 1, tile.depth))
    return PackedColumns(columns, boxes, wild, programs)


def careful(
    draft: Draft, task: Task, segment: Segment, anchors: Anchors, made: PackedColumns
) -> None:
    """Once more for weights that are not finite, else idle."""
    core, results = draft.core, anchors.each("results")
    arguments = OpArguments(draft.spread)
    epilogue: Epilogue = draft.epilogue(segment, task.out, arguments)
    blocks = -(-prod(results) // POSITIONS.value)
    of_sample = blocks * -(-core.out_channels // CHANNELS.value)
    programs = core.batch * of_sample
    padding = three([axis.padding for axis in core.axes], 0)
    sizes = CarefulSizes(
        copied=told(made.programs),
        programs=told(programs),
        of_sample=divisor(of_sample),
        blocks=divisor(blocks),
        plane=divisor(results[1] * results[2]),
        line=divisor(results[2]),
        positions=told(prod(results)),
        channels=told(core.in_channels),
        outputs=told(core.out_channels),
        padding=all_told(padding),
        inputs=all_told(anchors.each("inputs")),
        source=all_told(draft.x_strides),
        strides=all_told(draft.weight_strides),
    )
    to = Destination(all_told(task.out.strides), told(0), told(0))
    given = [
        At(X), At(WEIGHT), At(task.out.number), At(made.wild), draft.tensors(arguments),
        numbers(arguments), spread_strides(arguments), sizes, to, made.columns, epilogue, draft.acc,
    ]  # fmt: skip
    draft.add(multiply_carefully, min(programs, 128), given, num_warps=4, num_stages=1)
