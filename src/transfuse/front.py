"""The way in: tensors are checked against the problem, a backend is chosen, and it runs.

Every check comes before anything is written. Exceptions are torch's for the same mistake. A call
that passed is remembered by all that its checks looked at, and its like is not checked again.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain as concat
from struct import Struct
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from transfuse import dispatch, settings
from transfuse.backends import Backend
from transfuse.chain import Chain
from transfuse.elements import BY_DTYPE, ELEMENTS, float32_on_cuda
from transfuse.geometry import integer, per_axis
from transfuse.problem import AXES, Problem, Shape
from transfuse.stages import Number
from transfuse.stages.whole import BatchNorm

Size = int | Sequence[int]
Precision = Literal["auto", "ieee", "tf32"]
"""How float32 is multiplied; ``auto``: on CUDA as torch's convolutions are set to, else ieee."""


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
    y = _computed(found, whole, weight, operands, into)
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
        _tensor(name, tensor)
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
    if not batched and out is not None and _tensor("out", out).dim() != rank + 1:
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
    return _computed(found, x, weight, operands, out)


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
) -> Tensor:
    if out is not None:
        _apart(out, (x, weight, *operands.values()), found.spans, operands)
    return found.backend.run(found.chain, found.problem, x, weight, operands, out)


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
    _same_type_and_place(named)
    _expect_shape("input", x, problem.input.dims)
    _expect_shape("weight", weight, problem.weight)
    for name, channels in chain.channels(problem):
        if name not in operands:
            raise TypeError(f"nothing is given under the name {name!r}, used in {chain}")
        _expect_channels(name, operands[name], channels, flat=name == chain.conv.bias)
    if out is not None:
        _writable(out, result, named)
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in named.values())
    chosen = dispatch.choose(chain, problem, backend, gradients)
    spans = tuple(map(_span, named.values() if out is None else (*named.values(), out)))
    return Checked(chain, problem, chosen, spans)


def describe(x: Tensor, precision: str = "auto") -> dict[str, Any]:
    """The part of a Problem that a tensor tells: element type, layout, device, precision."""
    return {
        "dtype": element(x, "input"),
        "layout": _layout(x),
        "device": _device(x.device),
        "precision": _precision(x, precision),
    }


def _precision(x: Tensor, wanted: str) -> str:
    if wanted not in get_args(Precision):
        known = ", ".join(get_args(Precision))
        raise ValueError(f"unknown precision {wanted!r}; known: {known}")
    if wanted != "auto":
        return wanted
    return float32_on_cuda() if x.is_cuda and x.dtype == torch.float32 else "ieee"


def element(tensor: Tensor, name: str) -> str:
    """The name of a tensor's element type; others than the four are refused."""
    if tensor.layout != torch.strided:
        raise RuntimeError(f"{name} must be a dense tensor, but its layout is {tensor.layout}")
    if tensor.dtype not in BY_DTYPE:
        known = ", ".join(f"{each.dtype}" for each in ELEMENTS.values())
        raise NotImplementedError(f"{name} has type {tensor.dtype}; implemented: {known}")
    return BY_DTYPE[tensor.dtype].name


def _layout(x: Tensor) -> str:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if x.is_contiguous():
        return "contiguous"
    return "channels_last" if last and x.is_contiguous(memory_format=last) else "strided"


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"cuda:sm{major}{minor}"
    return device.type


def _same_type_and_place(named: Mapping[str, Tensor]) -> None:
    first = named["input"]
    for name, tensor in named.items():
        element(tensor, name)
        if tensor.dtype != first.dtype:
            raise RuntimeError(
                f"input and {name} must have the same type, "
                f"but got {first.dtype} and {tensor.dtype}"
            )
        if tensor.device != first.device:
            raise RuntimeError(
                f"input and {name} must be on the same device, "
                f"but got {first.device} and {tensor.device}"
            )


def _expect_shape(name: str, tensor: Tensor, dims: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != dims:
        raise RuntimeError(f"expected {name} of shape {list(dims)}, but got {list(tensor.shape)}")


def _expect_channels(name: str, tensor: Tensor, channels: int, flat: bool) -> None:
    """One value per channel: ``(C,)`` and, unless ``flat``, ``(C, 1, …)`` or ``(1, C, 1, …)``."""
    axes = [size for size in tensor.shape if size != 1] or [1]
    at = next((i for i, size in enumerate(tensor.shape) if size != 1), 0)
    if axes != [channels] or at > 1 or tensor.dim() == 0 or (flat and tensor.dim() != 1):
        raise RuntimeError(
            f"expected {name} to hold one value for each of {channels} channels, "
            f"such as shape [{channels}], but got {list(tensor.shape)}"
        )


def _tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, not {type(value).__name__}")
    return value


def _writable(out: Tensor, shape: Shape, inputs: Mapping[str, Tensor]) -> None:
    x = inputs["input"]
    _tensor("out", out)
    if tuple(out.shape) != shape.dims:
        raise RuntimeError(
            f"expected output of shape {list(shape.dims)}, but got {list(out.shape)}"
        )
    if out.dtype != x.dtype:
        raise RuntimeError(f"expected output of type {x.dtype}, but got {out.dtype}")
    if out.device != x.device:
        raise RuntimeError(f"expected output on {x.device}, but got {out.device}")
    if torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in concat(inputs.values(), (out,))
    ):
        raise RuntimeError(
            "out= does not support automatic differentiation, but a tensor requires grad"
        )
    if _may_overlap_itself(out):
        raise RuntimeError(
            f"output of strides {list(out.stride())} may hold two elements in one place; "
            "pass a tensor of its own memory"
        )


def _may_overlap_itself(out: Tensor) -> bool:
    """Whether any stride is within the reach of the smaller ones: sure for every sane layout."""
    reach = 0
    for stride, size in sorted(zip(out.stride(), out.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def _span(tensor: Tensor) -> int:
    if not tensor.numel():
        return 0
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


def _apart(
    out: Tensor, tensors: Sequence[Tensor], spans: Sequence[int], names: Iterable[str]
) -> None:
    """Refuse an output that shares memory with an input; spans that do not meet need no search."""
    first = out.data_ptr()
    end = first + spans[-1]
    for i, tensor in enumerate(tensors):
        start = tensor.data_ptr()
        if start < end and first < start + spans[i] and _share_memory(out, tensor):
            name = ("input", "weight", *names)[i]
            raise RuntimeError(f"output shares memory with {name}; pass a tensor of its own memory")


def _share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have an element in common; views that interleave do not."""
    if a.device != b.device or a.device.type == "meta" or not (a.numel() and b.numel()):
        return False
    try:
        return bool(np.shares_memory(_Footprint(a), _Footprint(b), max_work=100_000))
    except np.exceptions.TooHardError:
        return True


class _Footprint:
    """A tensor's addresses to NumPy, wherever the memory is; nothing is read."""

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), True),
            "strides": tuple(stride * size for stride in tensor.stride()),
        }
