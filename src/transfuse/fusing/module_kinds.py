"""What a module is to a capture: a transposed convolution, one to look into, or one to call."""

from collections.abc import Callable
from dis import get_instructions
from functools import lru_cache
from inspect import unwrap
from itertools import pairwise
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import SyncBatchNorm
from torch.nn.utils import parametrize

from transfuse.fusing.by_size import other_hooks
from transfuse.fusing.watching import hooked
from transfuse.nn.base import Layer

CONVOLUTIONS = frozenset({torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d})
TRIED = frozenset(
    f"torch.nn.modules.{name}"
    for name in (
        "activation", "batchnorm", "container", "dropout", "flatten", "instancenorm",
        "normalization", "pixelshuffle", "pooling", "upsampling",
    )
)  # fmt: skip
"""Where torch has modules that may be of the vocabulary."""
HANDLERS = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH", "JUMP_IF_NOT_EXC_MATCH"})
"""Instructions of Python by which an ``except`` looks whether an exception is one of its own."""
TYPES = frozenset({"Tensor", "Size", "tuple", "int", "float", "bool"})
"""What ``type`` of a value of a call may be: a capture's stand-in for it is none of them."""


def transposed(module: nn.Module) -> bool:
    """Whether it is one of torch's layers for this: those of this package are fused already."""
    kinds = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
    return isinstance(module, kinds) and not isinstance(module, Layer)


def mentions(module: nn.Module) -> bool:
    """Whether a module has transposed convolutions, or seems to."""
    return any(map(seems, module.modules()))


def seems(module: nn.Module) -> bool:
    """Whether a module is a transposed convolution, or its own forward names the function."""
    names = {each.__name__ for each in CONVOLUTIONS}
    code = getattr(type(module).forward, "__code__", None)
    return transposed(module) or bool(names & {*getattr(code, "co_names", ())})


def opaque(module: nn.Module) -> bool:
    """Whether nothing in a module could be part of a chain: it is called, not looked into."""
    if isinstance(module, Layer | SyncBatchNorm | torch.jit.ScriptModule):
        return True
    kind = next(k for k in type(module).__mro__ if k.__module__ != parametrize.__name__)
    if not kind.__module__.startswith("torch.") or transposed(module):
        return False
    return kind.__module__ not in TRIED and kind is not nn.Identity


def weight_hooks(module: nn.Module) -> list[str] | None:
    """The weights that hooks of torch's compute; None if there are other hooks."""
    if not hooked(module):
        return []
    if other_hooks(module) or not transposed(module):
        return None
    return [hook.name for hook in vars(module)["_forward_pre_hooks"].values()]


def unreadable(forward: Callable[..., Any]) -> str:
    """What a forward does that leaves no trace in a capture; empty where it is nothing known."""
    code = getattr(unwrap(forward), "__code__", None)
    return _unreadable(code) if isinstance(code, CodeType) else ""


@lru_cache(maxsize=1024)
def _unreadable(code: CodeType) -> str:
    instructions = [*get_instructions(code)]
    names = [each.opname for each in instructions]
    bare = ("PUSH_EXC_INFO", "POP_TOP")  # an ``except`` that looks at nothing
    if not HANDLERS.isdisjoint(names) or bare in pairwise(names) or "suppress" in code.co_names:
        return "catches exceptions, which sizes may raise"
    asked = (
        each.opname == "LOAD_GLOBAL" and each.argval == "type"
        and of.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and of.argval != "self"
        for each, of in pairwise(instructions)
    )  # fmt: skip
    if not TYPES.isdisjoint(code.co_names) and any(asked):
        return "compares type() of a value, where isinstance could be answered"
    return ""
