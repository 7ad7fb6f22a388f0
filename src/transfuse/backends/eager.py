"""Plain torch: runs every chain on every device, one stage after another. Always last in line.

On CPU 16-bit tensors are widened to float32, computed, and rounded once at the end: torch lacks
some kernels for them there (avg_pool3d in half precision), and rounds after every stage. On other
devices torch has the kernels, and the stages run in the tensors' own type. On CUDA the convolution
multiplies float32 as the problem's precision says; its gradients, as torch is set to.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transfuse.backends.base import Backend, Executable, Part, Verdict
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.plan import Plan, staged
from transfuse.problem import Problem
from transfuse.reference import applied, evaluate, torch_call
from transfuse.stages import Env
from transfuse.stages.running import write


class Eager(Backend):
    name = "eager"
    device = ""
    differentiable = True

    def verdict(self, chain: Chain, problem: Problem) -> Verdict:
        return Verdict()

    def plan(self, chain: Chain, problem: Problem) -> Plan:
        return staged(chain, problem, temporary=_compute_type(problem).itemsize)

    def ulp(self, problem: Problem) -> float:
        if problem.precision == "tf32":
            return 2.0**-10
        return torch.finfo(_compute_type(problem)).eps

    def prepare(self, chain: Chain, problem: Problem) -> Executable:
        return _Staged(chain, problem)


def evaluated(
    chain: Chain,
    problem: Problem,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    updated: Env | None = None,
) -> Tensor:
    """The chain's result in the type of ``x``, computed in the type that this backend computes in.

    Nothing is written to the operands: those that the chain updates are put into ``updated``.
    """
    compute = _compute_type(problem)
    wide = _widened(operands, compute)
    y = evaluate(chain, problem, x.to(compute), weight.to(compute), wide, updated=updated)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def pulled_back(
    y: Tensor, leaves: Sequence[Tensor], grad: Tensor, create_graph: bool = False
) -> list[Tensor]:
    """The gradients of a result by tensors: zeros by those that it does not depend on."""
    if not y.requires_grad:
        return [torch.zeros_like(each) for each in leaves]
    found = torch.autograd.grad(y, leaves, grad, create_graph=create_graph, materialize_grads=True)
    return list(found)


@dataclass(frozen=True)
class _Staged:
    """A chain, stage by stage."""

    chain: Chain
    problem: Problem

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        updated: Env = {}
        y = evaluated(self.chain, self.problem, x, weight, operands, updated)
        y = y if out is None else out.copy_(y)
        write(operands, updated)
        return y

    def like(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None
    ) -> Executable:
        """torch's own call where that is all; on a CPU values are looked at, and types differ."""
        conv = self.chain.conv
        if len(self.chain.stages) > 1 or conv.weight_scale != 1 or self.problem.device == "cpu":
            return self
        found = torch_call(self.problem, x)
        if found is None:
            return self
        return _Alone(*found, conv.bias if isinstance(conv.bias, str) else None)

    def parts(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor
    ) -> Iterator[Part]:
        """A call, a stage at a time; tensors that the chain updates are left alone."""
        compute = _compute_type(self.problem)
        env: Env = _widened(operands, compute)
        values, kernel = x.to(compute), weight.to(compute)
        stages = self.chain.typed(self.problem).stages
        for at, stage in enumerate(stages):
            values = applied(stage, self.problem, values, kernel, env)
            if at + 1 == len(stages):
                out.copy_(values)
            yield Part(at)


class _Alone:
    """A convolution by one call of torch's."""

    def __init__(
        self, convolve: Callable[..., Tensor], options: tuple[Any, ...], bias: str | None
    ) -> None:
        self.convolve, self.options, self.bias = convolve, options, bias

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        bias = operands[self.bias] if self.bias is not None else None
        y = self.convolve(x, weight, bias, *self.options)
        return y if out is None else out.copy_(y)


def _widened(operands: Mapping[str, Tensor], compute: torch.dtype) -> dict[str, Tensor]:
    """Operands as they are computed with: norms may have some that are wider than the values."""
    return {k: v.to(torch.promote_types(v.dtype, compute)) for k, v in operands.items()}


def _compute_type(problem: Problem) -> torch.dtype:
    element = ELEMENTS[problem.dtype]
    return element.compute if problem.device == "cpu" else element.dtype
