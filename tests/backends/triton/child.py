"""What a child process does for these tests, as a script: jobs come in, answers go out, pickled.

``child.py interpret``: TRITON_INTERPRET is set, kernels run on the CPU. ``child.py compile``:
kernels are compiled for a GPU that need not be there, and not run. Either would change Triton for
the whole process, so neither may happen in that of the tests.
"""

import os
import pickle
import re
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transfuse import plan
from transfuse.backends import triton as backend
from transfuse.backends.base import in_parts, prepared
from transfuse.backends.triton import Triton
from transfuse.backends.triton.engines.portable import tiling
from transfuse.backends.triton.engines.workload import Workload
from transfuse.backends.triton.segments import power
from transfuse.backends.triton.strides import Box
from transfuse.backends.triton.told import UNDIVIDED, told
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem

GUARD = 256
SENTINEL = -77.0
FLOPS = ("fp32", "tf32", "fp16", "bf16", "fp64")
MACHINES = {
    "store": {"flops": dict.fromkeys(FLOPS, 1e-3), "on_chip": 0},
    "resident": {"flops": dict.fromkeys(FLOPS, 1e-3), "on_chip": 2**18},
    "slow": {"flops": dict.fromkeys(FLOPS, 1e-3)},
    "recompute": {"flops": dict.fromkeys(FLOPS, 1e30), "on_chip": 0},
}


def forget() -> None:
    """Plans, verdicts and launch plans are kept; none may outlive what a job changes."""
    from transfuse.backends.triton import calls

    prepared.cache_clear()
    backend._routed.cache_clear()
    calls._ready.clear()


@contextmanager
def changed(
    machine: str, tiles: tuple[Any, ...] | None, without: tuple[str, ...] = ()
) -> Iterator[None]:
    """Another machine to plan for, other tiles than those that fit a GPU best, engines left out."""
    from transfuse.backends.triton.engines import ordered

    rates, heuristic, engines = plan.MACHINES["cuda"], tiling.heuristic, ordered.ENGINES
    plan.MACHINES["cuda"] = replace(rates, **MACHINES.get(machine, {}))
    ordered.ENGINES = tuple(each for each in engines if each.name not in without)
    if tiles is not None:
        ordered.ENGINES = engines[-1:]  # they are tiles of the portable engine
        tiling.heuristic = lambda shape, *_: tile(shape, *tiles)  # type: ignore[assignment]
    forget()
    yield
    plan.MACHINES["cuda"], tiling.heuristic, ordered.ENGINES = rates, heuristic, engines
    forget()


