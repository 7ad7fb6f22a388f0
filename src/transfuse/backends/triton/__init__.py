"""The GPU backend: Triton kernels for any NVIDIA GPU from sm_80 on.

Triton is imported when a kernel is first compiled, not before: with stored ones, never.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib.util import find_spec
from math import prod
from typing import Any

import torch
from torch import Tensor

from transfuse import settings
from transfuse.backends import legs
from transfuse.backends.base import Backend, Executable, Kernels, Part, Run, Scatter, Verdict
from transfuse.backends.memory import memory_format
from transfuse.backends.triton import lower, versus_cudnn
from transfuse.backends.triton.engines.served import Explained
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.errors import Declined
from transfuse.plan import Pass, Plan, fused
from transfuse.problem import Problem
from transfuse.reverse.axes import AxisWindows
from transfuse.route import NoRoute, Route, route
from transfuse.sweeps import Sweep


class Triton(Backend):
    name = "triton"
    device = "cuda"
    differentiable = False

    @property
    def kernels(self) -> Kernels:
        return _Kernels()

    def verdict(self, chain: Chain, problem: Problem) -> Verdict:
        here = problem.device == "cpu" and settings.interpreted()
        if not (problem.device.startswith("cuda") or here):
            return Verdict(f"tensors are on {problem.device}")
        if find_spec("triton") is None:
            return Verdict("Triton is not installed")
        try:
            found = _routed(chain, problem)
        except NoRoute as reason:
            return Verdict(str(reason))
        declined = _declined.get((found.core, found.inner))
        return declined or Verdict(yields=_yields(chain, problem))

    def route(self, chain: Chain, problem: Problem) -> Route:
        """Which stages of a chain run where; raises ``NoRoute`` where it takes none."""
        return _routed(chain, problem)

    def plan(self, chain: Chain, problem: Problem) -> Plan:
        found = _routed(chain, problem)
        core = fused(found.core, found.inner)
        core = _copying(core, _calls().copied(found.core, core))
        return found.plan(core, ELEMENTS[problem.dtype].compute.itemsize)

    def repack(self, chain: Chain, problem: Problem) -> Pass | None:
        """The copy of a contiguous input that no engine for the chain does without, if any.

        Tensor cores take channels side by side, or rows that begin at multiples of 16 bytes.
        """
        verdict = self.verdict(chain, problem)
        if problem.layout != "contiguous" or not verdict.ok or verdict.yields:
            return None
        found = _routed(chain, problem)
        core = fused(found.core, found.inner)
        if found.head or core.chain.prologue or "input" not in _calls().copied(found.core, core):
            return None
        many = problem.input.numel * ELEMENTS[problem.dtype].itemsize
        return Pass("copy input in the order of the tiles", 0, many, many)

    def tiles(self, chain: Chain, problem: Problem) -> list[Explained]:
        """What serves each convolution of a chain."""
        found = _routed(chain, problem)
        rows: list[Explained] = _calls().explained(found.core, fused(found.core, found.inner))
        return rows

    def ulp(self, problem: Problem) -> float:
        if problem.arithmetic == "tf32":
            return 2.0**-10
        return torch.finfo(ELEMENTS[problem.dtype].dtype).eps

    def prepare(self, chain: Chain, problem: Problem) -> Executable:
        return legs.executable(_routed(chain, problem), _Kernels())


@lru_cache(maxsize=4096)
def _routed(chain: Chain, problem: Problem) -> Route:
    return route(chain, problem, _refuses)


def _refuses(chain: Chain, problem: Problem) -> str:
    try:
        lower.lowered(chain, fused(chain, problem))
    except lower.Refused as reason:
        return str(reason)
    return _apart(chain, problem)


def _apart(chain: Chain, problem: Problem) -> str:
    if len(chain.epilogue) == 0:
        return ""
    from transfuse.backends.triton import apart

    return apart.why(chain, problem)


class _Kernels:
    """The convolution's kernels and the sweeps of this backend."""

    common = 16
    turns = 0
    inlines = True
    looks = False

    def core(self, chain: Chain, problem: Problem) -> Executable:
        return _Core(chain, problem)

    def sweep(self, sweep: Sweep, device: torch.device) -> Run:
        from transfuse.backends.triton import sweeps

        run: Run = sweeps.prepare(sweep, device)
        return run

    def sweeps(self, sweeps: Sequence[Sweep], device: torch.device) -> list[Run]:
        from transfuse.backends.triton.sweeps import prepare_all

        return list(prepare_all(sweeps, device))

    def scatter(
        self, problem: Problem, windows: Sequence[AxisWindows], most: int
    ) -> Scatter | None:
        from transfuse.backends.triton import winners

        found: Scatter | None = winners.prepare(problem, windows, most)
        return found

    def by_address(self, device: torch.device) -> bool:
        return device.type == "cuda"  # Triton's interpreter reads the tensors

    def source(self, problem: Problem) -> torch.dtype:
        return ELEMENTS[problem.dtype].dtype  # what tensor cores multiply

    def between(self, problem: Problem) -> torch.dtype:
        return ELEMENTS[problem.dtype].compute

    def empty(
        self, dims: Sequence[int], dtype: torch.dtype, last: bool, device: torch.device
    ) -> Tensor:
        form = memory_format(dims, last)
        return torch.empty(tuple(dims), dtype=dtype, device=device, memory_format=form)


