"""The CPU core: fused, native, for x86 and ARM. Plans with cuts as it decides them, run in C++.

Weights are packed once and kept while their tensor lives and does not change. Threads are torch's:
``torch.get_num_threads()`` of them, in the OpenMP runtime that torch has loaded; after a fork, one.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from transfuse.backends import legs
from transfuse.backends.base import Backend, Executable, Kernels, Run, Scatter, Verdict
from transfuse.backends.cpu import library, results
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.plan import Plan
from transfuse.problem import Problem
from transfuse.reverse.axes import AxisWindows
from transfuse.rewrite import rewritten
from transfuse.route import NoRoute, Route, route
from transfuse.sweeps import Sweep


class Cpu(Backend):
    name = "cpu"
    device = "cpu"
    differentiable = False

    @property
    def kernels(self) -> Kernels:
        return _Kernels()

    def verdict(self, chain: Chain, problem: Problem) -> Verdict:
        if problem.device != "cpu":
            return Verdict(f"tensors are on {problem.device}")
        if library.load() is None:
            return Verdict("the compiled core is not installed")
        try:
            _routed(chain, problem)
        except NoRoute as reason:
            return Verdict(str(reason))
        return Verdict()

    def route(self, chain: Chain, problem: Problem) -> Route:
        """Which stages of a chain run where; raises ``NoRoute`` where it takes none."""
        return _routed(chain, problem)

    def plan(self, chain: Chain, problem: Problem) -> Plan:
        from transfuse.backends.cpu.decided import fused  # what an import has no need of

        found = _routed(chain, problem)
        return found.plan(fused(found.core, found.inner), ELEMENTS[problem.dtype].compute.itemsize)

    def ulp(self, problem: Problem) -> float:
        return torch.finfo(ELEMENTS[problem.dtype].compute).eps

    def prepare(self, chain: Chain, problem: Problem) -> Executable:
        return legs.executable(_routed(chain, problem), _Kernels())


@lru_cache(maxsize=4096)
def _routed(chain: Chain, problem: Problem) -> Route:
    return route(chain, problem, _refuses)


def _refuses(chain: Chain, problem: Problem) -> str:
    from transfuse.backends.cpu import before, lower  # what an import has no need of

    chain.shapes(problem)  # what a stage refuses, no rewrite may hide
    chains = (rewritten(chain, finite) for finite in (True, False))
    reasons = (lower.refusal(each, each.shapes(problem)) for each in chains)
    if reason := next(filter(None, reasons), ""):
        return reason
    return before.stored(chain, problem)


class _Kernels:
    """The core and the sweeps of this backend."""

    common = 4
    turns = 1024
    inlines = False
    looks = True

    def core(self, chain: Chain, problem: Problem) -> Executable:
        from transfuse.backends.cpu.executables import Core  # what an import has no need of

        return Core(chain, problem)

    def sweep(self, sweep: Sweep, device: torch.device) -> Run:
        (run,) = self.sweeps((sweep,), device)
        return run

    def sweeps(self, sweeps: Sequence[Sweep], device: torch.device) -> list[Run]:
        """One run of them all, which asks for addresses once."""
        from transfuse.backends.cpu.sweeps import prepare  # what an import has no need of

        prepared = [prepare(each) for each in sweeps]

        def run(slots: Sequence[Tensor]) -> None:
            addresses = [tensor.data_ptr() for tensor in slots]
            for each in prepared:
                each(addresses)

        return [run] if prepared else []

    def scatter(
        self, problem: Problem, windows: Sequence[AxisWindows], most: int
    ) -> Scatter | None:
        from transfuse.backends.cpu import winners  # what an import has no need of

        return winners.prepare(problem, windows)

    def by_address(self, device: torch.device) -> bool:
        return True

    def source(self, problem: Problem) -> torch.dtype:
        return ELEMENTS[problem.dtype].compute

    def between(self, problem: Problem) -> torch.dtype:
        return ELEMENTS[problem.dtype].compute

    def empty(
        self, dims: Sequence[int], dtype: torch.dtype, last: bool, device: torch.device
    ) -> Tensor:
        return results.empty(_form(tuple(dims), dtype, last))


@lru_cache(maxsize=4096)
def _form(dims: tuple[int, ...], dtype: torch.dtype, last: bool) -> results.Form:
    return results.Form(dims, dtype, last)
