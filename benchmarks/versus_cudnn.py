"""Our kernels beside cuDNN's on drawn layers, and the cost model that chooses between them.

    python benchmarks/versus_cudnn.py torch layers.jsonl --seconds 600
    python benchmarks/versus_cudnn.py ours layers.jsonl --seconds 600
    python benchmarks/versus_cudnn.py fit layers.jsonl
    python benchmarks/versus_cudnn.py show layers.jsonl

The first two want a GPU. ``torch`` times layers with ``cudnn.benchmark`` on, in fp16 and tf32, in
both layouts: as they are, and in the other layout with what it takes to relay their tensors. It
goes on where the file ends. ``ours`` times our kernels on the layers of a file, again after each
change of them. ``fit`` writes the model's numbers into the package, ``show`` says how the choice
does. One seed in five is left out of the fit, and shown apart.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from os import cpu_count
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transfuse import front
from transfuse.backends.triton import versus_cudnn as model
from transfuse.bench.clock import CudaClock
from transfuse.bench.peers.base import Work
from transfuse.bench.peers.torch_eager import TorchEager, TorchOtherLayout
from transfuse.bench.precision import PRECISIONS, Precision
from transfuse.bench.subjects import plain_chain
from transfuse.drawn_layers import drawn_layer
from transfuse.fills import real
from transfuse.machine import environment, place
from transfuse.problem import Problem

CLASSES = ("fp16", "tf32")
FIRST = 1000
"""The first seed: those of ``transfuse bench --set drawn-layers`` come before it."""
SAMPLES = 9
SLOW = 2e-3
"""Seconds after which a call is timed only three times."""
STEPS = 8
"""Of a fit, each with other weights."""
NEAR = 0.1
"""Errors of logarithms below this are all alike."""
TRUST = 0.05
"""How much the costs below weigh against errors: they count where layers tell nothing."""
CALL, MEGABYTE = 9.0, 0.4
GIGAFLOP = {"fp16": 2.0, "tf32": 4.0}
FINE = 0.95
LEFT_OUT = 5
"""One seed in so many is left out of the fit."""
WRONG = 5e-3
"""The relative error from which on a result is no rounding of the other."""


@dataclass(frozen=True)
class Layer:
    """A layer in one layout and precision class: seconds as torch runs it, and as we do."""

    seed: int
    problem: str
    bias: bool
    torch: float
    other: float | None
    """In the other layout, where there is one."""
    ours: float | None = None

    @property
    def precision(self) -> Precision:
        return PRECISIONS[Problem.parse(self.problem).arithmetic]

    @property
    def work(self) -> Work:
        problem = Problem.parse(self.problem)
        return _work(problem, self.bias, self.precision)


def _work(problem: Problem, bias: bool, precision: Precision) -> Work:
    chain = plain_chain(problem.rank, bias)
    return Work(chain, problem, precision, *real(chain, problem, 0))


def read(path: Path) -> tuple[dict[str, Any], list[Layer]]:
    """What a file was measured on, and its layers."""
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    return json.loads(head), [Layer(**json.loads(line)) for line in lines]


def write(path: Path, head: dict[str, Any], layers: list[Layer]) -> None:
    lines = [json.dumps(head), *(json.dumps(asdict(layer)) for layer in layers)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def time_torch(path: Path, seconds: float) -> None:
    """Add the next seeds to a file until the seconds are up."""
    begun, device = perf_counter(), place("cuda")
    head, layers = read(path) if path.exists() else ({"torch": environment()}, [])
    clock = CudaClock()
    for seed in count(max([FIRST - 1, *(each.seed for each in layers)]) + 1):
        drawn, bias = drawn_layer(seed)
        for name in CLASSES:
            precision = PRECISIONS[name]
            for layout in ("contiguous", "channels_last")[: drawn.rank]:
                if perf_counter() - begun > seconds:
                    return
                problem = replace(
                    drawn, layout=layout, device=device, dtype=precision.dtype,
                    precision="tf32" if precision.tf32 else "ieee",
                )  # fmt: skip
                work = _work(problem, bias, precision)
                with torch.no_grad(), precision.applied():
                    run, other = TorchEager().build(work).run, None
                    own = _seconds(clock, partial(run, work.x))
                    if problem.rank > 1:
                        relaid = TorchOtherLayout().build(work).run
                        other = _seconds(clock, partial(relaid, work.x))
                layers.append(Layer(seed, str(problem), bias, own, other))
        write(path, head, layers)


def time_ours(path: Path, seconds: float) -> None:
    """Time our kernels on every layer of a file, while other processes compile ahead.

    When the seconds are up, layers that are left keep the time that they had.
    """
    begun = perf_counter()
    head, layers = read(path)
    clock, head = CudaClock(), {**head, "ours": environment()}
    with compiling(path, len(layers)) as compiled:
        for at, layer in enumerate(layers):
            compiled(at)
            if perf_counter() - begun > seconds:
                break
            try:
                layers[at] = replace(layer, ours=_timed(layer.work, clock))
            except RuntimeError as error:
                print(f"{layer.problem}: {error}", file=sys.stderr)
    write(path, head, layers)


@contextmanager
def compiling(path: Path, layers: int) -> Iterator[Callable[[int], None]]:
    """Processes that run every layer of a file once, so that its kernels are in Triton's cache.

    What is given waits until they have come to a layer.
    """
    parts = max(1, (cpu_count() or 2) - 2)
    with TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "compile", str(path), "--marks", folder]
        helpers = [
            subprocess.Popen([*command, "--part", f"{part}/{parts}"]) for part in range(parts)
        ]

        def wait(at: int) -> None:
            while not (Path(folder) / str(at)).exists() and helpers[at % parts].poll() is None:
                sleep(0.02)

        try:
            yield wait
        finally:
            for helper in helpers:
                helper.kill()


def compile_ahead(path: Path, marks: Path, part: int, parts: int) -> None:
    for at, layer in enumerate(read(path)[1]):
        if at % parts == part:
            with suppress(RuntimeError):  # the process that times will raise it again
                _ours(layer.work)()
                torch.cuda.synchronize()
            (marks / str(at)).touch()


def _ours(work: Work) -> Callable[[], Tensor]:
    tensors = (work.x, work.weight, work.operands)
    return lambda: front.run(work.chain, work.problem, *tensors, backend="triton")


def _timed(work: Work, clock: CudaClock) -> float:
    """Seconds of our kernels; a time counts only for a right result."""
    run = _ours(work)
    with torch.no_grad(), work.precision.applied():
        torch.backends.cudnn.benchmark = False  # any of its algorithms will do
        expected = TorchEager().build(work).run(work.x).float()
    error = ((run().float() - expected).norm() / expected.norm().clamp_min(1e-20)).item()
    if not error < WRONG:
        raise RuntimeError(f"our result differs from torch's by {error:.1e}")
    return _seconds(clock, run)


def _seconds(clock: CudaClock, call: Callable[[], object]) -> float:
    for _ in range(2):
        call()
    first = clock.time(call)[0]
    more = 2 if first > SLOW else SAMPLES - 1
    return round(median([first, *(clock.time(call)[0] for _ in range(more))]), 8)


def apart(layers: list[Layer]) -> tuple[list[Layer], list[Layer]]:
    """The layers to fit to, and those to judge by."""
    kept = [each for each in layers if each.seed % LEFT_OUT]
    return kept, [each for each in layers if each.seed % LEFT_OUT == 0]


def fit(layers: list[Layer]) -> dict[str, dict[str, dict[str, float]]]:
    """The costs of each kind of layer, ours and cuDNN's."""
    kinds: dict[str, list[Layer]] = {}
    for layer in layers:
        problem = Problem.parse(layer.problem)
        if model.in_cudnn(problem):
            kinds.setdefault(model.kind(problem), []).append(layer)
    found = {}
    for kind, group in sorted(kinds.items()):
        timed = [each for each in group if each.ours is not None]
        found[kind] = {
            "ours": _costs(timed, [_given(each.ours) for each in timed], kind),
            "cudnn": _costs(group, [each.torch for each in group], kind),
        }
    return found