class _Core:
    """A chain that the convolution's kernels hold: its launches, by how tensors lie."""

    def __init__(self, chain: Chain, problem: Problem) -> None:
        self.chain, self.problem, self.plan = chain, problem, fused(chain, problem)
        like = _calls().result(self.plan)
        self.form = tuple(like.shape), like.stride()

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        if x.is_neg() or weight.is_neg():
            x, weight = x.resolve_neg(), weight.resolve_neg()
        if out is None:
            out = torch.empty_strided(*self.form, dtype=x.dtype, device=x.device)
        elif out.is_neg():
            return out.copy_(self(x, weight, operands))
        try:
            y: Tensor = _calls().run(self.chain, self.plan, x, weight, operands, out)
        except Declined as reason:
            _declined[self.chain, self.problem] = Verdict(str(reason))
            raise
        return y

    def parts(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor
    ) -> Iterator[Part]:
        """A call, launch by launch.

        What copies the input does the stages before the convolution on the way.
        """
        calls, chain = _calls(), self.plan.chain
        whole = _copying(self.plan, calls.copied(self.chain, self.plan))
        first = len(whole.passes) - len(self.plan.passes)  # the pass of the copies, if there is one
        convolves = first + bool(chain.prologue)
        for kernel, at in calls.one_by_one(self.chain, self.plan, x, weight, operands, out):
            copies = first if chain.prologue else 0
            yield Part(copies if at is None else convolves + at, kernel)

    def like(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None
    ) -> Executable:
        """What runs again on tensors that lie so; this itself where some are copied first."""
        tensors = (x, weight, *operands.values(), *(() if out is None else (out,)))
        calls, copied = _calls(), any(each.is_neg() for each in tensors)
        if copied or self.chain.updates or not self.problem.batch:
            return self
        if not calls.as_they_are(x, operands):
            return self
        again: Executable = calls.Again(self, self.plan, self.form, x.get_device())
        return again


_declined: dict[tuple[Chain, Problem], Verdict] = {}
"""Why calls cannot be served that only their compiled kernels told: rare, and kept for good."""


@cache
def _calls() -> Any:
    """The module of calls, imported with the first of them; asked for at each, and so kept."""
    from transfuse.backends.triton import calls

    return calls


def _copying(plan: Plan, copied: frozenset[str]) -> Plan:
    """The plan with what it costs to copy input, weights or both into the order of the tiles.

    Stages before the convolution store theirs in that order already.
    """
    sizes = {"input": plan.problem.input.numel, "weights": prod(plan.problem.weight)}
    if plan.chain.prologue:
        del sizes["input"]
    names = [name for name in sizes if name in copied]
    if not names:
        return plan
    many = ELEMENTS[plan.problem.dtype].itemsize * sum(sizes[name] for name in names)
    copy = Pass(f"copy {' and '.join(names)} in the order of the tiles", 0, many, many)
    return replace(plan, passes=(copy, *plan.passes), scratch=plan.scratch + many)


def _yields(chain: Chain, problem: Problem) -> str:
    """Why cuDNN is to be preferred, where it is: on a convolution and nothing else."""
    if len(chain.stages) > 1:
        return ""
    return versus_cudnn.slower(problem, bias=chain.conv.bias is not None)
