"""The operations as torch's own: for exporters, transforms and gradients of higher order."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from transfuse.backends.eager import evaluated
from transfuse.ops.arguments import Options, fitted


def chain(x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any) -> Tensor:
    """``transfuse::chain`` in torch operations."""
    return _evaluated(Options(*rest[:-1]), x, weight, operands, {})


def chain_updating(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, list[Tensor]]:
    """``transfuse::chain_updating`` in torch operations."""
    options = Options(*rest[:-1])
    updated: dict[str, Tensor] = {}
    y = _evaluated(options, x, weight, operands, updated)
    named = options.named(operands)
    return y, [updated[name].to(named[name].dtype) for name in options.outline.updates]


def first_order(
    options: Options,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    operands: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Tensor]:
    """``transfuse::chain_backward`` in torch operations, which record what they do."""
    # Of aliases, so that a tensor that is given twice has two gradients.
    given = [each.view_as(each) for each in (x, weight, *operands)]
    given = [
        each if each.requires_grad or not wants else each.detach().requires_grad_()
        for each, wants in zip(given, wanted, strict=True)
    ]
    y = _evaluated(options, given[0], given[1], given[2:], {})
    leaves = [each for each, wants in zip(given, wanted, strict=True) if wants]
    return list(torch.autograd.grad(y, leaves, grad, create_graph=True))


def _evaluated(
    options: Options,
    x: Tensor,
    weight: Tensor,
    operands: Sequence[Tensor],
    updated: dict[str, Tensor],
) -> Tensor:
    named = options.named(operands)
    whole = fitted(options.chain, named)
    problem = options.problem(whole, x, weight, exotic=True)
    return evaluated(whole, problem, x, weight, named, updated)
