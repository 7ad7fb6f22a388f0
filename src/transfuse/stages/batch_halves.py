"""A batch norm in two halves, so that what stands between may see its values or its statistics."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transfuse.problem import Shape
from transfuse.stages.actions import Normalize
from transfuse.stages.base import Env, Kind, Operand, Stage, channel, parameter
from transfuse.stages.names import optional
from transfuse.stages.norm_checks import more_than_one_value
from transfuse.stages.running import Running, kept_as


@dataclass(frozen=True)
class BatchStatistics(Stage):
    """First half of a batch norm: mean and variance into ``key``; the values pass unchanged."""

    kind: ClassVar[Kind] = Kind.WHOLE
    name: ClassVar[str] = "batch_statistics"
    mixes: ClassVar[bool] = True
    applies: ClassVar[bool] = False
    key: str
    running_mean: Operand = parameter(Tensor, default=None)
    running_var: Operand = parameter(Tensor, default=None)
    momentum: float = 0.1

    @property
    def running(self) -> Running | None:
        return kept_as(self.running_mean, self.running_var, self.momentum)

    @property
    def updates(self) -> tuple[str, ...]:
        return self.running.names if self.running else ()

    def scope(self, shape: Shape) -> int:
        return shape.n * shape.positions

    def need(self, extents: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        return full

    def shape(self, shape: Shape) -> Shape:
        more_than_one_value("batch_norm", self.scope(shape), shape)
        return shape

    def action(self, shape: Shape) -> Normalize:
        return Normalize(0.0, over_batch=True, running=self.running, applies=self.applies)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        axes = [0, *range(2, x.dim())]
        var, mean = torch.var_mean(x, axes, correction=0)
        env[f"{self.key}.var"], env[f"{self.key}.mean"] = var, mean
        if self.running:
            env.update(self.running.moved(env, mean, var, x.numel() // x.shape[1]))
        return x


@dataclass(frozen=True)
class BatchApply(Stage):
    """Second half of a batch norm: ``y = (x - mean) / sqrt(var + eps) * weight + bias``."""

    kind: ClassVar[Kind] = Kind.WHOLE
    name: ClassVar[str] = "batch_apply"
    mixes: ClassVar[bool] = True
    gathers: ClassVar[bool] = False
    key: str
    weight: Operand = parameter(Tensor, default=None)
    bias: Operand = parameter(Tensor, default=None)
    eps: float = 1e-5

    def action(self, shape: Shape) -> Normalize:
        weight, bias = optional(self.weight), optional(self.bias)
        return Normalize(self.eps, weight, bias, over_batch=True, gathers=self.gathers)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        y = x - channel(f"{self.key}.mean", env, x)
        y = y * (channel(f"{self.key}.var", env, x) + self.eps).rsqrt()
        if self.weight is not None:
            y = y * channel(self.weight, env, x)
        return y if self.bias is None else y + channel(self.bias, env, x)
