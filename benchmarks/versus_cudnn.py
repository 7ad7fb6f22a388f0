"""Our kernels beside cuDNN on drawn layers, and the cost model that chooses between them.

    python benchmarks/versus_cudnn.py measure layers.jsonl --first 1000 --seconds 1200
    python benchmarks/versus_cudnn.py fit layers.jsonl
    python benchmarks/versus_cudnn.py show others.jsonl

``measure`` wants a GPU: layers from a seed on, in fp16 and tf32, in both layouts, each timed as our
kernels run it, as torch does (``cudnn.benchmark`` on), and as torch does in the other layout, with
what it takes to relay the tensors. ``fit`` writes the model's numbers into the package; ``show``
says how the choice does on a file. Fit on some seeds, show on others.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from os import cpu_count
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import torch
from torch import Tensor

from transfuse import front
from transfuse.bench.clock import CudaClock
from transfuse.bench.peers.base import Work
from transfuse.bench.peers.torch_eager import TorchEager, TorchOtherLayout
from transfuse.bench.precision import PRECISIONS
from transfuse.bench.subjects import plain_chain
from transfuse.cases import Case
from transfuse.drawn_layers import drawn_layer
from transfuse.fills import real
from transfuse.machine import environment, place

CLASSES = ("fp16", "tf32")
SAMPLES = 9
SLOW = 2e-3
"""Seconds after which a call is timed only three times."""
WRONG = 5e-3
"""The relative error from which on a result is no rounding of the other."""


@dataclass(frozen=True)
class Layer:
    """A layer in one layout and precision class: seconds of our kernels and of torch's."""

    seed: int
    problem: str
    bias: bool
    ours: float
    torch: float
    other: float | None
    """In the other layout, where there is one."""

    @property
    def best(self) -> float:
        return min(self.torch, self.other or self.torch)


def drawn(first: int) -> Iterator[tuple[int, str]]:
    """Every seed from the first on, with each precision class."""
    return ((seed, name) for seed in count(first) for name in CLASSES)


def works(seed: int, name: str, device: str) -> Iterator[Work]:
    """A layer in each layout that torch has for it."""
    problem, bias = drawn_layer(seed)
    chain = plain_chain(problem.rank, bias)
    for layout in ("contiguous", "channels_last")[: problem.rank]:
        laid = Case(replace(problem, layout=layout)).on(name, device).problem
        yield Work(chain, laid, PRECISIONS[name], *real(chain, laid, seed))


def ours(work: Work) -> Callable[[], Tensor]:
    tensors = (work.x, work.weight, work.operands)
    return lambda: front.run(work.chain, work.problem, *tensors, backend="triton")


def measure(path: Path, first: int, seconds: float) -> None:
    """Time layers until the seconds are up, while other processes compile for those to come."""
    begun, device = perf_counter(), place("cuda")
    workers = max(1, (cpu_count() or 2) - 2)
    with TemporaryDirectory() as folder, path.open("w", encoding="utf-8") as file:
        command = [sys.executable, __file__, "compile", folder, "--first", str(first)]
        helpers = [
            subprocess.Popen([*command, "--part", str(part), "--parts", str(workers)])
            for part in range(workers)
        ]
        try:
            clock = CudaClock()
            print(json.dumps({"environment": environment()}), file=file, flush=True)
            for seed, name in drawn(first):
                compiled = Path(folder) / f"{seed} {name}"
                while not compiled.exists() and perf_counter() - begun < seconds:
                    sleep(0.02)
                if perf_counter() - begun > seconds:
                    return
                for work in works(seed, name, device):
                    try:
                        layer = _timed(seed, work, clock)
                    except RuntimeError as error:
                        print(f"{work.problem}: {error}", file=sys.stderr)
                    else:
                        print(json.dumps(asdict(layer)), file=file, flush=True)
        finally:
            for helper in helpers:
                helper.kill()


def compile_ahead(folder: Path, first: int, part: int, parts: int) -> None:
    """Run one layer in so many once: Triton's cache on disk has its kernels from then on."""
    for seed, name in islice(drawn(first), part, None, parts):
        with suppress(RuntimeError):  # who measures will say so
            for work in works(seed, name, place("cuda")):
                ours(work)()
            torch.cuda.synchronize()
        (folder / f"{seed} {name}").touch()


def _timed(seed: int, work: Work, clock: CudaClock) -> Layer:
    with torch.no_grad(), work.precision.applied():
        run, there = ours(work), TorchEager().build(work).run
        here, expected = run().float(), there(work.x).float()
        error = ((here - expected).norm() / expected.norm().clamp_min(1e-20)).item()
        if not error < WRONG:
            raise RuntimeError(f"{work.problem}: our result differs from torch's by {error:.1e}")
        other = None
        if work.problem.rank > 1:
            relaid = TorchOtherLayout().build(work).run
            other = _seconds(clock, lambda: relaid(work.x))
        return Layer(
            seed, str(work.problem), "bias" in work.operands,
            _seconds(clock, run), _seconds(clock, lambda: there(work.x)), other,
        )  # fmt: skip


def _seconds(clock: CudaClock, call: Callable[[], object]) -> float:
    for _ in range(2):
        call()
    first = clock.time(call)[0]
    return median([first, *(clock.time(call)[0] for _ in range(2 if first > SLOW else SAMPLES - 1))])
