"""The operations to autograd: a chain keeps its inputs alone, and its gradients have gradients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_autograd

from transfuse.ops.arguments import Options
from transfuse.ops.decomposition import first_order


def register(library: Library) -> None:
    for name, backward, setup in (
        ("chain", _chain_backward, _keep),
        ("chain_updating", _updating_backward, _keep_moved),
        ("chain_backward", _second_order, _keep_backward),
    ):
        register_autograd(f"transfuse::{name}", backward, setup_context=setup, lib=library)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, operands, *ctx.options, _ = inputs
    ctx.save_for_backward(x, weight, *operands)


def _keep_moved(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Running statistics are kept as they come out: those that came in may be written to."""
    x, weight, operands, *ctx.options, _ = inputs
    _, moved = output
    ctx.mark_non_differentiable(*moved)
    options = Options(*ctx.options)
    named = options.named(operands)
    named |= zip(options.outline.updates, moved, strict=True)
    ctx.save_for_backward(x, weight, *named.values())


def _chain_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    x, weight, *operands = ctx.saved_tensors
    wants_x, wants_weight, wants_operands, *_ = ctx.needs_input_grad
    wanted = [wants_x, wants_weight, *wants_operands]
    found = iter(
        torch.ops.transfuse.chain_backward(grad, x, weight, operands, *ctx.options, wanted)
    )
    first, second, *others = (next(found) if wants else None for wants in wanted)
    return first, second, others, *_none(ctx.options), None


def _updating_backward(ctx: Any, grad: Tensor, moved: object) -> tuple[Any, ...]:
    return _chain_backward(ctx, grad)


def _none(options: Sequence[Any]) -> list[Any]:
    """No gradient for each; of an empty list an empty one, as torch has it."""
    return [[] if isinstance(each, list) and not each else None for each in options]


def _keep_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    grad, x, weight, operands, *ctx.options, ctx.wanted = inputs
    ctx.save_for_backward(grad, x, weight, *operands)


def _second_order(ctx: Any, grads: Sequence[Tensor]) -> tuple[Any, ...]:
    """By torch operations, which have gradients in turn."""
    again = torch.is_grad_enabled()
    tensors = ctx.saved_tensors
    if not again:
        tensors = [each.detach().requires_grad_(each.requires_grad) for each in tensors]
    wants_grad, wants_x, wants_weight, wants_operands, *_ = ctx.needs_input_grad
    wants = [wants_grad, wants_x, wants_weight, *wants_operands]
    grad, x, weight, *operands = tensors
    with torch.enable_grad():
        found = first_order(Options(*ctx.options), grad, x, weight, operands, ctx.wanted)
        pairs = [(y, g) for y, g in zip(found, grads, strict=True) if y.requires_grad]
        leaves = [each for each, wanted in zip(tensors, wants, strict=True) if wanted]
        second = iter(
            torch.autograd.grad(
                [y for y, _ in pairs],
                leaves,
                [g for _, g in pairs],
                create_graph=again,
                allow_unused=True,
            )
            if pairs
            else [None] * len(leaves)
        )
    first, *rest = (next(second) if wanted else None for wanted in wants)
    return first, rest[0], rest[1], rest[2:], *_none(ctx.options), None
