"""The engine of windows for Hopper: which segments it takes, its launches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transfuse.backends.triton.arguments import NO_MORE, At, Boxes, Swizzled
from transfuse.backends.triton.draft import apart, kind_of, numbers
from transfuse.backends.triton.engines.contract import Task, Unsuited
from transfuse.backends.triton.engines.hopper_window import window_layout
from transfuse.backends.triton.engines.hopper_window.window_layout import Rings, WindowGeometry
from transfuse.backends.triton.engines.portable import convolve_launch, tiling
from transfuse.backends.triton.engines.portable.tile import Tiled
from transfuse.backends.triton.engines.portable.tiling import Tiling
from transfuse.backends.triton.epilogue import stored_launch
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.packing import packing_launch

CONVOLVE = Kernel(
    "engines.hopper_window.window_kernel", "convolve_window", static=3, at_run_time=True, slow=True
)


@dataclass(frozen=True)
class Windows:
    """What the kernel knows when it is compiled; the portable tile that reads the same copies."""

    geometry: WindowGeometry
    rings: Rings
    portable: Tiling

    def __str__(self) -> str:
        box = "x".join(map(str, self.geometry.box))
        stages = f"stages {self.rings.x_stages}+{self.rings.w_stages}"
        tile = f"batch {box} channels {self.geometry.padded} depth {self.rings.depth}"
        return f"{tile} {stages} split {self.geometry.split}"


class HopperWindow:
    """Two members of a window at once, results in registers until the last member."""

    name = "hopper_window"

    def verdict(self, task: Task) -> str:
        core, work, segment = task.draft.core, task.work, task.segment
        if task.draft.not_hopper:
            return task.draft.not_hopper
        if task.between:
            return "another segment reads the results"
        if work.per_sample or work.depthwise:
            return "it takes no statistic of a sample, and no groups of one channel"
        before = bool(segment.before) or segment.early is not None
        return window_layout.verdict(
            work.tap_table, core.out_channels, core.groups, kind_of(segment.window), before
        )

    def configs(self, task: Task) -> Iterator[Windows]:
        core, work, kind = task.draft.core, task.work, kind_of(task.segment.window)
        depth = tiling.depth_of(work)
        kept = -(-work.channels // depth) * depth
        found = window_layout.choose(
            work.tap_table, core.batch, core.out_channels, kept, depth, task.draft.item, kind,
            task.draft.gpu.multiprocessors,
        )  # fmt: skip
        if found is None:
            raise Unsuited("no layout of its rings fits shared memory")
        geometry, rings = found
        portable = Tiling("batch", geometry.box, geometry.padded, depth, 8, 2, geometry.split)
        if portable.lone:
            raise Unsuited("boxes of one position leave out taps, which it does not")
        yield Windows(geometry, rings, portable)

    def share(self, tiles: Windows) -> float:
        return 0.8

    def emit(self, task: Task, tiles: Windows) -> None:
        draft, core, work = task.draft, task.draft.core, task.work
        geometry, rings = tiles.geometry, tiles.rings
        alone, rest = apart(task.segment, core.out_channels)
        shares = draft.between(alone.result, "batch", geometry.split)
        tiled = Tiled.of(work, tiles.portable, kind_of(task.segment.window))
        rows, packed, *_ = packing_launch.add(draft, work.tap_table, tiled.copies)
        layouts = [Swizzled(rings.swizzle, 8 * draft.item, rank) for rank in (5, 2)]
        weights = tiled.copies.weight_sizes
        programs = geometry.tiles * geometry.split
        arguments = OpArguments()
        epilogue = replace(draft.epilogue(alone, shares, arguments), wide=False)
        boxes = tiled.copies.axes(core.batch, "batch"), (*geometry.box, rings.depth)
        given = [
            Boxes(rows, *boxes, layouts[0]),
            Boxes(packed, weights, (geometry.padded, rings.depth), layouts[1]),
            At(shares.number), NO_MORE, programs, draft.tensors(arguments), numbers(arguments),
            *geometry.sizes(shares.strides, shares.part), geometry.pattern, rings, epilogue,
        ]  # fmt: skip
        draft.add(CONVOLVE, min(draft.gpu.multiprocessors, programs), given, num_warps=4)
        if work.tap_table.leaves:
            convolve_launch.add_careful(draft, alone, shares, tiled)
        stored_launch.add(draft, rest, shares, task.out)
