"""Job of ``test_builds.py``, as a script: which kernels calls of many sizes would be built for.

Launches are made ready on torch's ``meta`` device, and builds are told by their keys; nothing is
compiled.
"""

import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from child import serve, target
from torch import Tensor

from transfuse.backends.memory import memory_format
from transfuse.backends.triton import calls
from transfuse.backends.triton.epilogue.records import StoredEpilogue
from transfuse.backends.triton.gpu import Gpu
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.plan import fused
from transfuse.problem import Problem

CAPABILITY = 90
GPU = Gpu(CAPABILITY, 132, real=False)  # the portable kernels alone


def launched(chain: Chain, problem: Problem) -> Iterator[tuple[str, str]]:
    """Make the launches of a chain ready: the name of each, and the key of its build.

    A chain of several passes over what was stored has a ``finish`` for each, told by its tile ops.
    """
    last = problem.layout == "channels_last"

    def meta(dims: tuple[int, ...], dtype: torch.dtype = ELEMENTS[problem.dtype].dtype) -> Tensor:
        form = memory_format(dims, last and len(dims) == problem.rank + 2)
        return torch.empty(dims, dtype=dtype, device="meta", memory_format=form)

    x, weight = meta(problem.input.dims), meta(problem.weight)
    operands = {name: meta(dims) for name, dims in chain.dims(problem)}
    out = meta(chain.shapes(problem)[-1].dims)
    tensors = (x, weight, operands, out)
    made = calls.prepare(chain, fused(chain, problem), *tensors, gpu=GPU).launch_plan
    memory = calls.given(*tensors)
    memory += [torch.empty(1, dtype=dtype, device="meta") for _, _, dtype in made.scratch]
    for launch in made.launches:
        runs = [each.runs for each in launch.arguments if isinstance(each, StoredEpilogue)]
        ops = [op for each in runs for run in each for op in run.ops]
        name = " ".join([launch.kernel.name, *ops])
        yield name, launch.build(memory, CAPABILITY).key


def count(stages: tuple[Any, ...], problems: list[Problem]) -> dict[str, int]:
    """How many builds of each kernel it takes to serve a chain on these problems."""
    found: dict[str, set[str]] = defaultdict(set)
    for problem in problems:
        for name, key in launched(Chain(*stages), problem):
            found[name].add(key)
    return {name: len(keys) for name, keys in found.items()}


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    target(CAPABILITY)
    serve(count)
