"""The engine of strips for Hopper: which segments it takes, its launches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transfuse.backends.triton.arguments import NO_MORE, At, Boxes
from transfuse.backends.triton.draft import OUT, Draft, Partials, gathered, numbers
from transfuse.backends.triton.engines.contract import Task, Unsuited
from transfuse.backends.triton.engines.hopper_strip import strip_layout, strip_turns
from transfuse.backends.triton.engines.hopper_strip.strip_geometry import (
    ResultLayout,
    StripGeometry,
)
from transfuse.backends.triton.engines.hopper_strip.strip_layout import StripTiling
from transfuse.backends.triton.engines.hopper_strip.strip_sizes import sizes
from transfuse.backends.triton.engines.portable import convolve_launch, tiling
from transfuse.backends.triton.engines.portable.tile import Tiled
from transfuse.backends.triton.engines.workload import Workload
from transfuse.backends.triton.epilogue import statistics_launch
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.epilogue.records import Epilogue
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.packing import packing_launch
from transfuse.backends.triton.packing.packed_layout import Copies

CONVOLVE = Kernel(
    "engines.hopper_strip.strip_kernel", "convolve_strip", static=3, at_run_time=True, slow=True
)

SHORT, LONG = 256, 1024
"""Products of a sum: few, so that what follows takes longer; many, so that programs take long."""


@dataclass(frozen=True)
class Strips:
    """A problem and its tiles, and what follows the sums."""

    geometry: StripGeometry
    tiling: StripTiling
    epilogue: Epilogue

    @property
    def blocks(self) -> int:
        """Blocks of anchors."""
        return self.geometry.tiles(self.tiling.tile)

    @property
    def tiles(self) -> int:
        return self.blocks * self.tiling.tiles_of_block(self.geometry)

    def __str__(self) -> str:
        each = self.tiling
        stages = f"stages {each.x_stages}+{'all' if each.hold else each.w_stages}"
        store = f"store {each.store}" + (f" by {each.vector}" if each.store == "rows" else "")
        tile = f"strip {each.consumers}x{each.positions} channels {each.channels}"
        turns = " in turns" if each.own else ""
        return f"{tile}{turns} depth {each.depth} {stages} {store}"


class HopperStrip:
    """One strip of rows, loaded once, serves all width taps."""

    name = "hopper_strip"

    def verdict(self, task: Task) -> str:
        core, work = task.draft.core, task.work
        if task.draft.not_hopper:
            return task.draft.not_hopper
        if not all(op.per_channel for op in task.segment.after):
            return "a map reads a tensor that has more than one value per channel"
        if work.depthwise:
            return "groups of one channel have no products for tensor cores"
        if work.per_sample and _products(work) < SHORT:
            return f"sums are short before a statistic: {_products(work)} products, of {SHORT}"
        window = task.segment.window is not None
        return strip_layout.verdict(
            work.tap_table, core.out_channels, task.draft.item, core.groups, window
        )

    def configs(self, task: Task) -> Iterator[Strips]:
        """How large tiles are decides whether they cross samples, and that in turn how results are
        stored: so a layout is chosen, and then chosen again.
        """
        draft, core, work = task.draft, task.draft.core, task.work
        kept = rows(draft, work).copies.kept
        stored = (draft.written if task.out.number == OUT else draft.wide).itemsize
        results = ResultLayout(task.out.strides, stored)
        geometry = StripGeometry.of(
            work.tap_table, core.batch, core.out_channels, kept, cross=False
        )
        # What it knows of large offsets is not looked at here: those of a tile are never large.
        epilogue = replace(draft.epilogue(task.segment, task.out, OpArguments()), wide=False)
        first = chosen(geometry, draft.item, epilogue, results)
        if first is None:
            raise Unsuited("no layout of its strips fits shared memory")
        cross = _crosses(task) or tiling.crosses(work, (1, 1, 1, first.tile))
        geometry = replace(geometry, cross=cross)
        best = chosen(geometry, draft.item, epilogue, results) or first
        found = Strips(geometry, best, epilogue)
        # Few large tiles with long sums: smaller ones reach more multiprocessors.
        if _products(work) > LONG and 2 * found.tiles < draft.gpu.multiprocessors:
            raise Unsuited(
                f"{found.tiles} tiles of long sums leave most of {draft.gpu.multiprocessors} "
                "multiprocessors idle"
            )
        yield found
        for layouts in (strip_turns.configs, strip_layout.configs):
            for other in layouts(geometry, draft.item, epilogue, results):
                yield replace(found, tiling=other)

    def share(self, tiles: Strips) -> float:
        return 0.5

    def emit(self, task: Task, tiles: Strips) -> None:
        draft, segment, work = task.draft, task.segment, task.work
        fast = self.convolve(task, tiles)
        careful, wild = fast, None
        tiled = rows(draft, work)
        if leaves(work, tiled.copies):
            careful, wild = convolve_launch.add_careful(draft, segment, task.out, tiled)
        statistic = gathered(segment)
        if statistic is not None:
            statistics_launch.add(draft, statistic, fast, careful, wild)

    def convolve(self, task: Task, tiles: Strips) -> Partials:
        """The launch of the strips; where it leaves what it gathers."""
        draft, core, work = task.draft, task.draft.core, task.work
        geometry, strip = tiles.geometry, tiles.tiling
        copies = rows(draft, work).copies
        copy, packed, *_ = packing_launch.add(draft, work.tap_table, copies)
        partials = draft.gather(task.segment, tiles.blocks, strip.partials(geometry))
        arguments = OpArguments()
        draft.epilogue(task.segment, task.out, arguments)  # tensors and numbers
        rows_of_input = core.batch * geometry.sample, copies.kept
        weights = copies.weight_sizes
        given = [
            Boxes(copy, rows_of_input, (strip.box, strip.depth), strip.layout),
            Boxes(copy, rows_of_input, (strip.halo or strip.box, strip.depth), strip.layout),
            Boxes(packed, weights, (strip.channels, strip.depth), strip.layout),
            At(task.out.number), NO_MORE, tiles.tiles, draft.tensors(arguments),
            numbers(arguments), At(partials.partials), partials.plane, partials.tiles,
            draft.counted(task.segment), *sizes(geometry, strip, task.out.strides),
            geometry.pattern(strip.channels, task.out.strides), strip, tiles.epilogue,
        ]  # fmt: skip
        programs = strip.programs(geometry, draft.gpu.multiprocessors)
        options = {"num_warps": 4} | ({"maxnreg": 128} if strip.consumers == 1 else {})
        draft.add(CONVOLVE, max(1, min(programs, tiles.tiles)), given, **options)
        return partials


def chosen(
    geometry: StripGeometry, itemsize: int, after: Epilogue, results: ResultLayout
) -> StripTiling | None:
    """The layout to launch: consumers take turns where that pays; none if none fits."""
    in_turns = next(strip_turns.configs(geometry, itemsize, after, results), None)
    return in_turns or strip_layout.choose(geometry, itemsize, after, results)


def rows(draft: Draft, work: Workload) -> Tiled:
    """Portable tiles that read the same copies as this engine."""
    return Tiled.of(work, tiling.heuristic(work, draft.gpu.capability, "rows"), "")


def leaves(work: Workload, copies: Copies) -> bool:
    """Whether weights that are not finite may meet zeros here, so that a careful launch follows."""
    # A block of channels may read on into the next tap's weights, and multiply by zero.
    depth = strip_layout.depth_of(copies.kept, work.item)
    reads_on = copies.slots > 1 and copies.kept % depth > 0
    return work.tap_table.leaves or reads_on


def _crosses(task: Task) -> bool:
    """Whether tiles cross samples, whatever the sizes.

    A statistic of the batch makes several segments of a chain, and sizes decide which of them there
    are: tiles of one kind keep the builds few.
    """
    statistics = task.draft.lowered.statistics
    return not task.work.per_sample and any(each.over_batch for each in statistics)


def _products(work: Workload) -> float:
    """Products of one output, on average over the classes."""
    return work.channels * work.tap_table.slots / work.tap_table.classes
