"""Every choice of tiles is valid, whatever the problem: powers of two, room, nothing left out."""

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from transfuse.backends.triton import lower
from transfuse.backends.triton.engines.portable.tile import Tiled
from transfuse.backends.triton.engines.portable.tiling import (
    SHARED,
    Tiling,
    candidates,
    heuristic,
    joined,
)
from transfuse.backends.triton.engines.workload import Workload, describe
from transfuse.backends.triton.segments import Lowered, Segment
from transfuse.backends.triton.tap_table import TapTable
from transfuse.backends.triton.told import UNDIVIDED
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.operators import OPERATORS
from transfuse.plan import fused
from transfuse.problem import Problem
from transfuse.stages import batch_norm, conv_transpose, group_norm, max_pool, softmax
from transfuse.stages import sum as channel_sum

PLAIN = [
    "n8 ci64 co64 i512x512 k3x7",
    "n1 ci1 co1 i1 k1",
    "n3 ci5 co7 i9 k3 s3",
    "n2 ci3 co513 i30x20 k4 s2 p1",
    "n100 ci512 co512 i4x4 k4 s2 p1",
    "n1 ci9 co9 i100x100 k3 g9",
    "n4 ci96 co48 i17x19x5 k2 s2 g3",
    "n1 ci3 co4 i2000001 k3 s2",
    "n2 ci33 co20 i12x9 k5x3 s8x5 d2 p1",
]
AFTER = [(), (softmax("channels"),), (channel_sum("channels", keepdim=True),), (max_pool(3),)]
AFTER += [
    (batch_norm(weight="w", bias="b", training=True), max_pool(2)),
    (group_norm(1),),
    (softmax("space"), max_pool(2, 1)),
]


def passes() -> list[Any]:
    """Every pass with a convolution of many programs, on two GPUs."""
    found = []
    lines = [*PLAIN, *(f"{line} fp16" for line in PLAIN), *(f"{line} fp64" for line in PLAIN)]
    chains = [
        (Chain(conv_transpose(problem.rank, "bias"), *after), problem)
        for problem in map(Problem.parse, lines)
        for after in AFTER
    ]
    for operator in OPERATORS.values():
        for name in operator.cases:
            case = operator.case(name)
            chains.append((operator.bound(case), case.problem))
    for chain, problem in chains:
        problem = replace(problem, device="cuda:sm90")
        try:
            lowered = lower.lowered(chain, fused(chain, problem))
        except (lower.Refused, RuntimeError, ValueError):
            continue
        core = chain.core(problem)
        found += [workload_of(lowered, core, each) for each in lowered.segments if each.convolves]
    return list(dict.fromkeys(found))


def workload_of(lowered: Lowered, core: Problem, each: Segment) -> Workload:
    windows = ((1, 1, 0),) * core.rank if each.window is None else each.window.windows
    covers = each.early is not None
    tap_table = TapTable.of(core.axes, windows, each.result.spatial, cover=covers)
    return describe(tap_table, core, each, lowered.statistics, ELEMENTS[core.dtype].itemsize)


SHAPES = passes()


def power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


@pytest.mark.parametrize("capability", [80, 86, 90])
def test_every_candidate_is_valid(capability: int) -> None:
    assert len(SHAPES) > 100
    for work in SHAPES:
        found = list(candidates(work, capability))
        assert found, work
        for config in found:
            check(work, config, capability)
        assert heuristic(work, capability) in found


def check(work: Workload, config: Tiling, capability: int) -> None:
    assert all(map(power_of_two, (*config.box, config.channels, config.depth, config.warps)))
    assert config.box[0] == 1 or config.form == "batch"
    assert all(n <= 256 for n in config.box), "what one load of a box can take"
    assert min(config.channels, config.depth, config.positions) >= 16, "what a product takes"
    assert config.depth * work.item <= 128, "a line of shared memory"
    assert config.stages >= 2
    outputs = work.outputs * (work.groups if work.depthwise else 1)
    if work.all_channels:
        assert config.channels >= outputs
    if work.depthwise:
        assert config.form == "rows"
    if work.per_sample:
        assert config.form != "batch"
    members = work.tap_table.each("members")
    assert next((n for n in members if n > 1), 1) % config.split == 0
    if not work.all_channels and not work.depthwise:
        used = config.stages * (config.channels + config.positions) * config.depth * work.item
        assert used <= SHARED[capability], (work, config)


def test_tiles_cover_every_anchor_once() -> None:
    """Anchors of small problems, tile by tile, as ``anchors.py`` places them."""
    small = [s for s in SHAPES if prod(s.tap_table.each("anchors")) * s.batch < 2000]
    assert len(small) > 30
    for work in small[::3]:
        for config in list(candidates(work, 90))[::5]:
            fast = Tiled.of(work, config, "max" if work.windowed else "")
            for tiled in (fast, fast.carefully()):
                seen = covered(tiled)
                anchors = work.batch * prod(work.tap_table.each("anchors"))
                assert len(seen) == len(set(seen)) == anchors, (work, config)


def covered(tiled: Tiled) -> list[tuple[int, ...]]:
    anchors, batch = tiled.work.tap_table.each("anchors"), tiled.work.batch
    seen = []
    for at in range(tiled.tiles):
        for p in range(tiled.tile.positions):
            n, d, h, w = place(tiled, at, p)
            if n < batch and d < anchors[0] and h < anchors[1] and w < anchors[2]:
                seen.append((n, d, h, w))
    return seen


def place(tiled: Tiled, at: int, p: int) -> tuple[int, int, int, int]:
    b0, b1, b2, b3 = tiled.tile.box
    grid = [2**31 if each == UNDIVIDED else (each.number - 3) // 2 for each in tiled.sizes.grid]
    if tiled.tile.form == "rows":
        n, at = divmod(at, grid[0])
        more, row = divmod(at * b3 + p, grid[1])
        return n + more, row // grid[2], row % grid[2] // grid[3], row % grid[3]
    if tiled.tile.form == "box":
        wide, high, deep = grid
        d, h, w = at // (wide * high) % deep, at // wide % high, at % wide
        n = at // (wide * high * deep)
        return n, d * b1 + p // (b3 * b2), h * b2 + p // b3 % b2, w * b3 + p % b3
    samples, wide, high = grid
    n, at = at % samples * b3 + p % b3, at // samples
    w, at = at % wide * b2 + p // b3 % b2, at // wide
    h, at = at % high * b1 + p // (b3 * b2) % b1, at // high
    return n, at * b0 + p // (b3 * b2 * b1), h, w


def test_width_classes_are_joined_where_they_are_a_power_of_two() -> None:
    for stride, together in ((1, 1), (2, 2), (3, 1), (4, 4), (5, 1), (8, 8), (16, 1)):
        problem = Problem.parse(f"n1 ci1 co1 i5 k{stride} s{stride}")
        tap_table = TapTable.of(problem.axes, ((1, 1, 0),), (problem.axes[0].size,), cover=False)
        assert joined(tap_table, "rows") == joined(tap_table, "box") == together
        assert joined(tap_table, "batch") == 1
