"""What a call asks of its tensors, and what they tell of its problem.

Exceptions are torch's for the same mistake.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from itertools import chain as concat
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from transfuse.elements import BY_DTYPE, ELEMENTS, float32_on_cuda

Precision = Literal["auto", "ieee", "tf32"]
"""How float32 is multiplied; ``auto``: on CUDA as torch's convolutions are set to, else ieee."""

WHOLE = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
"""Types that arithmetic with floating point converts to that, whatever their width."""


def describe(x: Tensor, precision: str = "auto", exotic: bool = False) -> dict[str, Any]:
    """The part of a Problem that a tensor tells: element type, layout, device, precision.

    An element type that is none of the four is refused last of all, by ``element``: torch, too,
    says what else is wrong first. An ``exotic`` tensor may have no layout, nor its device be here.
    """
    dense("input", x)
    return {
        "dtype": BY_DTYPE.get(x.dtype, ELEMENTS["fp32"]).name,
        "layout": "strided" if exotic else layout(x),
        "device": _kind(x) if exotic else _device(x.device),
        "precision": _precision(x, precision),
    }


def _precision(x: Tensor, wanted: str) -> str:
    if wanted not in get_args(Precision):
        known = ", ".join(get_args(Precision))
        raise ValueError(f"unknown precision {wanted!r}; known: {known}")
    if wanted != "auto":
        return wanted
    return float32_on_cuda() if x.is_cuda and x.dtype == torch.float32 else "ieee"


any_autocast = torch._C._is_any_autocast_enabled
"""Whether ``autocasts`` is worth asking; not in a trace of ``torch.compile``."""


def autocasts(x: object) -> bool:
    """Whether torch is to cast what operations on the device of ``x`` are given."""
    if not isinstance(x, Tensor):
        return False
    device = x.device.type
    return _has_autocast(device) and torch.is_autocast_enabled(device)


def _has_autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device)


# torch.compile cannot trace that in each version of torch; it never changes (see float32_on_cuda).
_has_autocast._dynamo_marked_constant = True  # type: ignore[attr-defined]


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Where torch casts nothing that operations on the device of ``x`` are given."""
    if any_autocast() and autocasts(x):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()


def autocast(tensor: Tensor) -> Tensor:
    """A tensor as torch's convolutions take it under autocast: float64 stays what it is."""
    if autocasts(tensor) and tensor.is_floating_point() and tensor.dtype != torch.float64:
        return tensor.to(torch.get_autocast_dtype(tensor.device.type))
    return tensor


