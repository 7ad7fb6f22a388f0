"""The way in: tensors are checked against the problem, a backend is chosen, and it runs.

Every check comes before anything is written. Exceptions are torch's for the same mistake. A call
that passed is remembered by all that its checks looked at, and its like is not checked again.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct

import torch
from torch import Tensor

from transfuse import dispatch, settings
from transfuse.backends import Backend
from transfuse.chain import Chain
from transfuse.elements import float32_on_cuda
from transfuse.errors import Declined
from transfuse.geometry import integer, per_axis
from transfuse.problem import AXES, Problem
from transfuse.stages import Number
from transfuse.stages.whole import BatchNorm
from transfuse.tensors import (
    Precision,
    apart,
    describe,
    expect_channels,
    expect_shape,
    expect_tensor,
    same_type_and_place,
    span,
    writable,
)

Size = int | Sequence[int]


def call(
    chain: Chain,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    *,
    scalars: Mapping[str, Number] | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    out: Tensor | None = None,
    backend: str | None = None,
    precision: Precision = "auto",
) -> Tensor:
    """A torch-style call: sizes come from the tensors, and x may lack the batch axis.

    ``scalars`` are the numbers of a chain that names some.
    """
    unbatched = isinstance(x, Tensor) and x.dim() == chain.conv.rank + 1
    whole, into = x, out
    if unbatched:
        whole, into = x.unsqueeze(0), out.unsqueeze(0) if isinstance(out, Tensor) else out
    if scalars:
        exact = exactly(stride, padding, output_padding, dilation, groups, *scalars.values())
        what = exact and (chain, exact, tuple(scalars), unbatched, precision)
    else:
        exact = exactly(stride, padding, output_padding, dilation, groups)
        what = exact and (chain, exact, unbatched, precision)
    seen, found = _recalled(what, whole, weight, operands, into, backend)
    if found is None:
        bound = chain.bind(scalars) if scalars else chain
        options = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "output_padding": output_padding,
        }
        problem = _sized(bound, x, weight, operands, out, options, groups, precision)
        found = _remembered(seen, _check(bound, problem, whole, weight, operands, into, backend))
    y = _computed(found, whole, weight, operands, into, backend)
    if not unbatched:
        return y
    return y.squeeze(0) if out is None else out


def _sized(
    chain: Chain,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    options: Mapping[str, Size],
    groups: int,
    precision: str,
) -> Problem:
    """The problem that tensors and options make."""
    for name, tensor in {"input": x, "weight": weight, **operands}.items():
        expect_tensor(name, tensor)
    rank = chain.conv.rank
    conv = f"conv_transpose{rank}d"
    if weight.dim() != rank + 2:
        raise RuntimeError(
            f"{conv}: expected a weight of {rank + 2} axes (Ci, Co/groups, "
            f"{', '.join(AXES[rank])}), but got {list(weight.shape)}"
        )
    if x.dim() not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"expected {rank + 1}D (unbatched) or {rank + 2}D (batched) input to {conv}, "
            f"but got input of size {list(x.shape)}"
        )
    batched = x.dim() == rank + 2
    if not batched and any(isinstance(stage, BatchNorm) for stage in chain.stages):
        raise ValueError(f"batch_norm: expected {rank + 2}D input (got {rank + 1}D input)")
    if not batched:
        x = x.unsqueeze(0)
    if x.shape[1] != weight.shape[0]:
        raise RuntimeError(
            f"{conv}: weight of size {list(weight.shape)} expects an input of {weight.shape[0]} "
            f"channels, but got {x.shape[1]} in {list(x.shape)}"
        )
    groups = integer("groups", groups)
    if chain.conv.either_kernel:
        channels = next(iter(operands.values())).numel()
        groups = kernel_groups(weight, channels, groups)
    problem = Problem(
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=weight.shape[1] * groups,
        spatial=tuple(x.shape[2:]),
        kernel=tuple(weight.shape[2:]),
        stride=per_axis("stride", options["stride"], rank),
        padding=per_axis("padding", options["padding"], rank),
        dilation=per_axis("dilation", options["dilation"], rank),
        output_padding=per_axis("output_padding", options["output_padding"], rank),
        groups=groups,
        **describe(x, precision),
    )
    if not batched and out is not None and expect_tensor("out", out).dim() != rank + 1:
        raise RuntimeError(
            f"expected output of {rank + 1} axes, unbatched like the input, "
            f"but got {list(out.shape)}"
        )
    return problem


def kernel_groups(weight: Tensor, out_channels: int, groups: int) -> int:
    """The groups of a kernel that may be dense whatever ``groups`` says."""
    if groups < 1:
        raise RuntimeError(f"groups must be at least 1, but got groups={groups}")
    ci, co, *taps = weight.shape
    if co == out_channels:
        return 1
    if co * groups == out_channels:
        return groups
    legal = f"{[ci, out_channels, *taps]} (dense)"
    if groups > 1 and out_channels % groups == 0:
        legal += f" or {[ci, out_channels // groups, *taps]} (groups={groups})"
    raise RuntimeError(f"expected a kernel of shape {legal}, but got {list(weight.shape)}")


def run(
    chain: Chain,
    problem: Problem,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Check the tensors of a batched call against its problem, then compute the chain."""
    given = (chain, problem)
    return compute(given, lambda: given, x, weight, operands, out, backend)


