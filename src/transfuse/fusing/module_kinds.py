"""What a module is to a capture: a transposed convolution, one to look into, or one to call."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import SyncBatchNorm
from torch.nn.utils import parametrize

from transfuse.fusing.by_size import other_hooks
from transfuse.fusing.sources import named_by
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


def transposed(module: nn.Module) -> bool:
    """Whether it is one of torch's layers for this: those of this package are fused already."""
    kinds = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
    return isinstance(module, kinds) and not isinstance(module, Layer)


def mentions(module: nn.Module) -> bool:
    """Whether a module has transposed convolutions, or seems to."""
    return any(map(seems, module.modules()))


def seems(module: nn.Module) -> bool:
    """Whether a module is a transposed convolution, or the code of its class names the function."""
    return transposed(module) or named_by(type(module), {each.__name__ for each in CONVOLUTIONS})


def callable_itself(module: nn.Module) -> bool:
    """Whether it has a forward, in Python: containers such as ``ModuleList`` have none."""
    if isinstance(module, torch.jit.ScriptModule):
        return False
    return "forward" in vars(module) or type(module).forward is not nn.Module.forward


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
