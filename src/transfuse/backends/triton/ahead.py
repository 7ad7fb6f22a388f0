"""Kernels compiled ahead of any call, for a GPU that need not be there: what fills a store."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from transfuse.backends.memory import memory_format
from transfuse.backends.triton import Triton, calls, machine_code
from transfuse.backends.triton.build import Build, Strange
from transfuse.backends.triton.gpu import TUNED_ON, aim
from transfuse.backends.triton.store import shelves
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.errors import Declined
from transfuse.problem import Problem
from transfuse.stages import Stage


@dataclass(frozen=True)
class Wanted:
    """A call whose kernels are wanted: a chain, and a problem on a kind of GPU, cuda:sm90."""

    stages: tuple[Stage, ...]
    problem: Problem


@dataclass(frozen=True)
class Compiled:
    """What became of one: the keys of its kernels, or why there are none."""

    wanted: Wanted
    keys: tuple[str, ...] = ()
    fault: str = ""


def compiled(wanted: Iterable[Wanted], folder: Path, jobs: int) -> Iterator[Compiled]:
    """Compile the kernels of these calls into a folder, so many calls at a time, as they end.

    Each of several jobs is a process of its own: most of the compiler is Python.
    """
    work = list(wanted)
    if jobs == 1 or len(work) == 1:
        for each in work:
            yield one(each, folder)
        return
    with ProcessPoolExecutor(min(jobs, len(work)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, work, [folder] * len(work))


def one(wanted: Wanted, folder: Path) -> Compiled:
    """Compile the kernels of one call into a folder; those that it has already are left there."""
    try:
        found = {each.key: each for each in builds(wanted)}
        missing = [e for key, e in found.items() if not shelves.place(folder, key).exists()]
        from triton import knobs

        with knobs.compilation.scope():
            # Lines of sources are half of a file, and tell where these lay when it was made.
            knobs.compilation.disable_line_info = True
            made = machine_code.compiled(missing)
        for entry in made.values():
            shelves.put(entry, folder)
    except (Declined, Strange) as fault:
        return Compiled(wanted, fault=str(fault))
    return Compiled(wanted, tuple(found))


def builds(wanted: Wanted) -> list[Build]:
    """What a call would compile: with tiles that are counted, and with those that were tuned."""
    chain, problem = Chain(*wanted.stages), wanted.problem
    verdict = Triton().verdict(chain, problem)
    if not verdict.ok:
        raise Declined(verdict.reason)
    capability = int(problem.device.partition(":sm")[2])
    found: list[Build] = []
    for name in ("", *(name for name, kind in TUNED_ON.items() if kind == capability)):
        calls.forget()
        with aim(capability, name) as aimed:
            x, weight, operands = _tensors(chain, problem)
            Triton().run(chain, problem, x, weight, operands)
            found += aimed.builds
    return found


def _tensors(chain: Chain, problem: Problem) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Tensors of no memory, as a call has them; at addresses that are multiples of 16."""
    last = problem.layout == "channels_last"

    def tensor(dims: tuple[int, ...], last: bool = False) -> Tensor:
        form, kind = memory_format(dims, last), ELEMENTS[problem.dtype].dtype
        return torch.empty(dims, dtype=kind, device="meta", memory_format=form)

    operands = {name: tensor(tuple(dims)) for name, dims in chain.dims(problem)}
    return tensor(problem.input.dims, last), tensor(problem.weight, last), operands
