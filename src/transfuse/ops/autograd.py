"""The operations to autograd and to the transforms of ``torch.func``.

A chain keeps its inputs, and more where its plan says that this is cheaper than to compute it
again; its gradients are an operation in turn. Where these have to be
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

from transfuse import plain
from transfuse.ops import decomposition
from transfuse.ops.arguments import Options, keeping


def register(library: Library) -> None:
    library.impl("chain_keeping", chain_keeping, "Autograd")  # type: ignore[no-untyped-call]
    for name, kernel in (
        ("chain", chain),
        ("chain_updating", chain_updating),
        ("chain_backward", chain_backward),
    ):
        library.impl(name, kernel, "Autograd")  # type: ignore[no-untyped-call]
        in_torch = getattr(decomposition, name)
        # The second is of torch's older vmap, which torch.autograd has for batches of gradients.
        for key in ("FuncTorchBatchedDecomposition", "Batched"):
            library.impl(name, in_torch, key)  # type: ignore[no-untyped-call]


def chain(x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any) -> Tensor:
    if _transformed():
        return decomposition.chain(x, weight, operands, *rest)
    if _learns(x, weight, *operands):
        device = _keeps(x, weight, operands, *rest)
        if device:
            return chain_keeping(x, weight, operands, *rest, device)[0]
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


def chain_keeping(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, list[Tensor]]:
    if _learns(x, weight, *operands):
        y, *kept = _Keeping.apply(rest, x, weight, *operands)  # type: ignore[no-untyped-call]
    else:
        y, kept = _below(torch.ops.transfuse.chain_keeping, x, weight, operands, *rest)
    return y, kept


def chain_backward(
    grad: Tensor, x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    if _transformed():
        return decomposition.chain_backward(grad, x, weight, operands, *rest)
    if _learns(grad, x, weight, *operands):
        return decomposition.differentiable(grad, x, weight, operands, *rest)
    op = torch.ops.transfuse.chain_backward
    return _below(op, grad, x, weight, operands, *rest)  # type: ignore[no-any-return]


def _keeps(x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any) -> str:
    """The device by whose rates a call keeps more than its tensors; empty where it does not.

    A trace is to hold for other sizes, too.
    """
    if plain.why_not((x, weight, *operands)):
        return ""
    options = Options(*rest[:-1])
    found = keeping(options, x, weight, options.named(operands), rest[-1])
    return found.problem.device if found else ""


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


class _Keeping(torch.autograd.Function):
    """What is kept comes out beside the result, and back into the operation for gradients."""

    @staticmethod
    def forward(ctx: Any, rest: tuple[Any, ...], *tensors: Tensor) -> Any:
        ctx.options, ctx.given = rest[:-2], len(tensors)
        ctx.set_materialize_grads(False)  # else each step would fill zeros as large as what is kept
        x, weight, *operands = tensors
        y, kept = _below(torch.ops.transfuse.chain_keeping, x, weight, operands, *rest)
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(*tensors, *kept)
        return y, *kept

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: object) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, *(None,) * ctx.given
        saved = ctx.saved_tensors
        x, weight, *operands = saved[: ctx.given]
        wanted = list(ctx.needs_input_grad[1:])
        op = torch.ops.transfuse.chain_backward
        given = (grad, x, weight, operands, *ctx.options, wanted, saved[ctx.given :])
        found = iter(op(*given))
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