@dataclass(frozen=True)
class Checked:
    """A call that passed every check; ``spans``: the bytes from each tensor's first to its end."""

    chain: Chain
    problem: Problem
    backend: Backend
    spans: tuple[int, ...]


_checked: dict[Hashable, Checked] = {}
"""Calls by everything their checks looked at. The same again needs no check: it would pass."""
MOST = 4096
"""Calls kept; one more, and all are forgotten."""


def compute(
    what: Hashable,
    prepare: Callable[[], tuple[Chain, Problem]],
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    backend: str | None,
) -> Tensor:
    """Check a batched call, unless the same one has passed before, then run it.

    ``what`` stands for all that ``prepare`` looks at beside the tensors; empty, and the call is
    checked every time. So is, whatever came before, that the output shares no memory with inputs.
    """
    seen, found = _recalled(what, x, weight, operands, out, backend)
    if found is None:
        chain, problem = prepare()
        found = _remembered(seen, _check(chain, problem, x, weight, operands, out, backend))
    return _computed(found, x, weight, operands, out, backend)


def _recalled(
    what: Hashable,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    backend: str | None,
) -> tuple[Hashable, Checked | None]:
    """Everything the checks look at, and the choice of a backend; the call that passed with it.

    Nothing, where something is no tensor or cannot be a key.
    """
    if not what:
        return None, None
    facts = [what, backend or settings.backend(), dispatch.BACKENDS, torch.is_grad_enabled()]
    tensors: tuple[Tensor, ...] = (x, weight)
    if operands:
        tensors += tuple(operands.values())
        facts += operands
    if out is not None:
        tensors += (out,)
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or tensor.layout is not _STRIDED:
            return None, None
        facts += (
            tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad
        )  # fmt: skip
    if x.is_cuda and x.dtype is torch.float32:
        facts.append(float32_on_cuda())
    seen = tuple(facts)
    try:
        return seen, _checked.get(seen)
    except TypeError:  # not hashable
        return None, None


_STRIDED = torch.strided


def _remembered(seen: Hashable, found: Checked) -> Checked:
    """A call that has passed, for the next one with which the same is seen."""
    if seen:
        if len(_checked) >= MOST:
            _checked.clear()
        _checked[seen] = found
    return found


def _computed(
    found: Checked,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    backend: str | None,
) -> Tensor:
    if out is not None:
        apart(out, (x, weight, *operands.values()), found.spans, operands)
    return _run(found, x, weight, operands, out, backend)


def _run(
    found: Checked,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    backend: str | None,
) -> Tensor:
    """Run a call; on another backend, where the one chosen finds out only now that it cannot."""
    try:
        return found.backend.run(found.chain, found.problem, x, weight, operands, out)
    except Declined:
        _checked.clear()  # one of them was chosen by a verdict that does not hold any more
        other = dispatch.choose(found.chain, found.problem, backend)
        if other is found.backend:
            raise
    return _run(replace(found, backend=other), x, weight, operands, out, backend)


def exactly(*numbers: object) -> tuple[Hashable, ...]:
    """A key for numbers and lists of integers, the same for the same ones alone; empty for others.

    By themselves 1 and 1.0 and True would be one key, and so would 0.0 and -0.0: a float goes by
    its bits, and what is neither that nor an integer has no key.
    """
    if {*map(type, numbers)} == _INTEGER:
        return numbers
    key: list[Hashable] = []
    for each in numbers:
        if type(each) is int:
            key.append(each)
        elif type(each) is float:
            key.append(_BITS(each))
        elif type(each) in _LISTS and {*map(type, each)} <= _INTEGER:  # type: ignore[call-overload]
            key.append(tuple(each))  # type: ignore[arg-type]
        else:
            return ()
    return tuple(key)


_INTEGER, _LISTS, _BITS = {int}, {list, tuple}, Struct("d").pack


def _check(
    chain: Chain,
    problem: Problem,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    backend: str | None,
) -> Checked:
    result = chain.shapes(problem)[-1]
    named = {"input": x, "weight": weight, **operands}
    same_type_and_place(named)
    expect_shape("input", x, problem.input.dims)
    expect_shape("weight", weight, problem.weight)
    for name, channels in chain.channels(problem):
        if name not in operands:
            raise TypeError(f"nothing is given under the name {name!r}, used in {chain}")
        expect_channels(name, operands[name], channels, flat=name == chain.conv.bias)
    if out is not None:
        writable(out, result, named)
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in named.values())
    chosen = dispatch.choose(chain, problem, backend, gradients)
    spans = tuple(map(span, named.values() if out is None else (*named.values(), out)))
    return Checked(chain, problem, chosen, spans)
