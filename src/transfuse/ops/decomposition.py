"""The operations as torch's own: for exporters, transforms and gradients of higher order."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from transfuse.backends.eager import evaluated, pulled_back
from transfuse.backends.memory import memory_format
from transfuse.ops import strides
from transfuse.ops.arguments import FEWEST, Options, fitted
from transfuse.tensors import without_autocast


def decompositions() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    r"""The operations of this package in torch's own, for ``ExportedProgram.run_decompositions``.

    .. math::
        \text{transfuse::chain} \to \text{aten::convolution}, \dots

    Returns:
        dict: for each operation a function that computes it by torch operations alone

    Example::

        >>> exported = torch.export.export(model, (x,))
        >>> exported = exported.run_decompositions(transfuse.ops.decompositions())
        >>> program = torch.onnx.export(exported, dynamo=True)
    """
    ops = torch.ops.transfuse
    return {
        ops.chain.default: chain,
        ops.chain_updating.default: chain_updating,
        ops.chain_backward.default: chain_backward,
    }


def chain(x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any) -> Tensor:
    """``transfuse::chain`` in torch operations."""
    return _laid(_evaluated(Options(*rest[:-1]), x, weight, operands, {}), x)


def chain_updating(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, list[Tensor]]:
    """``transfuse::chain_updating`` in torch operations."""
    options = Options(*rest[:-1])
    updated: dict[str, Tensor] = {}
    y = _laid(_evaluated(options, x, weight, operands, updated), x)
    named = options.named(operands)
    return y, [updated[name].to(named[name].dtype) for name in options.outline.updates]


def chain_backward(
    grad: Tensor, x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    """``transfuse::chain_backward`` in torch operations."""
    *options, wanted = rest[:FEWEST]

    def forward(*tensors: Tensor) -> Tensor:
        return _evaluated(Options(*options), tensors[0], tensors[1], tensors[2:], {})

    # As a transform: it needs no tensor to require grad, and so can itself be traced.
    pull = torch.func.vjp(forward, x, weight, *operands)[1]
    return [found for found, wants in zip(pull(grad), wanted, strict=True) if wants]


def differentiable(
    grad: Tensor, x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    """``transfuse::chain_backward`` in torch operations that have gradients of any order."""
    *options, wanted = rest[:FEWEST]
    with torch.enable_grad(), without_autocast(x):
        # Of aliases, so that a tensor that is given twice has two gradients.
        given = [each.view_as(each) for each in (x, weight, *operands)]
        given = [
            each if each.requires_grad or not wants else each.detach().requires_grad_()
            for each, wants in zip(given, wanted, strict=True)
        ]
        y = _evaluated(Options(*options), given[0], given[1], given[2:], {})
        leaves = [each for each, wants in zip(given, wanted, strict=True) if wants]
        return pulled_back(y, leaves, grad, create_graph=True)


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


def _laid(y: Tensor, x: Tensor) -> Tensor:
    """The result in the order of memory that the operation gives it."""
    return y.contiguous(memory_format=memory_format(y.shape, strides.innermost(y.shape, x)))
