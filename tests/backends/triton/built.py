"""Job of ``test_builds.py``, as a script: which kernels calls of many sizes would be built for.

Launches are made ready on torch's ``meta`` device, and Triton looks at their arguments as it does
before it compiles; nothing is compiled.
"""

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from child import serve, target
from torch import Tensor
from triton.runtime.jit import JITFunction

from transfuse.backends.legs import memory_format
from transfuse.backends.triton import calls
from transfuse.backends.triton.epilogue.records import StoredEpilogue
from transfuse.backends.triton.gpu import Gpu
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.plan import fused
from transfuse.problem import Problem

CAPABILITY = 90
GPU = Gpu(CAPABILITY, 132, real=False)  # the portable kernels alone
current = [""]
"""The kernel that is looked at."""


def launched(chain: Chain, problem: Problem) -> None:
    """Make the launches of a chain ready, and let Triton look at each.

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
        ops = [each.ops.ops for each in launch.arguments if isinstance(each, StoredEpilogue)]
        current[0] = " ".join([launch.kernel.__name__, *(op for each in ops for op in each)])
        launch.compile(memory)


def count(stages: tuple[Any, ...], problems: list[Problem]) -> dict[str, int]:
    """How many builds of each kernel it takes to serve a chain on these problems."""
    found: dict[str, set[Any]] = defaultdict(set)

    def note(self: Any, key: Any, signature: Any, device: Any, *rest: Any) -> Any:
        found[current[0]].add(key)
        kernel = SimpleNamespace(asm={"ptx": ""})
        self.device_caches[device][0][key] = kernel
        kept.append((self.device_caches[device][0], key))
        return kernel

    kept: list[tuple[dict[Any, Any], Any]] = []
    was, JITFunction._do_compile = JITFunction._do_compile, note
    try:
        for problem in problems:
            launched(Chain(*stages), problem)
    finally:
        JITFunction._do_compile = was
        for cache, key in kept:  # another chain may share a kernel
            del cache[key]
    return {name: len(keys) for name, keys in found.items()}


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    target(CAPABILITY)
    serve(count)
