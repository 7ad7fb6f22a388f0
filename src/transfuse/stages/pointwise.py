"""Stages that see one element at a time."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse.plain import finite
from transfuse.stages.base import Env, Kind, Number, Operand, Stage, alike, parameter, value


@dataclass(frozen=True)
class Pointwise(Stage):
    kind: ClassVar[Kind] = Kind.POINTWISE


@dataclass(frozen=True)
class Add(Pointwise):
    """``y = x + term``; a number, or one value per channel."""

    name: ClassVar[str] = "add"
    exact: ClassVar[bool] = True
    term: Number | str | Tensor = parameter(int, float, Tensor)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return x + value(self.term, env, x)


@dataclass(frozen=True)
class Scale(Pointwise):
    """``y = x * factor``; a number, or one factor per channel."""

    name: ClassVar[str] = "scale"
    exact: ClassVar[bool] = True
    factor: Number | str | Tensor = parameter(int, float, Tensor)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return x * value(self.factor, env, x)


@dataclass(frozen=True)
class Clamp(Pointwise):
    """``y = min(max(x, low), high)``: ``low > high`` gives ``high``; NaN comes through."""

    name: ClassVar[str] = "clamp"
    exact: ClassVar[bool] = True
    low: Number | str = parameter(int, float)
    high: Number | str = parameter(int, float)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return torch.clamp(x, float(self.low), float(self.high))


@dataclass(frozen=True)
class Sigmoid(Pointwise):
    """``y = 1 / (1 + exp(-x))``"""

    name: ClassVar[str] = "sigmoid"

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return torch.sigmoid(x)


@dataclass(frozen=True)
class Tanh(Pointwise):
    """``y = tanh(x)``"""

    name: ClassVar[str] = "tanh"

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return torch.tanh(x)


@dataclass(frozen=True)
class RunningNorm(Pointwise):
    """``y = (x - running_mean) / sqrt(running_var + eps) * weight + bias``, given per channel.

    A batch norm that is not in training: its statistics are known, so it sees one element.
    """

    name: ClassVar[str] = "batch_norm"
    mixes: ClassVar[bool] = True
    running_mean: str | Tensor = parameter(Tensor)
    running_var: str | Tensor = parameter(Tensor)
    weight: Operand = parameter(Tensor, default=None)
    bias: Operand = parameter(Tensor, default=None)
    eps: float = 1e-5

    def apply(self, x: Tensor, env: Env) -> Tensor:
        names = (self.running_mean, self.running_var, self.weight, self.bias)
        wide, (mean, var, weight, bias) = alike(x, env, *names)
        assert mean is not None
        assert var is not None
        scale = (var + self.eps).rsqrt()
        scale = scale if weight is None else scale * weight
        if x.device.type != "cpu" or finite(mean * scale):
            y = F.batch_norm(wide, mean, var, weight, bias, training=False, eps=self.eps)
            return y.to(x.dtype)
        # torch's CPU kernels compute x * scale + (bias - mean * scale): here Inf - Inf.
        of_channels = (-1, *(1,) * (x.dim() - 2))
        y = (wide - mean.reshape(of_channels)) * scale.reshape(of_channels)
        return (y if bias is None else y + bias.reshape(of_channels)).to(x.dtype)

    def __str__(self) -> str:
        return self._in_mode("running")
