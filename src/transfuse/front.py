"""The way in: tensors are checked against the problem, a backend is chosen, and it runs.

Every check comes before anything is written. Exceptions are torch's for the same mistake. A call
that passed is remembered by all that its checks looked at, and its like is not checked again.

Where torch is to know of the call, it is made as one operation of torch's dispatcher, ``ops``: in
``torch.compile`` and other traces, under dispatch modes and the profiler. For gradients alone it is
a node of autograd (``recorded``). Calls that ``plain`` keeps from the dispatcher, too, are checked
each time and run as torch operations.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from struct import Struct
from typing import TypeVar

import torch
from torch import Tensor
from torch._C._autograd import _profiler_enabled
from torch.autograd.graph import increment_version
from torch.compiler import is_dynamo_compiling

from transfuse import dispatch, plain, settings
from transfuse import padding as paddings
from transfuse.backends import Backend
from transfuse.backends.base import Executable, prepared
from transfuse.chain import Chain
from transfuse.elements import float32_on_cuda
from transfuse.errors import Declined
from transfuse.geometry import integer, per_axis
from transfuse.padding import Padding
from transfuse.problem import AXES, Problem, expect_in_torch
from transfuse.recorded import Learned, Recorded
from transfuse.remembered import Checked, Given, Recent
from transfuse.stages import Number
from transfuse.stages.norm import Norm
from transfuse.tensors import (
    Precision,
    any_autocast,
    apart,
    autocast,
    autocasts,
    dense,
    describe,
    element,
    expect_channels,
    expect_shape,
    expect_tensor,
    in_bounds,
    not_for_inference,
    same_type_and_place,
    span,
    updatable,
    without_autocast,
    writable,
)

Size = int | Sequence[int]


def call(
    chain: Chain,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, Number] | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    output_padding: Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    output_size: Sequence[int] | None = None,
    out: Tensor | None = None,
    backend: str | None = None,
    precision: Precision = "auto",
) -> Tensor:
    """A torch-style call: sizes come from the tensors, and x may lack the batch axis.

    ``output_size`` is the convolution's, ``scalars`` are the numbers of a chain that names some.
    Under autocast tensors are cast as torch's convolutions cast them, unless there is an ``out``:
    torch casts no such call either.
    """
    given = (
        chain, stride, padding, output_padding, dilation, groups, output_size, backend, precision,
    )  # fmt: skip
    if not is_dynamo_compiling():
        recent = _checked.get(id(weight))
        if type(recent) is Recent and all(map(is_, recent.given, given)):
            tensors = _tensors(x, weight, operands, out)
            if recent.alike(scalars, tensors, out is not None):
                return _run(recent, tensors, operands, out, "weight")
    plain.not_at_exit()
    if any_autocast() and autocasts(x):
        if out is None:
            x, weight = autocast(x), autocast(weight)
            # What may be float32 beside 16 bits stays so, as a norm's operands do in torch.
            operands = {k: v if k in chain.mixes else autocast(v) for k, v in operands.items()}
        with torch.autocast(x.device.type, enabled=False):
            return call(
                chain, x, weight, operands, scalars=scalars, stride=stride, padding=padding,
                output_padding=output_padding, dilation=dilation, groups=groups,
                output_size=output_size, out=out, backend=backend, precision=precision,
            )  # fmt: skip
    unbatched = isinstance(x, Tensor) and x.dim() == chain.conv.rank + 1
    whole, into = x, out
    if unbatched:
        whole, into = x.unsqueeze(0), out.unsqueeze(0) if isinstance(out, Tensor) else out
    numbers: tuple[object, ...] = (stride, padding, output_padding, dilation, groups)
    if output_size is not None:
        numbers += (output_size,)
    if scalars:
        exact = exactly(*numbers, *scalars.values())
        what = exact and (chain, exact, tuple(scalars), unbatched, precision)
    else:
        exact = exactly(*numbers)
        what = exact and (chain, exact, unbatched, precision)

    def prepare(exotic: bool) -> tuple[Chain, Problem]:
        bound = chain.bind(scalars) if scalars else chain
        options = {"stride": stride, "dilation": dilation, "output_padding": output_padding}
        problem = _sized(
            bound, x, weight, operands, out, options, padding, output_size, groups, precision,
            exotic,
        )  # fmt: skip
        fitted = bound.fitted({k: tuple(v.shape) for k, v in operands.items()})
        if unbatched and out is not None and out.dim() != len(fitted.result(problem)) - 1:
            raise RuntimeError(
                f"expected output of {len(fitted.result(problem)) - 1} axes, unbatched like the "
                f"input, but got {list(out.shape)}"
            )
        return fitted, problem

    if not unbatched:
        return _compute(what, prepare, x, weight, operands, out, backend, "weight", given, scalars)
    y = _compute(what, prepare, whole, weight, operands, into, backend)
    return y.squeeze(0) if out is None else out


def _sized(
    chain: Chain,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    options: Mapping[str, Size],
    padding: Padding,
    output_size: Sequence[int] | None,
    groups: int,
    precision: str,
    exotic: bool,
) -> Problem:
    """The problem that tensors and options make.

    Types are looked at before sizes, as torch reads all arguments before it computes.
    """
    named = {"input": x, "weight": weight, **operands}
    for name, tensor in named.items():
        expect_tensor(name, tensor)
    if out is not None:
        expect_tensor("out", out)
    for name, size in options.items():
        for each in size if isinstance(size, list | tuple) else (size,):
            integer(name, each)
    padded, wanted = paddings.read(padding), paddings.sizes(output_size)
    groups = integer("groups", groups)
    for name, tensor in named.items():
        dense(name, tensor)
    _expect_axes(chain, x, weight)
    if chain.conv.either_kernel:
        channels = next(iter(operands.values())).numel()
        groups = kernel_groups(weight, channels, groups)
    rank = chain.conv.rank
    problem = sized(
        chain, x, weight, options["stride"], paddings.integers(padded, rank),
        options["output_padding"], options["dilation"], groups, precision, exotic,
    )  # fmt: skip
    batched = x.dim() == rank + 2
    expect_in_torch(problem)
    if wanted is None:
        problem = paddings.padded(problem, padded)
    else:
        problem = paddings.sized(problem, padded, wanted, chain.met(problem), batched)
    if not batched and any(isinstance(s, Norm) and s.over == "batch" for s in chain.stages):
        raise ValueError(f"batch_norm: expected {rank + 2}D input (got {rank + 1}D input)")
    return problem


def sized(
    chain: Chain,
    x: Tensor,
    weight: Tensor,
    stride: Size,
    padding: Size,
    output_padding: Size,
    dilation: Size,
    groups: int,
    precision: str,
    exotic: bool,
) -> Problem:
    """The problem that tensors make with options as a Problem has them."""
    rank = chain.conv.rank
    _expect_axes(chain, x, weight)
    if x.dim() == rank + 1:
        x = x.unsqueeze(0)
    return Problem(
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=weight.shape[1] * groups,
        spatial=tuple(x.shape[2:]),
        kernel=tuple(weight.shape[2:]),
        stride=per_axis("stride", stride, rank),
        padding=per_axis("padding", padding, rank),
        dilation=per_axis("dilation", dilation, rank),
        output_padding=per_axis("output_padding", output_padding, rank),
        groups=groups,
        **describe(x, precision, exotic),
    )


def _expect_axes(chain: Chain, x: Tensor, weight: Tensor) -> None:
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
    dims = list(x.shape) if x.dim() == rank + 2 else [1, *x.shape]
    if dims[1] != weight.shape[0]:
        raise RuntimeError(
            f"{conv}: weight of size {list(weight.shape)} expects an input of {weight.shape[0]} "
            f"channels, but got {dims[1]} in {dims}"
        )


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
    return compute(given, lambda exotic: given, x, weight, operands, out, backend)


_checked: dict[Hashable, Checked] = {}
"""Calls by everything their checks looked at. The same again needs no check: it would pass.