def _given(seconds: float | None) -> float:
    assert seconds is not None
    return seconds


def _costs(layers: list[Layer], seconds: list[float], kind: str) -> dict[str, float]:
    """Costs, none below zero, whose sums are as near to the times as can be, by their ratio.

    A few layers for which no sum is near do not bend the others: squares of errors are divided by
    the errors as they were before. So are they by times as they were expected before, which makes
    twice too much as bad as half too little.
    """
    found = [model.amounts(Problem.parse(each.problem), each.bias) for each in layers]
    names = sorted({name for each in found for name in each})
    amounts = np.array([[each.get(name, 0.0) for name in names] for each in found])
    times = 1e6 * np.array(seconds)
    usual = {"calls": CALL, "products": GIGAFLOP[kind.split()[0]]}
    usual |= dict.fromkeys(("input", "output", "weights"), MEGABYTE)
    known = np.array([usual.get(name, 0.0) for name in names])
    weights, expected, costs = np.ones(len(times)), times, known
    for _ in range(STEPS):
        scale = weights / np.sqrt(times * expected)
        costs = _nearest(amounts * scale[:, None], times * scale, known)
        expected = np.maximum(amounts @ costs, 1.0)
        weights = 1 / np.sqrt(np.maximum(np.abs(np.log(expected / times)), NEAR))
    return {
        name: round(float(cost), 5) for name, cost in zip(names, costs, strict=True) if cost > 1e-5
    }


