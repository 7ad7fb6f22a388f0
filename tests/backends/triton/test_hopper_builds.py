"""How many builds of Hopper's kernels serve a chain at all its sizes: counted, nothing compiled."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from transfuse.backends.legs import memory_format  # noqa: E402
from transfuse.backends.triton import Triton, calls  # noqa: E402
from transfuse.backends.triton.gpu import Gpu  # noqa: E402
from transfuse.backends.triton.versions import ANY_ROW  # noqa: E402
from transfuse.chain import Chain  # noqa: E402
from transfuse.elements import ELEMENTS  # noqa: E402
from transfuse.problem import Problem  # noqa: E402
from transfuse.stages import (  # noqa: E402
    add,
    batch_norm,
    conv_transpose,
    group_norm,
    max_pool,
    relu,
    sigmoid,
    softmax,
)
from transfuse.stages import sum as channel_sum  # noqa: E402

MOST = 6
"""Builds of each kernel, for one chain, kernel, stride, element type and layout."""

SIZES = 300
RANGES = {1: (1, 4000), 2: (2, 130), 3: (4, 40)}
DEVICES = count(1000)
"""Triton keeps what it built by device: each test has one that no other has."""

PATTERNS = {
    "plain": ("ci64 co64 k3x7", ()),
    "plain, half the rows even": ("ci64 co96 k2 s2", ()),
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


class Driver:
    """A driver that knows its target and nothing else."""

    def __init__(self) -> None:
        self.device = next(DEVICES)

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each kernel would be compiled."""
    found: Counter[str] = Counter()

    def note(self: Any, key: Any, signature: Any, device: Any, *rest: Any) -> Any:
        found[self.__name__] += 1
        kernel = SimpleNamespace(asm={"ptx": ""})
        self.device_caches[device][0][key] = kernel
        return kernel

    monkeypatch.setattr(JITFunction, "_do_compile", note)
    driver = triton.runtime.driver
    before = driver._active
    driver.set_active(Driver())
    yield found
    driver._active = before


def compile_(chain: Chain, problem: Problem) -> set[str]:
    """Have Hopper's kernels compiled for a problem; the engines that serve it."""
    dtype = ELEMENTS[problem.dtype].dtype

    def meta(dims: tuple[int, ...], last: bool = False) -> torch.Tensor:
        return torch.empty(
            dims, dtype=dtype, device="meta", memory_format=memory_format(dims, last)
        )

    last = problem.layout == "channels_last"
    x, weight = meta(problem.input.dims, last), meta(problem.weight)
    out = meta(chain.result(problem), last)
    operands = {name: meta(dims) for name, dims in chain.dims(problem)}
    plan, gpu = Triton().plan(chain, problem), Gpu(90, 132)
    made = calls.prepare(chain, plan, x, weight, operands, out, None, gpu).launch_plan
    memory = [x, weight, out, *operands.values()]
    memory += [torch.empty(n, dtype=kind, device="meta") for _, n, kind in made.scratch]
    for launch in made.launches:
        if launch.kernel.__name__ in ("convolve_strip", "convolve_window"):
            launch.compile(memory)
    return {served.engine for served in made.served}


@pytest.mark.skipif(not ANY_ROW, reason="Gluon views no rows from any one on: see versions")
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        each if each in QUICK else pytest.param(*each, marks=pytest.mark.long)
        for each in product(PATTERNS, ("contiguous", "channels_last"))
        if each != ("one axis", "channels_last")
    ],
)
def test_builds(name: str, layout: str, builds: Counter[str]) -> None:
    text, then = PATTERNS[name]
    channels, outputs, *kernel = text.split()
    rank = RANKS.get(name, 2)
    chain, draw = Chain(conv_transpose(rank, "bias"), *then), random.Random(name)
    engines: Counter[str] = Counter()
    for _ in range(SIZES):
        spatial = "x".join(str(draw.randint(*RANGES[rank])) for _ in range(rank))
        batch = draw.choice((1, 2, 3, 8, 31, 128))
        line = f"n{batch} {channels} {outputs} i{spatial} {' '.join(kernel)} fp16 cuda:sm90"
        problem = replace(Problem.parse(line), layout=layout)
        engines.update(compile_(chain, problem))
    print(dict(builds), dict(engines))
    engine = "hopper_window" if name.startswith("window") else "hopper_strip"
    assert engines[engine] > SIZES // 10, engines
    assert sum(builds.values()) > 0
    assert all(count <= MOST for count in builds.values()), builds
