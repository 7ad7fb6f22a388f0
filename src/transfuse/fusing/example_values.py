"""The values that nodes have for the arguments of one call, by sizes alone."""

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize

from transfuse.fusing.by_size import WEIGHT_HOOKS, called_by_size, faked
from transfuse.fusing.paths import last, parent
from transfuse.fusing.proxies import VALUE


class KnownTensor:
    """A tensor that no module holds, as a function of nothing."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.__name__ = self.__qualname__ = "constant"

    def __call__(self) -> Tensor:
        return self.tensor


def hooked_weight(module: nn.Module, name: str) -> Tensor:
    """The weight of a module as torch's old-style hook computes it before each call."""
    for hook in vars(module)["_forward_pre_hooks"].values():
        if isinstance(hook, WEIGHT_HOOKS) and hook.name == name:
            hook(module, ())
    weight: Tensor = getattr(module, name)
    return weight


def give_value(node: fx.Node, root: nn.Module, mode: FakeTensorMode) -> None:
    """Give a node its value, where those of its inputs tell it."""
    if not all(VALUE in each.meta for each in node.all_input_nodes):
        return
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta[VALUE])
    try:
        with torch.no_grad():
            node.meta[VALUE] = _computed(node, root, mode, args, kwargs)
    except Exception:  # what is wrong is said when it is computed
        pass


def _computed(node: fx.Node, root: nn.Module, mode: FakeTensorMode, args: Any, kwargs: Any) -> Any:
    if isinstance(node.target, KnownTensor):
        return faked(mode, node.target.tensor)
    if node.target is hooked_weight:  # as the hook left it: it is not run for this
        return faked(mode, vars(args[0])[args[1]])
    if node.op == "get_attr":
        owner, name = root.get_submodule(parent(node.target)), last(node.target)
        if parametrize.is_parametrized(owner, name):
            return called_by_size(mode, owner.get_submodule(f"parametrizations.{name}"), (), {})
        held = getattr(owner, name)
        return faked(mode, held) if isinstance(held, Tensor) else held
    if node.op == "call_module":
        return called_by_size(mode, root.get_submodule(str(node.target)), args, kwargs)
    with mode:
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]
