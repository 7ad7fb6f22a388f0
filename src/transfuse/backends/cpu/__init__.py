"""The CPU core: fused, native, for x86 and ARM. Plans as ``plan.fused`` says, run in C++.

Weights are packed once and kept while their tensor lives and does not change. Threads are torch's:
``torch.get_num_threads()`` of them, in the OpenMP runtime that torch has loaded.
"""

import ctypes
from collections.abc import Mapping
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from transfuse.backends.base import Verdict
from transfuse.backends.cpu import library, lower
from transfuse.backends.cpu.weights import packed
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.plan import Plan, fused
from transfuse.problem import Problem


class Cpu:
    name = "cpu"
    differentiable = False

    def verdict(self, chain: Chain, problem: Problem) -> Verdict:
        return _verdict(chain, problem)

    def plan(self, chain: Chain, problem: Problem) -> Plan:
        return _fused(chain, problem)

    def ulp(self, problem: Problem) -> float:
        return torch.finfo(ELEMENTS[problem.dtype].compute).eps

    def run(
        self,
        chain: Chain,
        problem: Problem,
        x: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        out: Tensor | None = None,
    ) -> Tensor:
        # Rewrites assume finite operands; these few numbers are looked at, as no plan can.
        finite = all(bool(operand.sum().isfinite()) for operand in operands.values())
        plan = _fused(chain, problem, finite)
        core = library.load()
        assert core is not None
        if out is None:
            out = _empty(plan, x)
        elif out.is_neg():
            return out.copy_(self.run(chain, problem, x, weight, operands))
        if not out.numel():
            return out
        x, flat = x.resolve_neg(), {k: v.contiguous().resolve_neg() for k, v in operands.items()}
        program = _program(plan, x, out)
        kept = packed(core, program, weight.resolve_neg())
        program.weights, program.careful = kept.address, kept.careful
        steps = [each.step(lambda name: flat[name].data_ptr()) for each in _steps(plan)]
        program.steps_count = len(steps)
        program.steps = (library.Step * max(1, len(steps)))(*steps)
        library.check(core, core.transfuse_run(program, torch.get_num_threads()))
        return out


@lru_cache(maxsize=4096)
def _fused(chain: Chain, problem: Problem, finite: bool = True) -> Plan:
    return fused(chain, problem, assume=finite)


@lru_cache(maxsize=4096)
def _verdict(chain: Chain, problem: Problem) -> Verdict:
    if problem.device != "cpu":
        return Verdict(f"tensors are on {problem.device}")
    if library.load() is None:
        return Verdict("the compiled core is not installed")
    plans = (_fused(chain, problem, finite) for finite in (True, False))
    reason = next(filter(None, map(lower.refusal, plans)), "")
    # A tile holds positions of one sample: with so few, torch's product over all of them is faster.
    small = len(chain.stages) == 1 and set(problem.stride) == {1} and prod(problem.spatial) < 32
    return Verdict(reason, "torch is as fast at stride 1 on so few positions" if small else "")


@lru_cache(maxsize=4096)
def _steps(plan: Plan) -> tuple[lower.Instruction, ...]:
    return tuple(lower.epilogue(plan))


def _empty(plan: Plan, x: Tensor) -> Tensor:
    """The result's tensor, in the layout of the input."""
    shape = plan.chain.shapes(plan.problem)[-1].dims
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if plan.problem.layout == "channels_last" and last is not None:
        return torch.empty(shape, dtype=x.dtype, memory_format=last)
    return torch.empty(shape, dtype=x.dtype)


def _program(plan: Plan, x: Tensor, out: Tensor) -> library.Program:
    problem, conv = plan.problem, plan.chain.conv
    before = lower.prologue(plan.chain)
    program = library.Program(
        element=library.ELEMENTS.index(problem.dtype),
        batch=problem.batch,
        in_channels=problem.in_channels,
        out_channels=problem.out_channels,
        groups=problem.groups,
        spatial=_three(problem.spatial, 1),
        kernel=_three(problem.kernel, 1),
        stride=_three(problem.stride, 1),
        padding=_three(problem.padding, 0),
        dilation=_three(problem.dilation, 1),
        output_padding=_three(problem.output_padding, 0),
        pooled=before is not None,
        input=x.data_ptr(),
        input_strides=library.Strides(*strides(x)),
        output=out.data_ptr(),
        output_strides=library.Strides(*strides(out)),
        weight_scale=conv.weight_scale,
    )
    if before is not None:
        program.pool = before.step(lambda name: 0)
    return program


def _three(values: tuple[int, ...], missing: int) -> ctypes.Array[ctypes.c_int64]:
    """One value per axis, missing axes first."""
    return library.Sizes(*((missing,) * (3 - len(values)) + values))


def strides(tensor: Tensor) -> tuple[int, ...]:
    """Five strides; those of missing axes do not matter."""
    n, c, *space = tensor.stride()
    return (n, c, *(0,) * (3 - len(space)), *space)
