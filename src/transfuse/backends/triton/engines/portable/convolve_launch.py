"""The convolution on any GPU, tile by tile, with all that follows up to the next cut."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from transfuse.backends.triton.arguments import At, Boxes
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
from transfuse.backends.triton.engines.portable.tile import Multiply, Tiled
from transfuse.backends.triton.engines.portable.tiling import Tiling
from transfuse.backends.triton.epilogue import statistics_launch, stored_launch
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.epilogue.records import Epilogue
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.packing import packing_launch
from transfuse.backends.triton.segments import Segment
from transfuse.backends.triton.told import told
from transfuse.problem import Problem

CONVOLVE = Kernel("engines.portable.convolve_kernel", "convolve", static=3, slow=True)
CAREFULLY = Kernel("engines.portable.convolve_kernel", "convolve_carefully", static=3)

REGISTERS = 2**16
"""Of a multiprocessor: the programs that run on it at once share them."""
MOST = 255
"""Of a thread."""
BESIDE = 32
"""Of a thread beside its sums, as many as a tile of boxes needs. Left alone, ptxas mostly takes
more, and a program fewer runs at once: but a loop of a few steps waits for memory, and what fills
that time is other programs."""


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

    def share(self, tiles: Tiling) -> float:
        """Tiles of many samples read whole rows of channels; others gather them value by value."""
        return 0.8 if tiles.form == "batch" else 0.1


def _emit(draft: Draft, segment: Segment, out: Place, tiles: Tiling) -> None:
    """The convolution and what follows; once more for weights that are not finite."""
    work = draft.workload(segment)
    tiled = Tiled.of(work, tiles, kind_of(segment.window))
    found = draft.gather(segment, tiled.tiles, tiled.of_tile)
    add(draft, segment, out, tiled, tiles, found)
    careful, wild = found, None
    if work.tap_table.leaves and not work.depthwise:
        careful, wild = add_careful(draft, segment, out, tiled)
    statistic = gathered(segment)
    if statistic is not None:
        statistics_launch.add(draft, statistic, found, careful, wild)


def add(
    draft: Draft, segment: Segment, out: Place, tiled: Tiled, tiles: Tiling, partials: Partials
) -> None:
    """All tiles, a program each."""
    tile, copies, batch = tiled.tile, tiled.copies, draft.core.batch
    rows, packed, *_ = packing_launch.add(draft, tiled.work.tap_table, copies)
    x: At | Boxes = At(rows)
    w: At | Boxes = At(packed)
    if not tile.depthwise:
        x = Boxes(rows, copies.axes(batch, tile.form), (*tile.box, tile.depth))
        w = Boxes(packed, copies.weight_sizes, (tile.channels, tile.depth))
    multiply = Multiply(draft.acc, _dot(draft.core), singly=tile.depthwise)
    *others, epilogue = _given(draft, segment, out, tiled, partials)
    given: list[Any] = [
        x, w, At(rows), At(packed), At(out.number), draft.constant(tiled.work.tap_table.flat),
        *others, epilogue, multiply,
    ]  # fmt: skip
    options: dict[str, Any] = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    most = registers(tiled, tiles.warps, epilogue)
    if most is not None:
        options["maxnreg"] = most
    draft.add(CONVOLVE, tiled.programs, given, **options)


def registers(tiled: Tiled, warps: int, epilogue: Epilogue) -> int | None:
    """The most of a thread with which as many programs as possible share a multiprocessor.

    None where that is left to the compiler, since values would go through memory: in rows, behind a
    window, for the parts of float32, and where results are stored one by one.
    """
    tile, work, threads = tiled.tile, tiled.work, 32 * warps
    singly = epilogue.stored and epilogue.unit == 1
    if tile.form != "box" or work.windowed or work.thrice or singly:
        return None
    sums = tile.channels * tile.positions * (1 if epilogue.only_gathers else tile.joined)
    programs = max(1, REGISTERS // (sums + BESIDE * threads))
    found = REGISTERS // (programs * threads) // 8 * 8  # they are given out by eights
    return found if found <= MOST else None


def add_careful(draft: Draft, segment: Segment, out: Place, fast: Tiled) -> tuple[Partials, int]:
    """Once more all results, from the copies of ``fast``, where weights are not finite.

    Gives what it gathers, and the number of what tells whether weights are not finite.
    """
    tiled = fast.carefully()
    partials = draft.gather(segment, tiled.tiles, tiled.of_tile)
    rows, packed, wild, copied = packing_launch.add(draft, tiled.work.tap_table, tiled.copies)
    given: list[Any] = [
        At(rows), At(packed), At(out.number), draft.constant(tiled.work.tap_table.flat), At(wild),
        told(copied), *_given(draft, segment, out, tiled, partials),
        Multiply(draft.acc, "", singly=True),
    ]  # fmt: skip
    draft.add(CAREFULLY, min(tiled.programs, 128), given, num_warps=32, num_stages=1)
    return partials, wild


def _given(
    draft: Draft, segment: Segment, out: Place, tiled: Tiled, partials: Partials
) -> list[Any]:
    """What follows the copies among the arguments of either kernel, up to the products."""
    order, tile = tiled.order, tiled.tile
    arguments = OpArguments(draft.spread, lambda strides: draft.unit(order, tiled.tiled, strides))
    epilogue = draft.epilogue(segment, out, arguments)
    to = draft.destination(out, order, tiled.tiled)
    if to.even != told(1):  # results one by one: a build of its own
        epilogue = replace(epilogue, unit=1)
    return [
        At(partials.partials), draft.tensors(arguments), numbers(arguments),
        spread_strides(arguments), to, draft.gathered(segment, partials), tiled.sizes, tile,
        epilogue,
    ]  # fmt: skip


def _dot(core: Problem) -> str:
    """How Triton multiplies: three products of tf32 make one of float32."""
    if core.dtype == "fp64":
        return "ieee"
    return "tf32x3" if core.arithmetic == "fp32" else "tf32"
