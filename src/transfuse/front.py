"""The way in: tensors are checked against the problem, a backend is chosen, and it runs.

Every check comes before anything is written. Exceptions are torch's for the same mistake. A call
that passed is remembered by all that its checks looked at, and its like is not checked again.

Where torch is to know of the call, it is made as one operation of torch's dispatcher, ``ops``: in
``torch.compile`` and other traces, under dispatch modes and the profiler. For gradients alone it is
a node of autograd (``recorded``). Calls that ``plain`` keeps from the dispatcher, too, are checked
each time and run as torch operations.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch._C._autograd import _profiler_enabled
from torch.autograd.graph import increment_version
from torch.compiler import is_dynamo_compiling

from transfuse import dispatch, open_numbers, plain
from transfuse.backends import Backend
from transfuse.backends.base import Executable, prepared
from transfuse.chain import Chain
from transfuse.checks import Size, expect, made
from transfuse.errors import Declined
from transfuse.padding import Padding
from transfuse.problem import Problem
from transfuse.recorded import Learned, Recorded
from transfuse.remembered import CallOptions, Checked, Recent, exactly, facts, keep
from transfuse.stages import Number
from transfuse.tensors import (
    WHOLE,
    Precision,
    any_autocast,
    apart,
    autocast,
    autocasts,
    in_bounds,
    not_for_inference,
    span,
    updatable,
    without_autocast,
)


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
    site: object = None,
) -> Tensor:
    """A torch-style call: sizes come from the tensors, and x may lack the batch axis.

    ``output_size`` is the convolution's, ``scalars`` are the numbers of a chain that names some.
    ``site``: what makes the same call again and again, with weights that may be new each time.
    Under autocast tensors are cast as torch's convolutions cast them, unless there is an ``out``:
    torch casts no such call either.
    """
    if not is_dynamo_compiling():
        recent = _checked.get(id(weight if site is None else site))
        if type(recent) is Recent:
            # One by one: to make a tuple of them and compare that takes three times as long.
            same, a, b, c, d, e, f, g, h = recent.given
            if (
                same is chain and a is stride and b is padding and c is output_padding
                and d is dilation and e is groups and f is output_size and g is backend
                and h is precision
            ):  # fmt: skip
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
                output_size=output_size, out=out, backend=backend, precision=precision, site=site,
            )  # fmt: skip
    if scalars and is_dynamo_compiling():
        scalars, opened = open_numbers.of_scalars(chain, x, scalars)
        operands = {**operands, **opened}
    operands = _alike(chain, x, operands)
    unbatched = isinstance(x, Tensor) and x.dim() == chain.conv.rank + 1
    whole, into = x, out
    if unbatched:
        whole, into = x.unsqueeze(0), out.unsqueeze(0) if isinstance(out, Tensor) else out
        operands = _with_samples(chain, operands)
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
        problem = made(
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
        given = (
            chain, stride, padding, output_padding, dilation, groups, output_size, backend,
            precision,
        )  # fmt: skip
        known = given, scalars, weight if site is None else site
        return _compute(what, prepare, x, weight, operands, out, backend, "weight", known)
    y = _compute(what, prepare, whole, weight, operands, into, backend)
    return y.squeeze(0) if out is None else out


def _alike(chain: Chain, x: Tensor, operands: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Operands of other types as torch's arithmetic takes them, in the type of the values.

    These are masks, integers, and tensors without axes, which are like numbers to it. What norms
    and the convolution read must be of their type in torch, too.
    """
    if not operands or not (isinstance(x, Tensor) and x.is_floating_point()):
        return operands
    tensors = ((k, v) for k, v in operands.items() if isinstance(v, Tensor) and v.dtype != x.dtype)
    taken = {k for k, v in tensors if v.dtype in WHOLE or not v.dim()}
    if not (taken and (taken := taken - chain.mixes - {chain.conv.bias})):
        return operands
    return {k: v.to(x.dtype) if k in taken else v for k, v in operands.items()}


def _with_samples(chain: Chain, operands: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The operands of an unbatched call, with a samples' axis where stages ask for one."""
    lacking = {
        name
        for stage in chain.stages
        for name in stage.sampled
        if isinstance(found := operands.get(name), Tensor) and found.dim() == chain.conv.rank + 1
    }
    return {k: v.unsqueeze(0) if k in lacking else v for k, v in operands.items()}


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

The last call with each weight, or of each site, stands under its id as well: it is looked for there
first.
"""
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
    known: tuple[CallOptions, Mapping[str, Number] | None, object] | None = None,
    inside: bool = False,
) -> Tensor:
    """``known``: the call's arguments, and by what to remember it.

    ``inside``: torch's dispatcher has the call already, and it is now to be run.
    """
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
                run = Learned.of(chain, problem, backend, run)
        spans = tuple(map(span, tensors))
        found = Checked(chain, problem, chosen, run, backend, spans, chain.updates)
        if seen:
            keep(_checked, seen, found)
    # By the dispatcher calls come with new objects: what runs sooner is looked up here.
    settled = found.settle(tensors, operands, out) if seen and inside else None
    y = _run(found, tensors, operands, out, kernel, settled and settled[1])
    if seen and known and not profiled and _checked.get(seen) is found:  # nobody has declined
        given, scalars, by = known
        recent = found.repeatable(given, scalars, tensors, operands, out)
        if recent is not None:
            keep(_checked, id(by), recent)
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


def _run(
    found: Checked,
    tensors: Sequence[Tensor],
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    kernel: str,
    sooner: Executable | None = None,
) -> Tensor:
    """Run a call that passed its checks. Whether memory is there and its own is seen each time.

    ``sooner``: what runs on tensors that lie as these do.
    """
    in_bounds(tensors, found.spans, kernel, operands)
    x, weight = tensors[0], tensors[1]
    if found.updates:
        updatable(found.updates, {"input": x, kernel: weight, **operands}, found.spans)
    if out is not None:
        apart(out, tensors[:-1], found.spans, kernel, operands)
    try:
        y = (sooner or found.run)(x, weight, operands, out)
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