def dense(name: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided:
        raise RuntimeError(f"{name} must be a dense tensor, but its layout is {tensor.layout}")


def element(tensor: Tensor, name: str) -> str:
    """The name of a tensor's element type; others than the four are refused."""
    if tensor.dtype not in BY_DTYPE:
        known = ", ".join(f"{each.dtype}" for each in ELEMENTS.values())
        raise NotImplementedError(f"{name} has type {tensor.dtype}; implemented: {known}")
    return BY_DTYPE[tensor.dtype].name


def layout(x: Tensor) -> str:
    """The name of the order in which a tensor lies in memory."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if x.is_contiguous():
        return "contiguous"
    return "channels_last" if last and x.is_contiguous(memory_format=last) else "strided"


def _kind(x: Tensor) -> str:
    """The kind of device of any tensor; a fake one says "meta" while shapes are asked for."""
    device: torch.device = getattr(x, "fake_device", x.device)
    return device.type


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"cuda:sm{major}{minor}"
    return device.type


def same_type_and_place(named: Mapping[str, Tensor], mixes: Set[str] = frozenset()) -> None:
    """``mixes``: those that may be float32 beside 16 bits."""
    first = named["input"]
    for name, tensor in named.items():
        dense(name, tensor)
        mixed = name in mixes and tensor.dtype == torch.float32 and first.element_size() == 2
        if tensor.dtype != first.dtype and not mixed:
            raise RuntimeError(
                f"input and {name} must have the same type, "
                f"but got {first.dtype} and {tensor.dtype}"
            )
        if tensor.device != first.device:
            raise RuntimeError(
                f"input and {name} must be on the same device, "
                f"but got {first.device} and {tensor.device}"
            )


def expect_shape(name: str, tensor: Tensor, dims: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != dims:
        raise RuntimeError(f"expected {name} of shape {list(dims)}, but got {list(tensor.shape)}")


def expect_channels(name: str, tensor: Tensor, channels: int, flat: bool) -> None:
    """One value per channel: ``(C,)`` and, unless ``flat``, ``(C, 1, …)`` or ``(1, C, 1, …)``."""
    axes = [size for size in tensor.shape if size != 1] or [1]
    at = next((i for i, size in enumerate(tensor.shape) if size != 1), 0)
    if axes != [channels] or at > 1 or tensor.dim() == 0 or (flat and tensor.dim() != 1):
        raise RuntimeError(
            f"expected {name} to hold one value for each of {channels} channels, "
            f"such as shape [{channels}], but got {list(tensor.shape)}"
        )


def expect_tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, not {type(value).__name__}")
    return value


def writable(out: Tensor, dims: tuple[int, ...], inputs: Mapping[str, Tensor]) -> None:
    x = inputs["input"]
    expect_tensor("out", out)
    if tuple(out.shape) != dims:
        raise RuntimeError(f"expected output of shape {list(dims)}, but got {list(out.shape)}")
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


def not_for_inference(out: object) -> None:
    """Refuse an inference tensor outside inference mode, in torch's words."""
    inference = isinstance(out, Tensor) and out.is_inference()
    if inference and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed."
            "You can make a clone to get a normal tensor before doing inplace update."
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


def span(tensor: Tensor) -> int:
    if not tensor.numel():
        return 0
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


def in_bounds(
    tensors: Sequence[Tensor], spans: Sequence[int], kernel: str, names: Iterable[str]
) -> None:
    """Refuse tensors whose storage has been made too small for them, or freed."""
    for tensor, span in zip(tensors, spans):  # noqa: B905 `strict` takes as long as a tensor does
        first = tensor.storage_offset()
        end = first * tensor.itemsize + span if first else span
        if end > tensor.untyped_storage().nbytes() and span:
            which = next(i for i, each in enumerate(tensors) if each is tensor)
            raise RuntimeError(
                f"{('input', kernel, *names, 'output')[which]} of {list(tensor.shape)} needs a "
                f"storage of {end} bytes, "
                f"but it has been resized to {tensor.untyped_storage().nbytes()}"
            )


def apart(
    out: Tensor,
    tensors: Sequence[Tensor],
    spans: Sequence[int],
    kernel: str,
    names: Iterable[str],
) -> None:
    """Refuse an output that shares memory with an input; spans that do not meet need no search."""
    first = out.data_ptr()
    end = first + spans[-1]
    for i, tensor in enumerate(tensors):
        start = tensor.data_ptr()
        if start < end and first < start + spans[i] and _share_memory(out, tensor):
            name = ("input", kernel, *names)[i]
            raise RuntimeError(f"output shares memory with {name}; pass a tensor of its own memory")


def updatable(names: Iterable[str], tensors: Mapping[str, Tensor], spans: Sequence[int]) -> None:
    """Refuse to write to an operand whose memory is not its own, or that has a gradient."""
    starts = [tensor.data_ptr() for tensor in tensors.values()]
    sizes = dict(zip(tensors, spans, strict=False))
    for name in names:
        tensor = tensors[name]
        if tensor.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(f"{name} is written to and cannot require grad")
        if _may_overlap_itself(tensor):
            raise RuntimeError(
                f"{name} of strides {list(tensor.stride())} is written to and may hold two "
                "elements in one place; pass a tensor of its own memory"
            )
        first, size = tensor.data_ptr(), sizes[name]
        for start, (other, beside) in zip(starts, tensors.items(), strict=True):
            meet = first < start + sizes[other] and start < first + size
            if meet and other != name and _share_memory(tensor, beside):
                raise RuntimeError(
                    f"{name} is written to and shares memory with {other}; "
                    "pass a tensor of its own memory"
                )


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