def tile(work: Workload, form: str, box: Box, channels: int, split: int = 1) -> tiling.Tiling:
    """The tile asked for; where a pass cannot have it, the nearest."""
    positions = box[0] * box[1] * box[2] * box[3]
    if work.all_channels:
        channels = power(work.outputs * (work.groups if work.depthwise else 1))
    if work.depthwise:
        form, box = "rows", (1, 1, 1, positions)
    elif form == "batch" and work.per_sample:
        form, box = "box", (1, *box[:3])
    split = max(n for n in tiling._splits(work) if n <= split)
    return tiling.Tiling(form, box, channels, max(4, 16 // work.item), 4, 2, split)


@contextmanager
def guarded() -> Iterator[None]:
    """Scratch memory is NaN before it is written, with gaps that nothing may write to."""
    from transfuse.backends.triton import calls
    from transfuse.backends.triton.draft import Draft

    empty, place, memories = torch.empty, Draft.memory, []

    def apart(self: Draft, *size: Any) -> int:
        number = place(self, *size)
        self.bytes += GUARD
        return number

    def poisoned(*size: Any, **options: Any) -> Tensor:
        memory = empty(*size, **options)
        if memory.dtype == torch.uint8:
            memories.append(memory.fill_(255))
        return memory

    torch.empty, Draft.memory = poisoned, apart  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.empty, Draft.memory = empty, place  # type: ignore[method-assign]
    for ready in calls._ready.values():  # sweeps around it have scratch memory of their own
        memory = next(each for each in memories if each.numel() == ready.launch_plan.bytes)
        for at, size, dtype in ready.launch_plan.scratch:
            memory[at : at + size * dtype.itemsize] = 255
        assert (memory == 255).all(), "written beside scratch memory"


def interpret(
    stages: tuple[Any, ...],
    problem: Problem,
    x: Tensor,
    weight: Tensor,
    operands: dict[str, Tensor],
    strides: tuple[int, ...] | None = None,
    machine: str = "usual",
    tiles: tuple[Any, ...] | None = None,
    times: int = 1,
    written: torch.dtype | None = None,
    parts: bool = False,
    without: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The results of so many calls, and what was launched; some engines may be left out.

    Results lie at ``strides`` in memory that was NaN before, between guards; of the input's type or
    as ``written``. ``parts``: one more call in parts, and what the passes of the plan do.
    """
    from transfuse.backends.triton import calls

    chain, problem = Chain(*stages), replace(problem, device="cuda:sm90")
    shape = chain.result(problem)
    strides = strides or torch.empty(shape, device="meta").stride()
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if x.numel() else 0
    results, launched = [], []
    with changed(machine, tiles, without):
        verdict = Triton().verdict(chain, problem)
        if not verdict.ok:
            return {"refusal": verdict.reason}
        for _ in range(times):
            memory = torch.full((span + 2 * GUARD,), SENTINEL, dtype=written or x.dtype)
            out = memory.as_strided(shape, strides, GUARD).fill_(torch.nan)
            untouched = memory.isnan().logical_not()
            with guarded():
                given = Triton().run(chain, problem, x, weight, operands, out)
            assert given is out
            assert (memory[untouched] == SENTINEL).all(), "written beside the output"
            results.append(out)
        more = {}
        if parts:
            out = torch.full_like(results[0], torch.nan)
            run = prepared(Triton(), chain, problem)
            more = {
                "parts": [
                    (part.at, part.kernel) for part in in_parts(run, x, weight, operands, out)
                ],
                "passes": [each.does for each in Triton().plan(chain, problem).passes],
            }
            results.append(out)
        for ready in calls._ready.values():
            launched = [described(launch) for launch in ready.launch_plan.launches]
    return {"results": results, "launches": launched, "operands": operands, **more}


def described(launch: Any) -> dict[str, Any]:
    name = launch.kernel.name
    found: dict[str, Any] = {"kernel": name, "programs": launch.programs}
    if name.startswith("convolve"):
        given = {type(each).__name__: each for each in launch.arguments}
        tile, sizes = given["Tile"], given["TileSizes"]
        held = 1 if given["Epilogue"].only_gathers else tile.joined
        keys = ("form", "box", "lone", "joined", "depthwise")
        found |= {key: getattr(tile, key) for key in keys}
        found["cross"] = tile.form == "rows" and sizes.grid[1] != UNDIVIDED
        found["even"] = given["Destination"].even == told(1)
        found["sums"] = tile.channels * tile.positions * held
        found["split"] = (sizes.split.number - 3) // 2
    return found


def compile_(
    stages: tuple[Any, ...],
    problem: Problem,
    capability: int,
    tiles: tuple[Any, ...] | None = None,
    verbose: bool = True,
    tuned_on: str = "",
) -> list[dict[str, Any]]:
    """What each launch of a chain was compiled to; tensors are on torch's ``meta`` device.

    Portable kernels alone: those for Hopper have tests of their own. With the tiles that the GPU
    ``tuned_on`` has in the files.
    """
    from transfuse.backends.triton import calls, tuned
    from transfuse.backends.triton.gpu import MULTIPROCESSORS, Gpu

    chain, problem = Chain(*stages), replace(problem, device=f"cuda:sm{capability}")
    target(capability)
    gpu = Gpu(capability, MULTIPROCESSORS[capability], real=False)
    calls._gpu = lambda device: gpu  # type: ignore[assignment]
    tuned.gpu = lambda device: tuned_on  # type: ignore[assignment]

    def meta(*dims: int) -> Tensor:
        return torch.empty(dims, dtype=ELEMENTS[problem.dtype].dtype, device="meta")

    operands = {name: meta(*dims) for name, dims in chain.dims(problem)}
    with changed("usual", tiles):
        verdict = Triton().verdict(chain, problem)
        assert verdict.ok, verdict.reason
        out = meta(*chain.shapes(problem)[-1].dims)
        x, weight = meta(*problem.input.dims), meta(*problem.weight)
        Triton().run(chain, problem, x, weight, operands, out)
        (ready,) = calls._ready.values()
    return [
        described(launch) | facts(launch.built.compiled, capability, verbose)
        for launch in ready.launch_plan.launches
    ]


def facts(kernel: Any, capability: int, verbose: bool) -> dict[str, Any]:
    ptx, ttgir = kernel.asm["ptx"], kernel.asm["ttgir"]
    found = {
        "shared": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
        "wgmma": ptx.count("wgmma.mma_async"),
        "mma": ptx.count("mma.sync"),
        "tma": ptx.count("cp.async.bulk.tensor"),
        "cp_async": ptx.count("cp.async.cg") + ptx.count("cp.async.ca"),
        "local_loads": ttgir.count("local_load"),
        "left_in_registers": len(re.findall(r"warp_group_dot .*\} : tensor<", ttgir)),
        "stores": re.findall(r"st\.global(?:\.\w+)*?(?:\.(v\d))?\.b(\d+)", ptx),
    }
    if verbose:
        found |= resources(ptx, capability)
    return found


def resources(ptx: str, capability: int) -> dict[str, int]:
    """Registers and spilled bytes, as ptxas tells them."""
    from triton.backends.nvidia.compiler import get_ptxas

    ptxas = get_ptxas(capability).path
    arch = "sm_90a" if capability == 90 else f"sm_{capability}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        told = subprocess.run(
            [ptxas, "-v", f"--gpu-name={arch}", str(path), "-o", os.devnull],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", told)
    registers = re.findall(r"Used (\d+) registers", told)
    return {"registers": max(map(int, registers)), "spilled": sum(map(int, spilled))}


def target(capability: int) -> None:
    """Compile for a GPU that is not there; nothing is launched on torch's ``meta`` device."""
    from transfuse.backends.triton import sequence

    sequence.capability = lambda device: capability  # type: ignore[assignment]


def hasten() -> None:
    """Triton's interpreter changes its language for each function called; once a launch will do."""
    from triton.runtime import interpreter

    patch, launch, patched = interpreter._patch_lang, interpreter.GridExecutor.__call__, {}

    def once(function: Any) -> Any:
        key = id(function.__globals__)
        if key not in patched:
            patched[key] = patch(function)
        return patched[key]

    def launched(self: Any, *args: Any, **options: Any) -> Any:
        patched.clear()
        return launch(self, *args, **options)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = once, launched


def serve(work: Callable[..., Any]) -> None:
    """Until no job comes any more; what a job prints goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(answers, "wb") as pipe:
        while sys.stdin.buffer.peek(1):
            try:
                answer = True, work(**pickle.load(sys.stdin.buffer))
            except Exception:
                answer = False, traceback.format_exc()
            pickle.dump(answer, pipe)
            pipe.flush()


if __name__ == "__main__":
    warnings.simplefilter("error")
    # Triton's interpreter reads arrays of one element as numbers.
    warnings.filterwarnings("ignore", "Conversion of an array with ndim > 0 to a scalar")
    np.seterr(all="ignore")  # what a GPU does
    torch.set_num_threads(1)
    if sys.argv[1] == "interpret":
        hasten()
    serve({"interpret": interpret, "compile": compile_}[sys.argv[1]])