The last call with each weight stands under the weight's id as well: it is looked for there first.
"""
MOST = 4096
"""Entries kept; one more, and all are forgotten."""
Kept = TypeVar("Kept")

Prepare = Callable[[bool], tuple[Chain, Problem]]
"""What a call computes; asked whether it is an exotic one, kept from the fused backends."""


def compute(
    what: Hashable,
    prepare: Prepare,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    backend: str | None,
    kernel: str = "weight",
) -> Tensor:
    """Check a batched call, unless the same one has passed before, then run it; no autocast.

    ``what`` stands for all that ``prepare`` looks at beside the tensors; empty, and the call is
    checked every time. So is, whatever came before, that the output shares no memory with inputs.
    ``kernel``: the caller's name for the weight, for messages.
    """
    plain.not_at_exit()
    with without_autocast(x):
        return _compute(what, prepare, x, weight, operands, out, backend, kernel)


@plain.unbroken
def _compute(
    what: Hashable,
    prepare: Prepare,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    backend: str | None,
    kernel: str = "weight",
    given: Given | None = None,
    scalars: Mapping[str, Number] | None = None,
    inside: bool = False,
) -> Tensor:
    """``inside``: torch's dispatcher has the call already, and it is now to be run."""
    tensors = _tensors(x, weight, operands, out)
    if out is not None:
        not_for_inference(out)
    why = plain.why_not(tensors)
    if why:
        with plain.unrecorded():
            chain, problem = prepare(True)
            whole = out is None and not inside and plain.one_operation(tensors)
            if whole and dispatch.fuses(backend):
                expect(chain, problem, x, weight, operands, out, kernel)
                if dispatch.explaining():
                    dispatch.choose(chain, problem, backend)
                return Recorded(chain, problem, backend)(x, weight, operands)
            chosen = _check(chain, problem, x, weight, operands, out, backend, why, kernel)
        return chosen.prepare(chain, problem)(x, weight, operands, out)
    profiled = out is None and not inside and _profiler_enabled()
    seen = facts((what, profiled), tensors, operands, backend) if what else None
    try:
        found = _checked.get(seen)
    except TypeError:  # not hashable
        seen, found = None, None
    if found is None:
        chain, problem = prepare(False)
        chosen = _check(chain, problem, x, weight, operands, out, backend, why, kernel)
        learns = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
        if profiled and not (learns and chosen.differentiable):
            run: Executable = Recorded(chain, problem, backend)
        else:
            run = prepared(chosen, chain, problem)
            if learns and not inside and not chosen.differentiable:
                run = Learned(chain, problem, backend, run)
        spans = tuple(map(span, tensors))
        found = Checked(chain, problem, chosen, run, backend, spans, chain.updates)
        if seen:
            keep(_checked, seen, found)
    y = _run(found, tensors, operands, out, kernel)
    if seen and given and not profiled and _checked.get(seen) is found:  # nobody has declined
        recent = found.repeatable(given, scalars, tensors, operands, out)
        if recent is not None:
            keep(_checked, id(weight), recent)
    return y


