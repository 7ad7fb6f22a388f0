"""The GPU backend: Triton kernels for any NVIDIA GPU from sm_80 on.

Triton is imported when a tensor on a GPU is first seen, not before.
"""

from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from transfuse import settings
from transfuse.backends.base import Verdict
from transfuse.backends.triton import lower
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.plan import Plan, fused
from transfuse.problem import Problem


class Triton:
    name = "triton"
    differentiable = False

    def verdict(self, chain: Chain, problem: Problem) -> Verdict:
        return _verdict(chain, problem)

    def plan(self, chain: Chain, problem: Problem) -> Plan:
        return _fused(chain, problem)

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
        from transfuse.backends.triton import engine

        plan = _fused(chain, problem)
        if out is None:
            out = _empty(plan, x)
        if out.numel():
            flat = {name: tensor.reshape(-1) for name, tensor in operands.items()}
            program = lower.program(chain, plan)
            engine.run(program, plan.chain.core(problem), x, weight, flat, out)
        return out


@lru_cache(maxsize=4096)
def _fused(chain: Chain, problem: Problem) -> Plan:
    return fused(chain, problem)


@lru_cache(maxsize=4096)
def _verdict(chain: Chain, problem: Problem) -> Verdict:
    if not (
        problem.device.startswith("cuda") or (problem.device == "cpu" and settings.interpreted())
    ):
        return Verdict(f"tensors are on {problem.device}")
    if find_spec("triton") is None:
        return Verdict("Triton is not installed")
    try:
        lower.program(chain, _fused(chain, problem))
    except lower.Refused as reason:
        return Verdict(str(reason))
    return Verdict()


def _empty(plan: Plan, x: Tensor) -> Tensor:
    """The result's tensor, in the layout of the input."""
    shape = plan.chain.shapes(plan.problem)[-1].dims
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if plan.problem.layout == "channels_last" and last is not None:
        return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=last)
    return torch.empty(shape, dtype=x.dtype, device=x.device)
