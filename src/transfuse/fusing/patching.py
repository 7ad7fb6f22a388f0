"""What is replaced in torch and in Python while a forward is captured, and given back after it."""

import builtins
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from transfuse.fusing.paths import under
from transfuse.fusing.proxies import Read, Stand
from transfuse.fusing.stopping import HERE, Stop

MANAGERS = (
    (torch.no_grad, "__enter__"),
    (torch.enable_grad, "__enter__"),
    (torch.set_grad_enabled, "__init__"),
    (torch.inference_mode, "__enter__"),
    (torch.autocast, "__enter__"),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__"),
)
"""How a forward computes in another way for a while: a graph would not have it."""
MODES = (
    "is_inference_mode_enabled", "is_autocast_cpu_enabled", "are_deterministic_algorithms_enabled",
    "get_default_dtype", "get_autocast_dtype", "get_autocast_cpu_dtype", "get_autocast_gpu_dtype",
)  # fmt: skip
"""How a forward asks torch for what may be otherwise in the next call."""
STANDS = (Stand, Read)
ONE = threading.RLock()
"""What is replaced in torch for the time of an attempt is given back by the one that took it."""
_ISINSTANCE, _PRINT = isinstance, print
_GRAD, _AUTOCAST = torch.is_grad_enabled, torch.is_autocast_enabled


class Listener(Protocol):
    """What hears of all that a forward does: the tracer.

    Attributes:
        paused: whether it is the tracer itself that computes
        thread: the one that the forward runs in
        modules: names of modules, by their ids
        grad: whether gradients are recorded, if the forward asked
    """

    paused: bool
    thread: int
    modules: dict[int, str]
    grad: bool | None

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any: ...

    def attribute(self, tensor: Tensor, name: str | None = None) -> Stand: ...

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any) -> fx.Proxy: ...


def modes() -> tuple[Any, ...]:
    """What else changes how operations compute."""
    return _GRAD(), torch.is_inference_mode_enabled(), torch._C._len_torch_dispatch_stack()


class Recording(TorchFunctionMode):
    """Records what torch computes of no value of the call: it would run now, and only once."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        leaves = pytree.tree_leaves((args, kwargs))
        name = getattr(func, "__name__", "")
        if (
            self.listener.paused
            or any(isinstance(leaf, fx.Proxy) for leaf in leaves)
            or name == "__get__"
            or name.lstrip("_").startswith(("set_", "get_", "is_"))
            or name in ("dim", "size", "numel", "__len__")
        ):
            return func(*args, **kwargs)
        if torch.overrides.is_tensor_method_or_property(func):
            return self.listener.create_proxy("call_method", name, args, kwargs)
        return self.listener.create_proxy("call_function", func, args, kwargs)


@contextmanager
def patched(listener: Listener) -> Iterator[None]:
    """What a forward asks of modules goes through the listener, in its thread alone."""
    replaced = (*_of_modules(listener), *_of_questions(listener), *_of_effects(listener))
    kept = [getattr(owner, name) for owner, name, _ in replaced]
    try:
        for owner, name, other in replaced:
            setattr(owner, name, other)
        yield
    finally:
        for (owner, name, _), each in zip(replaced, kept, strict=True):
            setattr(owner, name, each)


_Replaced = tuple[tuple[Any, str, Any], ...]
"""Owner, name, and what stands there meanwhile."""


def _heard(listener: Listener) -> bool:
    """Whether it is the forward that does something."""
    return not listener.paused and threading.get_ident() == listener.thread


def _of_modules(listener: Listener) -> _Replaced:
    call, getattr_ = nn.Module.__call__, nn.Module.__getattr__
    setattr_, delattr_ = nn.Module.__setattr__, nn.Module.__delattr__

    def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not _heard(listener):
            return call(module, *args, **kwargs)
        return listener.call_module(module, module.forward, args, kwargs)

    def attribute(module: nn.Module, name: str) -> Any:
        value = getattr_(module, name)
        if not _heard(listener) or not isinstance(value, Tensor):
            return value
        path = listener.modules.get(id(module))
        return listener.attribute(value, None if path is None else under(path, name))

    def assigned(module: nn.Module, name: str, value: Any) -> None:
        if _heard(listener):
            raise Stop(f"sets self.{name}")
        setattr_(module, name, value)

    def deleted(module: nn.Module, name: str) -> None:
        if _heard(listener):
            raise Stop(f"deletes self.{name}")
        delattr_(module, name)

    return (
        (nn.Module, "__call__", called),
        (nn.Module, "__getattr__", attribute),
        (nn.Module, "__setattr__", assigned),
        (nn.Module, "__delattr__", deleted),
        (parametrize, "_cache_enabled", 0),
    )


def _of_questions(listener: Listener) -> _Replaced:
    def grad() -> bool:
        if _heard(listener):
            listener.grad = _GRAD()
        return _GRAD()

    def autocast(*kind: str) -> bool:
        if _heard(listener):
            raise Stop("asks whether autocast is on")
        return _AUTOCAST(*kind)

    def asks(name: str) -> Callable[..., Any]:
        ask: Callable[..., Any] = getattr(torch, name)

        def asked(*args: Any) -> Any:
            if _heard(listener) and not sys._getframe(1).f_code.co_filename.startswith(HERE):
                raise Stop(f"asks for torch.{name}")
            return ask(*args)

        return asked

    def is_(value: object, kinds: Any) -> bool:
        if type(value) in STANDS and _heard(listener):
            asking = sys._getframe(1).f_code.co_filename
            if not asking.startswith(HERE):
                return issubclass(value.kind(), kinds)  # type: ignore[attr-defined]
        return _ISINSTANCE(value, kinds)

    def is_tensor(value: object) -> bool:
        return type(value) in STANDS or _ISINSTANCE(value, Tensor)

    return (
        *((torch, name, asks(name)) for name in MODES),
        (torch, "is_grad_enabled", grad),
        (torch, "is_autocast_enabled", autocast),
        (torch, "is_tensor", is_tensor),
        (builtins, "isinstance", is_),
    )


def _of_effects(listener: Listener) -> _Replaced:
    def prints(*args: Any, **kwargs: Any) -> None:
        if _heard(listener):
            raise Stop("prints")
        _PRINT(*args, **kwargs)

    handle = logging.Logger.handle

    def logs(logger: logging.Logger, record: logging.LogRecord) -> None:
        if _heard(listener):
            raise Stop("writes to a log")
        handle(logger, record)

    def entered(enter: Callable[..., Any]) -> Callable[..., Any]:
        def enters(manager: Any, *args: Any, **kwargs: Any) -> Any:
            if _heard(listener):
                raise Stop(f"enters torch's {type(manager).__name__}")
            return enter(manager, *args, **kwargs)

        return enters

    return (
        *((owner, name, entered(getattr(owner, name))) for owner, name in MANAGERS),
        (builtins, "print", prints),
        (logging.Logger, "handle", logs),
    )
