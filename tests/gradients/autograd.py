"""Gradients of a chain by torch's autograd in float64, which those of this package are held to."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from transfuse import gradients as subject
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.reference import evaluate
from transfuse.stages import Stage, add
from transfuse.stages.norm import Norm
from transfuse.stages.pointwise import Map

ROUNDED = ("hardsigmoid", "celu")
"""Of these torch computes the derivative with constants in float32, even for float64."""


def in_double(chain: Chain) -> Chain:
    """The chain in a form of which torch has all derivatives, in float64.

    Stages whose derivative it rounds to float32 as their expressions; and the bias of a group norm
    without weights, on whose gradient torch 2.13 raises, by itself.
    """
    stages: list[Stage] = []
    for stage in chain.stages:
        if isinstance(stage, Norm) and stage.made == "group_norm" and stage.weight is None:
            stages.append(replace(stage, bias=None))
            if stage.bias is not None:
                stages.append(add(stage.bias))
            continue
        if isinstance(stage, Map) and stage.name in ROUNDED:
            made = type(stage.function)(lambda x: x, None, stage.name)
            vars(made).update({**vars(stage.function), "torch": None})
            stage = Map(made, stage.arguments, stage.shapes)
        stages.append(stage)
    return Chain(*stages)


def wanted(chain: Chain, operands: Mapping[str, Tensor]) -> list[str]:
    """All tensors of a call but running statistics, by which torch has no derivative."""
    kept = {
        name
        for stage in chain.stages
        if isinstance(stage, Norm)
        for name in (stage.running_mean, stage.running_var)
    }
    return ["input", "weight", *(name for name in operands if name not in kept)]


def by_autograd(
    chain: Chain,
    problem: Problem,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """torch's, of the chain's maths in float64."""
    leaves = {
        name: each.detach().double().requires_grad_(name in wanted(chain, operands))
        for name, each in {"input": x, "weight": weight, **operands}.items()
    }
    given = {name: leaves[name] for name in operands}
    y = evaluate(in_double(chain), problem, leaves["input"], leaves["weight"], given)
    names = wanted(chain, operands)
    found = torch.autograd.grad(
        y, [leaves[name] for name in names], grad.double(), allow_unused=True
    )
    return {
        name: torch.zeros_like(leaves[name]) if each is None else each
        for name, each in zip(names, found, strict=True)
    }


def compare(
    chain: Chain,
    problem: Problem,
    tensors: tuple[Tensor, Tensor, dict[str, Tensor]],
    relative: float = 1e-9,
    grad: Tensor | None = None,
) -> dict[str, Tensor]:
    """Hold the gradients of a chain by all its tensors to torch's; they are returned.

    Errors are measured by the largest value of each, and of all, or what comes in, where that is
    next to nothing: what a norm or softmax leaves of a bias before it is the rounding of terms that
    cancel. A fused backend must serve it.
    """
    x, weight, operands = tensors
    if grad is None:
        generator = torch.Generator().manual_seed(1)
        grad = torch.randn(chain.result(problem), generator=generator, dtype=torch.float64)
        grad = grad.to(x.dtype)
    names = wanted(chain, operands)
    asked: Any = (chain, problem, frozenset(names), None)
    assert subject._backward(*asked) is not None, chain
    got = subject.gradients(chain, problem, grad, x, weight, operands, names)
    expected = by_autograd(chain, problem, grad, x, weight, operands)
    largest = max(float(each.abs().max()) for each in expected.values())
    given = {"input": x, "weight": weight, **operands}
    assert list(got) == names
    for name, each in got.items():
        assert each.shape == given[name].shape, name
        assert each.dtype == given[name].dtype, name
        size = max(
            float(expected[name].abs().max()), largest * 1e-3, float(grad.abs().max()) * 1e-6
        )
        torch.testing.assert_close(
            each.double(),
            expected[name],
            rtol=0,
            atol=relative * size,
            msg=lambda text, name=name: f"{chain} ({problem}), by {name}: {text}",
        )
    return got
