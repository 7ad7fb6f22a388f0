"""The stage that each of torch's modules means: one table."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch.nn import Module

from transfuse import stages
from transfuse.nn.base import attribute
from transfuse.stages import Function, Stage

TENSORS = frozenset({"weight", "bias", "running_mean", "running_var", "num_batches_tracked"})
"""Attributes of torch's modules that are parameters or buffers; the others are plain values."""


class Held(Module):
    """A stage as a module: its tensors are parameters where they are so, and otherwise buffers.

    ``stage`` has names in their place, those of its arguments.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.own: tuple[str, ...] = ()
        for key, value in stage.parameters():
            if isinstance(value, nn.Parameter):
                self.register_parameter(key, value)
            elif isinstance(value, Tensor):
                self.register_buffer(key, value)
            else:
                continue
            self.own += (key,)
        self.stage = stage.with_parameters({key: key for key in self.own})

    def made(self) -> Stage:
        """The stage with the tensors of now."""
        return self.stage.with_parameters({key: attribute(self, key) for key in self.own})

    def extra_repr(self) -> str:
        return str(self.made())


def identity() -> None:
    """No stage at all."""


def batch_norm(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    track_running_stats: bool,
    num_batches_tracked: Tensor | None,
    momentum: float | None,
    eps: float,
) -> Stage:
    """As ``torch.nn.BatchNorm2d.forward`` has it; without a momentum, the mean of all batches."""
    moves = training and track_running_stats
    if momentum is None:
        momentum = 0.0
        if moves and num_batches_tracked is not None and not num_batches_tracked.is_meta:
            momentum = 1 / (float(num_batches_tracked) + 1)
    running = (running_mean, running_var) if moves or not training else (None, None)
    own = training or (running_mean is None and running_var is None)
    return stages.batch_norm(*running, weight, bias, own, momentum, eps)


def instance_norm(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    track_running_stats: bool,
    momentum: float | None,
    eps: float,
) -> Stage:
    """As ``torch.nn.InstanceNorm2d.forward`` has it."""
    own = training or not track_running_stats
    return stages.instance_norm(
        running_mean, running_var, weight, bias, own, 0.0 if momentum is None else momentum, eps
    )


def max_pool(
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    return_indices: bool,
) -> Stage:
    _expect_no_indices(return_indices)
    return stages.max_pool(kernel_size, stride, padding, dilation, ceil_mode)


def adaptive_max_pool(output_size: Any, return_indices: bool) -> Stage:
    _expect_no_indices(return_indices)
    return stages.adaptive_max_pool(output_size)


def avg_pool1d(
    kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool
) -> Stage:
    """Along one axis torch's has no ``divisor_override``."""
    return stages.avg_pool(kernel_size, stride, padding, ceil_mode, count_include_pad)


def softmax2d() -> Stage:
    return stages.softmax("channels")


def _expect_no_indices(return_indices: bool) -> None:
    if return_indices:
        raise ValueError("a pool with return_indices=True gives two tensors; a stage gives one")


MAKERS: dict[type[Module], Callable[..., Stage | None]] = {
    nn.Identity: identity,
    nn.ReLU: stages.relu,
    nn.ReLU6: stages.relu6,
    nn.LeakyReLU: stages.leaky_relu,
    nn.PReLU: stages.prelu,
    nn.ELU: stages.elu,
    nn.SELU: stages.selu,
    nn.CELU: stages.celu,
    nn.GELU: stages.gelu,
    nn.SiLU: stages.silu,
    nn.Mish: stages.mish,
    nn.Sigmoid: stages.sigmoid,
    nn.LogSigmoid: stages.logsigmoid,
    nn.Tanh: stages.tanh,
    nn.Softplus: stages.softplus,
    nn.Softsign: stages.softsign,
    nn.Hardtanh: stages.hardtanh,
    nn.Hardsigmoid: stages.hardsigmoid,
    nn.Hardswish: stages.hardswish,
    nn.Hardshrink: stages.hardshrink,
    nn.Softshrink: stages.softshrink,
    nn.Tanhshrink: stages.tanhshrink,
    nn.Threshold: stages.threshold,
    nn.Softmax: stages.softmax,
    nn.LogSoftmax: stages.log_softmax,
    nn.Softmax2d: softmax2d,
    nn.BatchNorm1d: batch_norm,
    nn.BatchNorm2d: batch_norm,
    nn.BatchNorm3d: batch_norm,
    nn.InstanceNorm1d: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.InstanceNorm3d: instance_norm,
    nn.GroupNorm: stages.group_norm,
    nn.LayerNorm: stages.layer_norm,
    nn.RMSNorm: stages.rms_norm,
    nn.MaxPool1d: max_pool,
    nn.MaxPool2d: max_pool,
    nn.MaxPool3d: max_pool,
    nn.AvgPool1d: avg_pool1d,
    nn.AvgPool2d: stages.avg_pool,
    nn.AvgPool3d: stages.avg_pool,
    nn.LPPool1d: stages.lp_pool,
    nn.LPPool2d: stages.lp_pool,
    nn.LPPool3d: stages.lp_pool,
    nn.AdaptiveAvgPool1d: stages.adaptive_avg_pool,
    nn.AdaptiveAvgPool2d: stages.adaptive_avg_pool,
    nn.AdaptiveAvgPool3d: stages.adaptive_avg_pool,
    nn.AdaptiveMaxPool1d: adaptive_max_pool,
    nn.AdaptiveMaxPool2d: adaptive_max_pool,
    nn.AdaptiveMaxPool3d: adaptive_max_pool,
    nn.Flatten: stages.flatten,
    nn.PixelShuffle: stages.pixel_shuffle,
}
"""What makes a stage of a module: its parameters are called as the module's attributes are.

By the class itself and no other: a subclass may compute something else.
"""
RANKS = {nn.PixelShuffle: 2} | {
    kind: int(kind.__name__[-2]) for kind in MAKERS if re.search(r"[123]d$", kind.__name__)
}
"""How many spatial axes a module is for, where it is for one number of them."""


@dataclass(frozen=True)
class Reader:
    """How a module of a class is read.

    ``tell``: the plain values that its stage is made from; ``stage``: makes it, of the module.
    """

    tell: Callable[[Module], object]
    stage: Callable[[Any], Stage | None]


class _Readers(dict[type, Reader]):
    def __missing__(self, kind: type) -> Reader:
        known = ", ".join(each.__name__ for each in MAKERS)
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise TypeError(f"{name} has no stage of the same meaning; torch.nn has these: {known}")


def _reader(maker: Callable[..., Stage | None]) -> Reader:
    names = _parameters(maker)
    plain = [name for name in names if name not in TENSORS]
    return Reader(
        attrgetter(*plain) if plain else type,
        lambda module: maker(**{name: attribute(module, name) for name in names}),
    )


def _parameters(maker: Any) -> tuple[str, ...]:
    """As ``inspect.signature`` has them, which asks much more of every one at import."""
    if isinstance(maker, Function):
        return tuple(maker.parameters)
    names: tuple[str, ...] = maker.__code__.co_varnames
    return names[: maker.__code__.co_argcount]


READERS = _Readers({kind: _reader(maker) for kind, maker in MAKERS.items()})
"""By the class of a module; another one is refused by its name."""
READERS[Held] = Reader(attrgetter("stage"), Held.made)
