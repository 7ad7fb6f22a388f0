"""Models and modules called with tensors that have sizes alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils import _pytree as pytree

from transfuse.fusing.calling import Arguments
from transfuse.fusing.undoing import restored
from transfuse.fusing.watching import HOOKS

WEIGHT_HOOKS = (WeightNorm, SpectralNorm)
"""torch's own hooks that compute a weight before each call."""
_thread = threading.local()


def bypassing() -> bool:
    """Whether sizes alone are being computed: forwards run as they were written."""
    return getattr(_thread, "bypassing", False)


@contextmanager
def bypassed() -> Iterator[None]:
    """Forwards run as they were written, in this thread."""
    before, _thread.bypassing = bypassing(), True
    try:
        yield
    finally:
        _thread.bypassing = before


def called_by_size(mode: FakeTensorMode, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A module's result by sizes: its tensors are not written to, its hooks not run."""
    if any(other_hooks(each) for each in module.modules()):
        raise NotImplementedError("a hook may do anything")
    held = (*module.named_parameters(), *module.named_buffers())
    tensors: dict[str, Tensor] = {name: mode.from_tensor(tensor) for name, tensor in held}
    with mode, _own_weights(module):
        return functional_call(module, tensors, args, kwargs)


@contextmanager
def _own_weights(module: nn.Module) -> Iterator[None]:
    """Recurrent layers list their weights anew when one is set, and keep the list as it was set
    last: that of tensors which ``functional_call`` has set.
    """
    lists = ("_flat_weights", "_flat_weight_refs")
    recurrent = [vars(each) for each in module.modules() if isinstance(each, nn.RNNBase)]
    kept = [(held, {name: held[name] for name in lists if name in held}) for held in recurrent]
    try:
        yield
    finally:
        for held, own in kept:
            held.update(own)


def sizes_alone(model: nn.Module, given: Arguments) -> None:
    """Call a model with tensors that have sizes alone; nothing of it is changed."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    leaves = [faked(mode, x) if isinstance(x, Tensor) else x for x in given.leaves]
    args, kwargs = pytree.tree_unflatten(leaves, given.spec)
    with torch.no_grad(), bypassed(), restored(model):
        called_by_size(mode, model, args, kwargs)


def faked(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """A tensor by its sizes; torch warns if it is asked for the gradient of what is no leaf."""
    return mode.from_tensor(tensor if tensor.is_leaf else tensor.detach())


def other_hooks(module: nn.Module) -> bool:
    """Whether anything but torch's computation of weights runs around the module's forward."""
    held = vars(module)
    return any(
        not (name == "_forward_pre_hooks" and isinstance(hook, WEIGHT_HOOKS))
        for name in HOOKS
        for hook in held[name].values()
    )
