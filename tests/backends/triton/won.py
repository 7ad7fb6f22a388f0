"""Jobs of ``test_winners.py``, as a script: ``interpret`` finds gradients behind max windows in
Triton's interpreter, ``compile`` compiles the kernels for a GPU that is not there, ``count`` only
looks what would be compiled.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from child import facts, hasten, serve
from torch import Tensor

from transfuse.backends.backward import Backward
from transfuse.backends.memory import memory_format
from transfuse.backends.triton import Triton
from transfuse.backends.triton.build import Build
from transfuse.backends.triton.winners import launches, pattern
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.plan import machine
from transfuse.problem import Problem
from transfuse.reverse import winners

USUAL = dict(launches.TILINGS)
FEW = {kernel: launches.WinnersTiling(16, 4, 1, 6) for kernel in USUAL}


def interpret(
    stages: tuple[Any, ...],
    problem: Problem,
    tensors: tuple[Tensor, Tensor, dict[str, Tensor]],
    grad: Tensor,
    wanted: frozenset[str],
    line: int = 8,
    dense: bool = False,
) -> list[dict[str, Tensor]]:
    """The gradients, twice, or once and then as ``dense`` ones; scratch memory is NaN at first.

    Programs are few, take few winners at once, and lines of windows in several blocks.
    """
    launches.TILINGS, launches.LINE, winners.SLOWER = FEW, line, 1e-6
    run, empty = Backward(Triton(), Chain(*stages), problem, wanted), torch.empty
    assert run.winners is not None
    assert not run.winners.looks

    def poisoned(*size: Any, **options: Any) -> Tensor:
        memory = empty(*size, **options)
        return memory.fill_(255 if memory.dtype == torch.uint8 else torch.nan)

    torch.empty = poisoned
    try:
        runs = (run, run.dense if dense else run)
        return [each(grad, *tensors) for each in runs if each]
    finally:
        torch.empty = empty


def built(stages: tuple[Any, ...], problem: Problem, capability: int = 90) -> Iterator[Build]:
    launches.TILINGS = USUAL
    found = winners.behind(problem, stages, machine("cuda"), 4, False)
    assert found is not None
    axes = pattern.pattern_axes(problem, found.windows)
    given = launches.Facts(problem, found.windows, axes, found.count)
    element = ELEMENTS[problem.dtype]
    pooled = (*problem.output().dims[:2], *(axis.outputs for axis in found.windows))

    def meta(dims: tuple[int, ...], dtype: torch.dtype = element.dtype, last: bool = False) -> Any:
        form = memory_format(dims, last)
        return torch.empty(dims, dtype=dtype, device="meta", memory_format=form)

    g = meta(pooled, element.compute, True)
    x, weight, bias = meta(problem.input.dims), meta(problem.weight), meta((problem.out_channels,))
    made = launches.Made(given, g, x, weight, bias, x, True)
    ints, sums = meta((1,), torch.int32), meta((1,), element.compute)
    yield from made.before.build([x, weight, g, x, weight, ints, ints], capability)
    memory = [x, weight, bias, g, ints, ints, x, sums]
    memory += [meta((1,), dtype) for _, _, dtype in made.after.scratch]
    yield from made.after.build(memory, capability)


def compile_(stages: tuple[Any, ...], problem: Problem, capability: int) -> list[dict[str, Any]]:
    """What the launches are compiled to."""
    return [
        {"kernel": each.kernel.name} | facts(each.compiled, capability, verbose=True)
        for each in built(stages, problem, capability)
    ]


def count(stages: tuple[Any, ...], problems: list[Problem]) -> dict[str, int]:
    """How many builds of each kernel it takes to serve these problems."""
    found = {each.key: each.kernel.name for problem in problems for each in built(stages, problem)}
    return Counter(found.values())


JOBS: dict[str, Callable[..., Any]] = {
    "interpret": interpret,
    "compile": compile_,
    "count": count,
}

if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Conversion of an array with ndim > 0 to a scalar")
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    if sys.argv[1] == "interpret":
        hasten()
    serve(JOBS[sys.argv[1]])
