"""The rule for the fused backends: plain dense tensors, outside any trace, mode or transform.

They read and write memory by its address, which is all they see of a tensor. A wrapper has no
memory, or not its own; a trace would record nothing; a transform would lose what it carries along.
Everything that is not plain is given to torch as one operation, or runs as torch operations, which
each of these understands, or raises.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache, wraps
from math import isfinite
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch._C._autograd import _profiler_enabled
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

_EXACT = frozenset((Tensor, torch.nn.Parameter))
"""Types whose objects are plain if they have memory; others are asked for their dispatch keys."""


def why_not(tensors: Sequence[object]) -> str:
    """Why these may be given to torch operations alone; empty where they are plain.

    What is no tensor at all is passed over: other checks refuse it.
    """
    if is_dynamo_compiling():
        return "torch.compile traces this call"
    if (
        _len_torch_dispatch_stack()
        or _get_tracing_state() is not None
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    ):
        return _around()
    for tensor in tensors:
        try:
            if type(tensor) not in _EXACT or not tensor.data_ptr():  # type: ignore[attr-defined]
                why = unlike_plain(tensor)
                if why:
                    return why
        except RuntimeError:  # it has no address
            return unlike_plain(tensor)
    return ""


def one_operation(tensors: Sequence[object]) -> bool:
    """Whether torch can be given the whole call as one operation, though tensors are not plain.

    ``torch.compile`` and dispatch modes take any operation that is registered, and fake tensors
    ask it for shapes. ``torch.jit`` and ONNX's exporter are to have the operations inside, since
    they know no others; transforms and forward-mode differentiation go through these, too; and
    tensors of other kinds know torch's own alone.
    """
    if is_dynamo_compiling():
        return True
    if (
        _get_tracing_state() is not None
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch.onnx.is_in_onnx_export()
    ):
        return False
    traced = [type(each).__module__.startswith("torch._subclasses.") for each in tensors]
    if not _len_torch_dispatch_stack() and not any(traced):
        return False
    return all(known or not unlike_plain(each) for known, each in zip(traced, tensors, strict=True))


def undisturbed() -> bool:
    """Whether nothing is around a call that would keep plain tensors from a fused backend.

    Neither Python's end, nor the profiler, which is to see an operation, nor ``torch.compile``,
    amid a function that it gave up to trace.
    """
    return not (
        _len_torch_dispatch_stack()
        or _get_tracing_state() is not None
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or get_eval_frame_callback() is not None
        or _profiler_enabled()
        or sys.is_finalizing()
    )


def not_at_exit() -> None:
    """Refuse calls that come from ``__del__`` when Python has begun to end.

    torch then no longer counts what its own objects refer to, and aborts the process when a view
    outlives the tensor it was made of. Handlers of ``atexit`` run before that.
    """
    if not is_dynamo_compiling() and sys.is_finalizing():
        raise RuntimeError("transfuse cannot be called while Python is shutting down")


def finite(*tensors: Tensor) -> bool:
    """Whether all values are; true as well where they cannot be looked at."""
    return finite_soon(*tensors)()


def finite_soon(*tensors: Tensor) -> Callable[[], bool]:
    """The same, to be asked later: what a GPU is given meanwhile does not wait for the answer.

    While a CUDA graph is captured nobody can be asked, and its replays read other values: no.
    """
    if why_not(tensors):
        return lambda: True
    if capturing(tensors[0]):
        return lambda: False
    # Sums of half precision would overflow where no value does.
    sums = [each.sum(dtype=torch.promote_types(each.dtype, torch.float32)) for each in tensors]
    total = sum(sums[1:], sums[0])
    if not total.is_cuda:
        return lambda: isfinite(total.item())
    there = torch.empty((), dtype=total.dtype, pin_memory=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    there.copy_(total, non_blocking=True)
    done.record(torch.cuda.current_stream(total.device))

    def answer() -> bool:
        done.synchronize()
        return isfinite(there.item())

    return answer


def capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured of what is done with a tensor."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def known(sizes: Sequence[int]) -> bool:
    """Whether sizes are numbers; a tracer may have symbols in their place, which are no keys."""
    return not is_dynamo_compiling() and not any(isinstance(n, torch.SymInt) for n in sizes)


def bound(value: Any) -> Any:
    """A number of a stage; a trace that has a symbol for it is bound to what it is now."""
    if not is_dynamo_compiling():
        return value
    if isinstance(value, tuple):
        return tuple([bound(each) for each in value])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    return guard_scalar(value)


def _around() -> str:
    """What this call is made inside of."""
    if _get_tracing_state() is not None:
        return "torch.jit.trace records this call"
    if peek_interpreter_stack() is not None:
        return "a transform of torch.func is at work"
    if _len_torch_dispatch_stack():
        mode = torch.utils._python_dispatch._get_current_dispatch_mode()
        return f"a dispatch mode is active ({type(mode).__name__})"
    return "forward-mode automatic differentiation is on"


def unlike_plain(tensor: object) -> str:
    """Why a tensor is more than its memory; empty where it is not."""
    if not isinstance(tensor, Tensor):
        return ""
    keys = torch._C._dispatch_keys(tensor)
    if not keys.raw_repr() & ~_usual(tensor.device.type):
        return ""
    what = f"tensor with {keys}" if type(tensor) in _EXACT else type(tensor).__name__
    return f"a {what} is more than its memory"


@cache
def _usual(device: str) -> int:
    """The dispatch keys of memory on a device; a pending negation is resolved before it is read."""
    with torch.inference_mode(False):  # a tensor made in it has fewer
        plain = torch.empty(0, device=device)
        return (
            torch._C._dispatch_keys(plain).raw_repr()
            | torch._C._dispatch_keys(torch._neg_view(plain)).raw_repr()
        )


P = ParamSpec("P")
R = TypeVar("R")


def unbroken(function: Callable[P, R]) -> Callable[P, R]:
    """A function that ``torch.compile`` either traces as a whole or leaves alone as a whole.

    Where it gives up amid a function, it goes on with each function called from there, in bytecode
    of its own that drops variables early: memory would be gone while its address is in use. Where
    it is not at work there is nothing to keep off, and to load it takes seconds.
    """
    alone: list[Callable[P, R]] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_dynamo_compiling() or get_eval_frame_callback() is None:
            return function(*args, **kwargs)
        if not alone:
            alone.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return alone[0](*args, **kwargs)

    return call


class unrecorded:
    """Sizes as integers: ``torch.jit.trace`` else gives tensors, to record what is done to them."""

    state: Any = None  # so where a trace of torch.compile enters and ends before it leaves

    def __enter__(self) -> None:
        if not is_dynamo_compiling():
            self.state = _get_tracing_state()
            torch._C._set_tracing_state(None)  # type: ignore[attr-defined]

    def __exit__(self, *error: object) -> None:
        if not is_dynamo_compiling():
            torch._C._set_tracing_state(self.state)  # type: ignore[attr-defined]
