"""How many builds of Hopper's kernels serve a chain at all its sizes: counted, nothing compiled."""

import random
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.memory import memory_format
from transfuse.backends.triton import Triton, calls
from transfuse.backends.triton.engines.hopper_strip import strip_launch
from transfuse.backends.triton.engines.hopper_strip.strip_layout import StripTiling
from transfuse.backends.triton.gpu import Gpu
from transfuse.backends.triton.installed import any_row
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.plan import fused
from transfuse.problem import Problem
from transfuse.stages import (
    add,
    batch_norm,
    conv_transpose,
    group_norm,
    max_pool,
    relu,
    sigmoid,
    softmax,
)
from transfuse.stages import sum as channel_sum

MOST = 6
"""Builds of each kernel, for one chain, kernel, stride, element type and layout."""

SIZES = 300
RANGES = {1: (1, 4000), 2: (2, 130), 3: (4, 40)}
KERNELS = ("convolve_strip", "convolve_window")

PATTERNS = {
    "plain": ("ci64 co64 k3x7", ()),
    "plain, half the rows even": ("ci64 co96 k3 s2 p1 op1", ()),
    "softmax": ("ci64 co128 k4 s2 p1 op1", (softmax("channels"), add("shift"), sigmoid())),
    "a statistic of each sample": ("ci128 co64 k5 s2 p2 op1", (group_norm(4),)),
    "a statistic of the batch": ("ci64 co64 k3", (batch_norm(training=True), relu())),
    "the same of rows apart": ("ci64 co40 k3x4 s1x2 p1", (batch_norm(training=True), relu())),
    "many channels": ("ci40 co300 k3 p1", (relu(),)),
    "one axis": ("ci64 co32 k16 s2 p7", (relu(),)),
    "three axes": ("ci32 co64 k3 s2 p1 op1", (sigmoid(),)),
    "window": ("ci32 co64 k5 s2 p2", (max_pool(2), max_pool(3), channel_sum("channels"))),
    "window of two axes": ("ci64 co100 k3 s2 p1 op1", (max_pool(2),)),
}
QUICK = [
    (name, "contiguous") for name in ("plain", "softmax", "a statistic of the batch", "window")
]
RANKS = {"one axis": 1, "three axes": 3, "window": 3}


def built(chain: Chain, problem: Problem) -> tuple[set[str], set[tuple[str, str]]]:
    """The engines that serve a problem; the builds of Hopper's kernels, name and key of each.

    What is left to sweeps at some sizes is left out.
    """
    route = Triton().route(chain, problem)
    chain, problem = route.core, route.inner
    dtype = ELEMENTS[problem.dtype].dtype

    def meta(dims: tuple[int, ...], last: bool = False) -> torch.Tensor:
        return torch.empty(
            dims, dtype=dtype, device="meta", memory_format=memory_format(dims, last)
        )

    last = problem.layout == "channels_last"
    x, weight = meta(problem.input.dims, last), meta(problem.weight)
    out = meta(chain.result(problem), last)
    operands = {name: meta(dims) for name, dims in chain.dims(problem)}
    plan, gpu = fused(chain, problem), Gpu(90, 132)
    made = calls.prepare(chain, plan, x, weight, operands, out, None, gpu).launch_plan
    memory = [x, weight, out, *operands.values()]
    memory += [torch.empty(n, dtype=kind, device="meta") for _, n, kind in made.scratch]
    hopper = [each for each in made.launches if each.kernel.name in KERNELS]
    builds = {(each.kernel.name, each.build(memory, gpu.capability).key) for each in hopper}
    return {served.engine for served in made.served}, builds


@pytest.mark.skipif(not any_row(), reason="Gluon views no rows from any one on")
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        each if each in QUICK else pytest.param(*each, marks=pytest.mark.long)
        for each in product(PATTERNS, ("contiguous", "channels_last"))
        if each != ("one axis", "channels_last")
    ],
)
def test_builds(name: str, layout: str) -> None:
    counts = count(name, layout)
    assert 0 < max(counts.values()) <= MOST, counts


def count(name: str, layout: str) -> Counter[str]:
    """Builds of each kernel."""
    text, then = PATTERNS[name]
    channels, outputs, *kernel = text.split()
    rank = RANKS.get(name, 2)
    chain, draw = Chain(conv_transpose(rank, "bias"), *then), random.Random(name)
    engines: Counter[str] = Counter()
    builds: set[tuple[str, str]] = set()
    for _ in range(SIZES):
        spatial = "x".join(str(draw.randint(*RANGES[rank])) for _ in range(rank))
        batch = draw.choice((1, 2, 3, 8, 31, 128))
        line = f"n{batch} {channels} {outputs} i{spatial} {' '.join(kernel)} fp16 cuda:sm90"
        problem = replace(Problem.parse(line), layout=layout)
        served, found = built(chain, problem)
        engines.update(served)
        builds |= found
    counts = Counter(kernel for kernel, _ in builds)
    print(dict(counts), dict(engines))
    engine = "hopper_window" if name.startswith("window") else "hopper_strip"
    assert engines[engine] > SIZES // 10, engines
    return counts


@pytest.mark.skipif(not any_row(), reason="Gluon views no rows from any one on")
def test_builds_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more where consumers take turns."""
    usual, found = strip_launch.chosen, []

    def chosen(*of: Any) -> StripTiling | None:
        found.append(usual(*of))
        return found[-1]

    monkeypatch.setattr(strip_launch, "chosen", chosen)
    counts = count("a statistic of the batch", "contiguous")
    assert 0 < counts["convolve_strip"] <= MOST, counts
    assert any(each is not None and each.own for each in found)
