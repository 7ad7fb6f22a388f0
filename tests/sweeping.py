"""Sweeps by their definition, in torch and float64: what every backend is compared with."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import ceil

import torch
from torch import Tensor

from transfuse.maths.primitives import InTorch
from transfuse.sweeps import Each, Fold, Slide, Sweep, View


def expected(sweep: Sweep, slots: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results of a sweep over these tensors, in float64; nothing is written."""
    if isinstance(sweep, Each):
        named = _named(sweep.values, slots)
        return (_mapped(sweep.expr, named, sweep.out.sizes),)
    inner = _mapped(sweep.before, _named(sweep.values, slots), sweep.values[0][1].sizes)
    others = _named(sweep.others, slots)
    if isinstance(sweep, Slide):
        found = _slid(sweep, inner, others)
        return (_mapped(sweep.after, {"x": found, **others}, sweep.out.sizes),)
    results = _folded(sweep, inner)
    if len(results) > 1:
        return results
    return (_mapped(sweep.after, {"x": results[0], **others}, sweep.outs[0].sizes),)


def run(sweep: Sweep, slots: Sequence[Tensor]) -> None:
    """A sweep done by its definition."""
    outs = sweep.outs if isinstance(sweep, Fold) else (sweep.out,)
    for out, found in zip(outs, expected(sweep, slots), strict=True):
        at(out, slots).copy_(found)


def at(view: View, slots: Sequence[Tensor]) -> Tensor:
    """The memory of a slot as a view has it, counted from the slot's first element."""
    memory = slots[view.slot]
    return memory.as_strided(view.sizes, view.strides, memory.storage_offset() + view.offset)


def _named(values: Sequence[tuple[str, View]], slots: Sequence[Tensor]) -> dict[str, Tensor]:
    return {name: at(view, slots).double() for name, view in values}


def _mapped(expr: object, named: Mapping[str, Tensor], sizes: Sequence[int]) -> Tensor:
    like = torch.zeros(tuple(sizes), dtype=torch.float64)
    return InTorch(expr)(dict(named), like).expand(tuple(sizes))  # type: ignore[arg-type]


def _folded(fold: Fold, v: Tensor) -> tuple[Tensor, ...]:
    kept = len(fold.outs[0].sizes)
    flat = v.reshape(*v.shape[:kept], -1)
    if fold.folding == "moments":
        return flat.mean(-1), flat.var(-1, correction=0)
    if fold.folding == "exponentials":
        top = flat.amax(-1)
        shift = torch.where(top == -torch.inf, 0.0, top)
        return top, (flat - shift[..., None]).exp().sum(-1)
    one = {
        "sum": lambda: flat.sum(-1),
        "mean": lambda: flat.mean(-1),
        "max": lambda: flat.amax(-1),
        "min": lambda: flat.amin(-1),
        "logsumexp": lambda: flat.logsumexp(-1),
        "squares": lambda: flat.square().mean(-1),
    }
    return (one[fold.folding](),)


def _slid(slide: Slide, v: Tensor, others: Mapping[str, Tensor]) -> Tensor:
    n, c, *outputs = slide.out.sizes
    found = torch.empty(n, c, *outputs, dtype=torch.float64)
    inputs = v.shape[2:]
    for o in product(*map(range, outputs)):
        if slide.adaptive:
            each = [
                range(k * size // out, ceil((k + 1) * size / out))
                for k, size, out in zip(o, inputs, outputs, strict=True)
            ]
            counted = 1
            for some in each:
                counted *= len(some)
        else:
            each, counted = [], 1
            options = zip(
                o, inputs, slide.kernel, slide.stride, slide.padding, slide.dilation, strict=True
            )
            for k, size, kernel, stride, padding, dilation in options:
                first = k * stride - padding
                reach = [first + i * dilation for i in range(kernel)]
                inside = [i for i in reach if 0 <= i < size]
                each.append(inside)
                known = [i for i in reach if i < size + padding]
                counted *= len(known) if slide.counts_padding else len(inside)
        window = v
        for axis, some in enumerate(each, 2):
            window = window.index_select(axis, torch.tensor(list(some), dtype=torch.long))
        window = window.flatten(2)
        where = (slice(None), slice(None), *o)
        if slide.folding == "sum":
            found[where] = window.sum(2)
        elif slide.folding == "mean":
            found[where] = window.sum(2) / (slide.divisor or counted)
        elif slide.folding == "sign":
            negative = others["sign"][where] < 0
            found[where] = torch.where(negative, window.amin(2), window.amax(2))
        elif window.shape[2]:
            found[where] = window.amax(2)
        else:
            found[where] = -torch.inf
    return found