def _nearest(matrix: Any, target: Any, known: Any) -> Any:
    """The vector, none of it below zero, whose product with a matrix is nearest to the target.

    What the matrix hardly tells stays near what is known.
    """
    size = np.maximum(np.linalg.norm(matrix, axis=0), 1e-30)
    scaled, begun = matrix / size, known * size
    square = scaled.T @ scaled + TRUST * np.eye(len(size))
    aim, x = scaled.T @ target + TRUST * begun, begun.copy()
    for _ in range(300):
        for at in range(len(x)):
            x[at] = max(0.0, x[at] + (aim[at] - square[at] @ x) / square[at, at])
    return x / size


def show(layers: list[Layer], costs: dict[str, dict[str, dict[str, float]]]) -> None:
    """How the choice does, beside the best of torch in either layout."""
    ratios = []
    for layer in (each for each in layers if each.ours is not None):
        problem = Problem.parse(layer.problem)
        found, mine = model.amounts(problem, layer.bias), costs[model.kind(problem)]
        theirs, ours = (model.microseconds(mine[who], found) for who in ("cudnn", "ours"))
        yields = bool(model.slower(problem, layer.bias))
        chosen = layer.torch if yields else _given(layer.ours)
        best = min(layer.torch, layer.other or layer.torch)
        ratios.append((best / chosen, yields, ours, theirs, layer))
    ratios.sort(key=lambda each: each[0])
    values = [each[0] for each in ratios]
    worst = [each for each in ratios if each[0] < FINE]
    for ratio, yields, ours, theirs, layer in worst:
        print(
            f"{ratio:.2f} {'cuDNN' if yields else 'ours'}: ours {1e6 * _given(layer.ours):.1f} us "
            f"(expected {ours:.1f}), torch {1e6 * layer.torch:.1f} ({theirs:.1f})  "
            f"{layer.problem}{' + bias' if layer.bias else ''}"
        )
    print(
        f"{len(values)} layers, geomean {geometric_mean(values):.2f}, "
        f"{100 * (1 - len(worst) / len(values)):.1f} % at {FINE} or more, worst {values[0]:.2f}, "
        f"cuDNN's {sum(each[1] for each in ratios)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("torch", "ours", "fit", "show", "compile"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--marks", type=Path)
    parser.add_argument("--part", default="0/1")
    given = parser.parse_args()
    if given.command == "torch":
        time_torch(given.file, given.seconds)
    elif given.command == "ours":
        time_ours(given.file, given.seconds)
    elif given.command == "fit":
        head, layers = read(given.file)
        fitted, _ = apart(layers)
        costs = fit(fitted)
        measured = {"layers": len(fitted), **head}
        text = json.dumps({"measured": measured, "costs": costs}, indent=1)
        model.FILE.write_text(text + "\n", encoding="utf-8")
    elif given.command == "show":
        costs = json.loads(model.FILE.read_text(encoding="utf-8"))["costs"]
        for name, layers in zip(("fitted", "left out"), apart(read(given.file)[1]), strict=True):
            print(name)
            show(layers, costs)
    else:
        compile_ahead(given.file, given.marks, *map(int, given.part.split("/")))


if __name__ == "__main__":
    main()
