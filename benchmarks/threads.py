"""How the fused operators scale with threads on CPU, at batch 16, and torch eager beside them.

    python benchmarks/threads.py > threads.json

Rounds go through all thread counts, so that each is compared with the others of its own time.
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

import torch

from transfuse import machine
from transfuse.bench.peers.base import Work
from transfuse.bench.peers.torch_eager import as_written
from transfuse.bench.precision import PRECISIONS
from transfuse.fills import real
from transfuse.front import run
from transfuse.operators import OPERATORS, Operator

BATCH = 16
ROUNDS = 5
COLD, TIMED = 3, 3
"""Calls for each thread count of a round: new threads begin with cold caches."""


def milliseconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return (perf_counter() - start) * 1e3


def counts() -> list[int]:
    """1, 2, 4, … and all cores."""
    cores = os.cpu_count() or 1
    return sorted({2**i for i in range(cores.bit_length()) if 2**i <= cores} | {cores})


def scaling(operator: Operator) -> dict[str, Any]:
    case = operator.case("cpu")
    problem, chain = replace(case.problem, batch=BATCH), operator.bound(case)
    x, weight, operands = real(chain, problem, 0)
    eager = as_written(Work(chain, problem, PRECISIONS["fp32"], x, weight, operands))

    def ours() -> object:
        return run(chain, problem, x, weight, operands, backend="cpu")

    times: dict[int, list[float]] = {threads: [] for threads in counts()}
    ratios = []
    for _ in range(ROUNDS):
        for threads, found in times.items():
            torch.set_num_threads(threads)
            found += [milliseconds(ours) for _ in range(COLD + TIMED)][COLD:]
        ratios.append(milliseconds(lambda: eager(x)) / milliseconds(ours))
    middle = {threads: median(found) for threads, found in times.items()}
    most = max(middle)
    return {
        "problem": str(problem),
        "ms": {threads: round(value, 3) for threads, value in middle.items()},
        "efficiency": round(middle[1] / middle[most] / most, 3),
        "eager_over_ours": round(median(ratios), 2),
        "rounds": ROUNDS,
    }


def main() -> None:
    torch.set_grad_enabled(False)
    fused = [each for each in OPERATORS.values() if len(each.chain.stages) > 1]
    found = {each.slug: scaling(each) for each in fused}
    print(json.dumps({"environment": machine.environment(), "operators": found}, indent=1))


if __name__ == "__main__":
    main()