def run_inside(
    what: Hashable,
    prepare: Prepare,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    backend: str | None,
) -> Tensor:
    """Check and run a batched call that torch's dispatcher has come to, as ``compute`` does."""
    plain.not_at_exit()
    with without_autocast(x):
        return _compute(what, prepare, x, weight, operands, None, backend, inside=True)


def _tensors(
    x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None
) -> tuple[Tensor, ...]:
    """All tensors of a call, the output last."""
    if out is not None:
        return (x, weight, *operands.values(), out)
    return (x, weight, *operands.values()) if operands else (x, weight)


def keep(kept: dict[Hashable, Kept], key: Hashable, found: Kept) -> None:
    """Remember one more."""
    if len(kept) >= MOST and key not in kept:
        kept.clear()
    kept[key] = found


def facts(
    what: Hashable, tensors: Sequence[Tensor], names: Iterable[str], backend: str | None
) -> Hashable:
    """Everything the checks look at, and the choice of a backend.

    None for what has no key, or is to be explained.
    """
    if not what or dispatch.explaining():
        return None
    found = [what, backend or settings.backend(), dispatch.BACKENDS, torch.is_grad_enabled()]
    found += names
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or tensor.layout is not _STRIDED:
            return None
        found += (
            tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad
        )  # fmt: skip
    x = tensors[0]
    if x.is_cuda and x.dtype is torch.float32:
        found.append(float32_on_cuda())
    return tuple(found)


