"""What comes of an operation by shapes alone: sizes, strides, type and device, or an error."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from transfuse import checks, dispatch
from transfuse.backends.memory import memory_format
from transfuse.ops import strides
from transfuse.ops.arguments import FEWEST, Options, fitted, keeping


def register(library: Library) -> None:
    for name, fake in (
        ("chain", chain),
        ("chain_updating", chain_updating),
        ("chain_keeping", chain_keeping),
        ("chain_backward", chain_backward),
    ):
        # What register_fake does, too, but that looks through source files first.
        library.impl(name, fake, "Meta")  # type: ignore[no-untyped-call]


def chain(x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any) -> Tensor:
    options = Options(*rest[:-1])
    options.expect_pure()
    return _result(options, x, weight, operands, rest[-1])


def _result(
    options: Options, x: Tensor, weight: Tensor, operands: Sequence[Tensor], backend: str
) -> Tensor:
    dispatch.fuses(backend or None)  # refuses a name that there is not
    named = options.named(operands)
    whole = fitted(options.outline, named)
    problem = options.problem(whole, x, weight, exotic=True)
    checks.expect(whole, problem, x, weight, named)
    dims = whole.result(problem)
    return x.new_empty_strided(dims, strides.of_result(dims, x))


def chain_updating(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, list[Tensor]]:
    options = Options(*rest[:-1])
    named = options.named(operands)
    moved = [torch.empty_like(named[name]) for name in options.outline.updates]
    return _result(options, x, weight, operands, rest[-1]), moved


def chain_keeping(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, list[Tensor]]:
    options = Options(*rest[:-2])
    options.expect_pure()
    y = _result(options, x, weight, operands, rest[-2])
    kept = keeping(options, x, weight, options.named(operands), *rest[-2:])
    return y, [
        torch.empty(
            form.dims,
            dtype=form.dtype,
            device=x.device,
            memory_format=memory_format(form.dims, form.last),
        )
        for form in (kept.forms if kept else ())
    ]


def chain_backward(
    grad: Tensor, x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    wanted = rest[FEWEST - 1]
    tensors = (x, weight, *operands)
    return [torch.empty_like(t) for t, wants in zip(tensors, wanted, strict=True) if wants]
