"""The GPU backend: Triton kernels for any NVIDIA GPU from sm_80 on.

Triton is imported when a tensor on a GPU is first seen, not before.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib.util import find_spec
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transfuse import settings
from transfuse.backends.base import Verdict
from transfuse.backends.triton import lower
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.errors import Declined
from transfuse.plan import Pass, Plan, fused
from transfuse.problem import Problem


class Tiles(NamedTuple):
    """What serves one convolution: its steps, the engine with its tiles and where these come from;
    the engines that were asked before, and why they do not serve."""

    steps: str
    engine: str
    passed_over: Mapping[str, str]


class Triton:
    name = "triton"
    device = "cuda"
    differentiable = False

    def verdict(self, chain: Chain, problem: Problem) -> Verdict:
        return _declined.get((chain, problem)) or _verdict(chain, problem)

    def plan(self, chain: Chain, problem: Problem) -> Plan:
        return _copying(_fused(chain, problem))

    def tiles(self, chain: Chain, problem: Problem) -> list[Tiles]:
        """What serves each convolution of a chain."""
        rows: list[Tiles] = _calls().explained(chain, _fused(chain, problem))
        return rows

    def ulp(self, problem: Problem) -> float:
        if problem.arithmetic == "tf32":
            return 2.0**-10
        return torch.finfo(ELEMENTS[problem.dtype].dtype).eps

    def run(
        self,
        chain: Chain,
        problem: Problem,
        x: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        out: Tensor | None = None,
    ) -> Tensor:
        if x.is_neg() or weight.is_neg():
            x, weight = x.resolve_neg(), weight.resolve_neg()
        if out is not None and out.is_neg():
            return out.copy_(self.run(chain, problem, x, weight, operands))
        found = _met.get((id(chain), id(problem)))
        plan = _meet(chain, problem) if found is None else found[2]
        try:
            y: Tensor = _calls().run(chain, plan, x, weight, operands, out)
        except Declined as reason:
            _declined[chain, problem] = Verdict(str(reason))
            raise
        return y


_declined: dict[tuple[Chain, Problem], Verdict] = {}
"""Why calls cannot be served that only their compiled kernels told: rare, and kept for good."""


@cache
def _calls() -> Any:
    """The module that imports Triton; asked for at each call, and so kept."""
    from transfuse.backends.triton import calls

    return calls


@lru_cache(maxsize=4096)
def _fused(chain: Chain, problem: Problem) -> Plan:
    return fused(chain, problem)


_met: dict[tuple[int, int], tuple[Chain, Problem, Plan]] = {}
"""Plans by the very objects they were asked for, which are kept: to compare two chains stage by
stage takes longer than to launch one."""


def _meet(chain: Chain, problem: Problem) -> Plan:
    if len(_met) >= 4096:
        _met.clear()
    plan = _fused(chain, problem)
    _met[id(chain), id(problem)] = chain, problem, plan
    return plan


def _copying(plan: Plan) -> Plan:
    """The plan with what it costs to copy input and weights into the order of the tiles.

    Stages before the convolution store theirs in that order already.
    """
    item = ELEMENTS[plan.problem.dtype].itemsize
    copied = prod(plan.problem.weight) * item
    if not plan.chain.prologue:
        copied += plan.problem.input.numel * item
    does = "copy weights" if plan.chain.prologue else "copy input and weights"
    copy = Pass(f"{does} in the order of the tiles", 0, copied, copied)
    return replace(plan, passes=(copy, *plan.passes), scratch=plan.scratch + copied)


@lru_cache(maxsize=4096)
def _verdict(chain: Chain, problem: Problem) -> Verdict:
    if not (
        problem.device.startswith("cuda") or (problem.device == "cpu" and settings.interpreted())
    ):
        return Verdict(f"tensors are on {problem.device}")
    if find_spec("triton") is None:
        return Verdict("Triton is not installed")
    try:
        lower.lowered(chain, _fused(chain, problem))
    except lower.Refused as reason:
        return Verdict(str(reason))
    return Verdict(yields=_yields(chain, problem))


def _yields(chain: Chain, problem: Problem) -> str:
    """Why cuDNN is to be preferred, where it is: measured on 115 layers of published models."""
    if len(chain.stages) > 1 or problem.dtype not in ("fp16", "bf16"):
        return ""
    if {*problem.kernel, *problem.stride} == {1}:
        return "cuDNN multiplies in place, where this backend copies input and weights"
    many = problem.out_channels // problem.groups >= (32 if problem.rank == 3 else 64)
    # One position of one sample lies either way, and its weights most likely as cuDNN wants them.
    lone = problem.batch * prod(problem.spatial) == 1
    if many and (problem.layout == "channels_last" or lone):
        return "cuDNN reads channels_last in place, where this backend copies input and weights"
    return ""
