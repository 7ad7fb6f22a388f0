"""The operations on tensors that are there: the front's checks and backends, the gradients."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.library import Library

from transfuse import checks, front, plain, remembered
from transfuse.chain import Chain
from transfuse.line import INPUT, WEIGHT
from transfuse.ops import strides
from transfuse.ops.arguments import FEWEST, Options, fitted, keeping
from transfuse.problem import Problem
from transfuse.tensors import without_autocast


def register(library: Library) -> None:
    for name, kernel in (
        ("chain", chain),
        ("chain_updating", chain_updating),
        ("chain_keeping", chain_keeping),
        ("chain_backward", chain_backward),
    ):
        library.impl(name, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


def chain(x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any) -> Tensor:
    options = Options(*rest[:-1])
    options.expect_pure()
    return _run(options, x, weight, options.named(operands), rest[-1])


def _run(
    options: Options, x: Tensor, weight: Tensor, named: dict[str, Tensor], backend: str
) -> Tensor:
    """The chain; running statistics among its tensors are written to."""

    def prepare(exotic: bool) -> tuple[Chain, Problem]:
        found = options.chain
        return fitted(found, named), options.problem(found, x, weight, exotic)

    y = front.run_inside(options.key, prepare, x, weight, named, backend or None)
    return strides.laid(y, strides.of_result(y.shape, x))


def chain_updating(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, list[Tensor]]:
    options = Options(*rest[:-1])
    named = options.named(operands)
    moved = {name: named[name].clone() for name in options.outline.updates}
    y = _run(options, x, weight, named | moved, rest[-1])
    return y, [*moved.values()]


def chain_keeping(
    x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, list[Tensor]]:
    options = Options(*rest[:-2])
    options.expect_pure()
    named = options.named(operands)
    kept = keeping(options, x, weight, named, *rest[-2:])
    if kept is None or any(map(plain.unlike_plain, (x, weight, *operands))):
        return _run(options, x, weight, named, rest[-2]), []
    checks.expect(kept.again.chain, kept.problem, x, weight, named)
    with without_autocast(x), torch.no_grad():
        y, found = kept(x, weight, named)
    return strides.laid(y, strides.of_result(y.shape, x)), found


def chain_backward(
    grad: Tensor, x: Tensor, weight: Tensor, operands: Sequence[Tensor], *rest: Any
) -> list[Tensor]:
    # Inference needs none of it: an import of the package leaves it alone.
    from transfuse.gradients import gradients

    *given, wanted, kept = rest if len(rest) > FEWEST else (*rest, None)
    options = Options(*given)
    named = options.named(operands)
    whole, problem = _computed(options, x, weight, named)
    tensors = {INPUT: x, WEIGHT: weight, **named}
    names = [name for name, wants in zip(tensors, wanted, strict=True) if wants]
    with without_autocast(x), _Autograd():
        found = gradients(whole, problem, grad, x, weight, named, names, kept or ())
    results = [
        strides.laid(found[name], torch.empty_like(tensors[name], device="meta").stride())
        for name in names
    ]
    return _apart(results, (grad, *tensors.values()))


_known: dict[Hashable, tuple[Chain, Problem]] = {}
"""What was computed before, by all that it depends on."""


def _computed(
    options: Options, x: Tensor, weight: Tensor, named: dict[str, Tensor]
) -> tuple[Chain, Problem]:
    """The chain and the problem of a call."""
    key = remembered.facts(options.key, (x, weight, *named.values()), named, None)
    found = _known.get(key)
    if found is None:
        whole = options.chain
        found = fitted(whole, named), options.problem(whole, x, weight, exotic=False)
        if key is not None:
            remembered.keep(_known, key, found)
    return found


def _apart(results: Sequence[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    """Results in memory of their own, as an operation must give them.

    That of an addition, say, has the gradient itself for its gradient.
    """
    taken = {each.untyped_storage().data_ptr() for each in given}
    found = []
    for each in results:
        memory = each.untyped_storage().data_ptr()
        found.append(each.clone() if memory in taken and each.numel() else each)
        taken.add(memory)
    return found


class _Autograd:
    """torch's own gradients, which are off in the kernel of an operation."""

    def __enter__(self) -> None:
        excluded = torch._C._dispatch_tls_local_exclude_set()
        for key in (DispatchKey.AutogradFunctionality, DispatchKey.ADInplaceOrView):
            excluded = excluded.remove(key)
        included = torch._C._dispatch_tls_local_include_set()
        self.guard = torch._C._ForceDispatchKeyGuard(included, excluded)
        self.guard.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        self.guard.__exit__(*error)
