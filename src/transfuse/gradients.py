"""Gradients of a chain: what a step of training asks for after the forward call."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from transfuse.backends.eager import evaluated
from transfuse.chain import Chain
from transfuse.problem import Problem

INPUT, WEIGHT = "input", "weight"
"""What the two tensors of the convolution are called beside the operands."""


def gradients(
    chain: Chain,
    problem: Problem,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    wanted: Collection[str],
) -> dict[str, Tensor]:
    """The gradients of ``(grad * y).sum()``, y the chain's result, by those of its tensors wanted.

    Nothing is written to the operands, running statistics among them.
    """
    tensors = {INPUT: x, WEIGHT: weight, **operands}
    leaves = {name: tensor.detach() for name, tensor in tensors.items()}
    for name in wanted:
        leaves[name].requires_grad_()
    with torch.enable_grad():
        given = {name: leaves[name] for name in operands}
        y = evaluated(chain, problem, leaves[INPUT], leaves[WEIGHT], given)
    found = torch.autograd.grad(y, [leaves[name] for name in wanted], grad)
    return dict(zip(wanted, found, strict=True))
