"""The operations to autograd and to the transforms of ``torch.func``.

A chain keeps its inputs alone; its gradients are an operation in turn. Where these have to be
differentiated again, and in transforms and forward mode, torch operations stand for either: each of
them has all the rules there are.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.library import Library

from transfuse.ops import decomposition
from transfuse.ops.arguments import Options


def register(library: Library) -> None:
    for name, kernel in (
        ("chain", chain),
        ("chain_updating", chain_updating),
        ("chain_backward", chain_backward),
    ):
        library.impl(name, kernel, "Autograd")  # type: ignore[no-untyped-call]
        in_torch = getattr(decomposition, name)
        library.impl(name, in_torch, "FuncTorchBatchedDecomposition")  # type: ignore[no-untyped-call]


def chain(x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any) -> Tensor:
    if _transformed():
        return decomposition.chain(x, weight, operands, *rest)
    if _learns(x, weight, *operands):
        y: Tensor = _Chain.apply(rest, x, weight, *operands)  # type: ignore[no-untyped-call]
        return y
    return _below(torch.ops.transfuse.chain, x, weight, operands, *rest)  # type: ignore[no-any-return]


def chain_updating(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, list[Tensor]]:
    if _transformed():
        return decomposition.chain_updating(x, weight, operands, *rest)
    if _learns(x, weight, *operands):
        y, *moved = _Updating.apply(rest, x, weight, *operands)  # type: ignore[no-untyped-call]
        return y, moved
    y, moved = _below(torch.ops.transfuse.chain_updating, x, weight, operands, *rest)
    return y, moved


def chain_backward(
    grad: Tensor, x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    if _transformed():
        return decomposition.chain_backward(grad, x, weight, operands, *rest)
    if _learns(grad, x, weight, *operands):
        return decomposition.differentiable(grad, x, weight, operands, *rest)
    op = torch.ops.transfuse.chain_backward
    return _below(op, grad, x, weight, operands, *rest)  # type: ignore[no-any-return]


def _transformed() -> bool:
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def _learns(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def _below(op: Any, *args: Any) -> Any:
    """The operation itself, past autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)


class _Chain(torch.autograd.Function):
    """``rest``: all arguments but the tensors, the backend last."""

    @staticmethod
    def forward(ctx: Any, rest: tuple[Any, ...], *tensors: Tensor) -> Tensor:
        ctx.options = rest[:-1]
        ctx.save_for_backward(*tensors)
        x, weight, *operands = tensors
        return _below(torch.ops.transfuse.chain, x, weight, operands, *rest)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: object) -> tuple[Tensor | None, ...]:
        x, weight, *operands = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[1:])
        op = torch.ops.transfuse.chain_backward
        found = iter(op(grad, x, weight, operands, *ctx.options, wanted))
        return None, *(next(found) if wants else None for wants in wanted)


class _Updating(_Chain):
    @staticmethod
    def forward(ctx: Any, rest: tuple[Any, ...], *tensors: Tensor) -> Any:
        """Running statistics are kept as they come out: those that came in may be written to."""
        ctx.options = rest[:-1]
        x, weight, *operands = tensors
        y, moved = _below(torch.ops.transfuse.chain_updating, x, weight, operands, *rest)
        ctx.mark_non_differentiable(*moved)
        options = Options(*ctx.options)
        named = options.named(operands)
        named |= zip(options.outline.updates, moved, strict=True)
        ctx.save_for_backward(x, weight, *named.values())
        return y, *moved
