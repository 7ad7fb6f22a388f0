"""The engine of few output channels: which segments it takes, its tiles, its launch."""

from collections.abc import Iterator
from math import prod

from transfuse.backends.triton.arguments import At
from transfuse.backends.triton.draft import WEIGHT, X, gathered, numbers, spread_strides
from transfuse.backends.triton.engines.contract import Task, Unsuited
from transfuse.backends.triton.engines.few.few_records import FewSizes, FewTile
from transfuse.backends.triton.engines.few.few_tiling import (
    MARGIN,
    WARPS,
    FewTiling,
    of_theirs,
    space,
    verdict,
)
from transfuse.backends.triton.engines.gemm.gemm_geometry import Anchors, destination
from transfuse.backends.triton.engines.gemm.gemm_launch import scaled
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.strides import CHANNELS as CHANNEL_AXIS
from transfuse.backends.triton.strides import WIDTH as WIDTH_AXIS
from transfuse.backends.triton.strides import Five, inner, three
from transfuse.backends.triton.told import all_told, divisor, told

CONVOLVE = Kernel("engines.few.few_kernel", "few_outputs", static=3)

THIRD = 168
"""Registers of a thread where three programs share a multiprocessor. Where steps are of more
channels than one, or masks of three axes, some values would go through memory."""


class Few:
    """All phases of all channels of an anchor are sums of one thread; no tensor cores."""

    name = "few"

    def verdict(self, task: Task) -> str:
        draft, segment = task.draft, task.segment
        lowered = draft.lowered
        if lowered.prologue or lowered.after_pool or lowered.pool is not None:
            return "stages before the convolution run where the input is copied"
        if segment.window is not None or gathered(segment) is not None:
            return "a window or a statistic follows the sums"
        if segment.resident is not None:
            return "a norm takes all positions of a sample at once"
        along = inner(draft.x_strides)
        if along == CHANNEL_AXIS:
            return "its input has channels innermost"
        if along != WIDTH_AXIS:
            return "its input has neighbours along width lie apart"
        return verdict(draft.core)

    def configs(self, task: Task) -> Iterator[FewTiling]:
        draft, core = task.draft, task.draft.core
        count = prod(anchors_of(task).each("anchors"))
        if count >= 2**31:
            raise Unsuited(f"{count} positions have no 32-bit numbers")
        found = [*space(core, draft.gpu.multiprocessors)]
        share = of_theirs(core, found[0], draft.gpu.multiprocessors)
        if share > MARGIN:
            raise Unsuited(f"it is expected to take {share:.2f} of the time of tensor cores")
        yield from found

    def share(self, tiles: FewTiling) -> float:
        return 0.05

    def emit(self, task: Task, tiles: FewTiling) -> None:
        draft, out, anchors = task.draft, task.out, anchors_of(task)
        blocks = -(-prod(anchors.each("anchors")) // tiles.anchors)
        arguments = OpArguments(draft.spread, lambda strides: unit(task, tiles, strides))
        epilogue = draft.epilogue(scaled(draft, task.segment), out, arguments)
        tile, options = tile_of(task, tiles), {"num_warps": WARPS}
        if tiles.together == 1 and draft.item < 8 and not all(tile.leaves):
            options["maxnreg"] = THIRD
        given = [
            At(X), At(WEIGHT), At(out.number), draft.tensors(arguments), numbers(arguments),
            spread_strides(arguments), sizes_of(task, tiles, blocks), destination(out.strides),
            tile, epilogue, draft.acc,
        ]  # fmt: skip
        draft.add(CONVOLVE, draft.core.batch * blocks, given, **options)


def anchors_of(task: Task) -> Anchors:
    return Anchors.of(task.draft.core.axes, task.segment.result.spatial)


def unit(task: Task, tiles: FewTiling, strides: Five) -> int:
    """How many results are one aligned piece of a tensor that lies so."""
    anchors, outputs = anchors_of(task), task.draft.core.out_channels
    width, most = anchors.width, task.draft.stored_unit(task.out)
    if inner(strides) == WIDTH_AXIS and width.stride & (width.stride - 1):
        return 1  # results of an anchor do not fill their places in a tile
    side = outputs if inner(strides) == CHANNEL_AXIS else tiles.anchors
    return anchors.unit(strides, most, outputs, side, width.anchors, any_size=False)


def tile_of(task: Task, tiles: FewTiling) -> FewTile:
    """What the kernel is compiled for."""
    draft, core, anchors = task.draft, task.draft.core, anchors_of(task)
    co, *order = draft.weight_strides[1:]
    leaves = anchors.each("leaves")
    return FewTile(
        anchors=tiles.anchors,
        outputs=core.out_channels,
        together=tiles.together,
        kernel=three(core.kernel, 1),
        stride=anchors.each("stride"),
        order=(co, *three(order, 0)),
        leaves=(bool(leaves[0]), bool(leaves[1]), bool(leaves[2])),
        cropped=anchors.cropped(anchors.each("anchors")),
        unit=unit(task, tiles, task.out.strides),
    )


def sizes_of(task: Task, tiles: FewTiling, blocks: int) -> FewSizes:
    """What the kernel is told of so many blocks of a sample's anchors."""
    draft, core, anchors = task.draft, task.draft.core, anchors_of(task)
    _, high, wide = anchors.each("anchors")
    return FewSizes(
        blocks=divisor(blocks),
        plane=divisor(high * wide),
        line=divisor(wide),
        anchors=told(prod(anchors.each("anchors"))),
        channels=told(core.in_channels),
        steps=told(core.in_channels // tiles.together),
        first=all_told(anchors.each("first")),
        inputs=all_told(anchors.each("inputs")),
        source=all_told(draft.x_strides),
        weights=told(draft.weight_strides[0]),
        results=all_told(anchors.each("results")),
        back=all_told(anchors.each("back")),
    )