_STRIDED = torch.strided


def _run(
    found: Checked,
    tensors: Sequence[Tensor],
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    kernel: str,
) -> Tensor:
    """Run a call that passed its checks. Whether memory is there and its own is seen each time."""
    in_bounds(tensors, found.spans, kernel, operands)
    x, weight = tensors[0], tensors[1]
    if found.updates:
        updatable(found.updates, {"input": x, kernel: weight, **operands})
    if out is not None:
        apart(out, tensors[:-1], found.spans, kernel, operands)
    try:
        y = found.run(x, weight, operands, out)
    except Declined:
        y = _elsewhere(found, x, weight, operands, out)
    if out is not None:
        increment_version(out)
    return y


def _elsewhere(
    found: Checked, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None
) -> Tensor:
    """Run a call on another backend: the one chosen has found out only now that it cannot."""
    _checked.clear()  # one of them was chosen by a verdict that does not hold any more
    other = dispatch.choose(found.chain, found.problem, found.asked)
    if other is found.backend:
        raise
    run = prepared(other, found.chain, found.problem)
    if isinstance(found.run, Learned) and not other.differentiable:
        run = found.run.by(run)
    try:
        return run(x, weight, operands, out)
    except Declined:
        return _elsewhere(replace(found, backend=other), x, weight, operands, out)


def exactly(*numbers: object) -> tuple[Hashable, ...]:
    """A key for numbers, words, lists of integers and lists of such lists; empty for others.

    It is the same for the same values alone.

    By themselves 1 and 1.0 and True would be one key, and so would 0.0 and -0.0: a float goes by
    its bits, and what is neither that nor an integer has no key. Nor has what is being traced.
    """
    if is_dynamo_compiling():
        return ()
    if {*map(type, numbers)} == _INTEGER:
        return numbers
    key: list[Hashable] = []
    for each in numbers:
        if type(each) is int:
            key.append(each)
        elif type(each) is float:
            key.append(_BITS(each))
        elif type(each) is str:
            key.append(each)
        elif type(each) in _LISTS:
            part: tuple[object, ...] = tuple(each)  # type: ignore[arg-type]
            kinds = {*map(type, part)}
            if not kinds <= _INTEGER:
                part = exactly(*part) if kinds <= _LISTS else ()
                if not part:
                    return ()
            key.append(part)
        else:
            return ()
    return tuple(key)


_INTEGER, _LISTS, _BITS = {int}, {list, tuple, torch.Size}, Struct("d").pack


def _check(
    chain: Chain,
    problem: Problem,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    backend: str | None,
    torch_only: str,
    kernel: str,
) -> Backend:
    """The backend for tensors that fit the problem; ``torch_only``: why none that fuses may be."""
    expect(chain, problem, x, weight, operands, out, kernel)
    return dispatch.choose(chain, problem, backend, torch_only)


def expect(
    chain: Chain,
    problem: Problem,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None = None,
    kernel: str = "weight",
) -> None:
    """Refuse tensors that do not fit the problem."""
    named = {"input": x, kernel: weight, **operands}
    same_type_and_place(named, chain.mixes)
    result = chain.result(problem)
    expect_shape("input", x, problem.input.dims)
    expect_shape(kernel, weight, problem.weight)
    for name, dims in chain.dims(problem):
        if name not in operands:
            raise TypeError(f"nothing is given under the name {name!r}, used in {chain}")
        if len(dims) == 1:
            expect_channels(name, operands[name], dims[0], flat=name == chain.conv.bias)
        else:
            expect_shape(name, operands[name], dims)
    used = [name for stage in chain.stages for name in stage.operands]
    for name in chain.updates:
        if used.count(name) > 1:
            raise RuntimeError(f"{name} is written to by one stage and used by another, in {chain}")
    element(x, "input")
    if out is not None:
        writable(out, result, named)
    if torch.is_grad_enabled():
        for stage in chain.stages:
            for name in stage.without_gradient:
                if operands[name].requires_grad:
                    raise RuntimeError(f"{name} requires grad, and {stage} has no gradient by it")
