"""Stages that need a statistic over more than any tile holds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse import plain
from transfuse.geometry import integer
from transfuse.problem import Shape
from transfuse.stages.base import Env, Kind, Operand, Stage, alike, channel, parameter
from transfuse.stages.running import Running


@dataclass(frozen=True)
class Whole(Stage):
    """A stage that gathers a statistic, applies one, or does both."""

    kind: ClassVar[Kind] = Kind.WHOLE
    gathers: ClassVar[bool] = True
    applies: ClassVar[bool] = True

    def need(self, extents: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        return full if self.gathers else extents

    def scope(self, shape: Shape) -> int:
        """Elements one statistic covers; by default those of a channel over the whole batch."""
        return shape.n * shape.positions


@dataclass(frozen=True)
class BatchNorm(Whole):
    """``y = (x - mean) / sqrt(var + eps) * weight + bias`` over (batch, space) of each channel.

    A batch norm in training: the statistics are those of this batch, the variance is the biased
    one. Where there are running statistics, they are moved towards these (see ``Running``).
    """

    name: ClassVar[str] = "batch_norm"
    mixes: ClassVar[bool] = True
    running_mean: Operand = parameter(Tensor, default=None)
    running_var: Operand = parameter(Tensor, default=None)
    weight: Operand = parameter(Tensor, default=None)
    bias: Operand = parameter(Tensor, default=None)
    momentum: float = 0.1
    eps: float = 1e-5

    @property
    def running(self) -> Running | None:
        return _running(self.running_mean, self.running_var, self.momentum)

    @property
    def updates(self) -> tuple[str, ...]:
        return self.running.names if self.running else ()

    def shape(self, shape: Shape) -> Shape:
        _more_than_one_value("batch_norm", shape.n * shape.positions, shape)
        return shape

    def apply(self, x: Tensor, env: Env) -> Tensor:
        names = (self.running_mean, self.running_var, self.weight, self.bias)
        wide, (mean, var, weight, bias) = alike(x, env, *names)
        # Copies, which torch moves: whoever evaluates a chain decides what becomes of them.
        mean, var = (each if each is None else each.clone() for each in (mean, var))
        y = _affine(
            lambda weight, bias: F.batch_norm(
                wide, mean, var, weight, bias, True, self.momentum, self.eps
            ),
            weight,
            bias,
        )
        for name, moved in zip(self.updates, (mean, var), strict=False):
            assert moved is not None
            env[name] = moved.reshape(env[name].shape)
        return y.to(x.dtype)

    def __str__(self) -> str:
        return self._in_mode("batch")


@dataclass(frozen=True)
class BatchStatistics(Whole):
    """First half of a batch norm: mean and variance into ``key``; the values pass unchanged."""

    name: ClassVar[str] = "batch_statistics"
    mixes: ClassVar[bool] = True
    applies: ClassVar[bool] = False
    key: str
    running_mean: Operand = parameter(Tensor, default=None)
    running_var: Operand = parameter(Tensor, default=None)
    momentum: float = 0.1

    @property
    def running(self) -> Running | None:
        return _running(self.running_mean, self.running_var, self.momentum)

    @property
    def updates(self) -> tuple[str, ...]:
        return self.running.names if self.running else ()

    def shape(self, shape: Shape) -> Shape:
        _more_than_one_value("batch_norm", shape.n * shape.positions, shape)
        return shape

    def apply(self, x: Tensor, env: Env) -> Tensor:
        axes = [0, *range(2, x.dim())]
        var, mean = torch.var_mean(x, axes, correction=0)
        env[f"{self.key}.var"], env[f"{self.key}.mean"] = var, mean
        if self.running:
            env.update(self.running.moved(env, mean, var, x.numel() // x.shape[1]))
        return x


@dataclass(frozen=True)
class BatchApply(Whole):
    """Second half of a batch norm: ``y = (x - mean) / sqrt(var + eps) * weight + bias``."""

    name: ClassVar[str] = "batch_apply"
    mixes: ClassVar[bool] = True
    gathers: ClassVar[bool] = False
    key: str
    weight: Operand = parameter(Tensor, default=None)
    bias: Operand = parameter(Tensor, default=None)
    eps: float = 1e-5

    def apply(self, x: Tensor, env: Env) -> Tensor:
        y = x - channel(f"{self.key}.mean", env, x)
        y = y * (channel(f"{self.key}.var", env, x) + self.eps).rsqrt()
        if self.weight is not None:
            y = y * channel(self.weight, env, x)
        return y if self.bias is None else y + channel(self.bias, env, x)


@dataclass(frozen=True)
class RunningNorm(Stage):
    """``y = (x - running_mean) / sqrt(running_var + eps) * weight + bias``, given per channel.

    A batch norm that is not in training: its statistics are known, so it sees one element.
    """

    kind: ClassVar[Kind] = Kind.POINTWISE
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
        if x.device.type != "cpu" or plain.finite(mean * scale):
            y = F.batch_norm(wide, mean, var, weight, bias, training=False, eps=self.eps)
            return y.to(x.dtype)
        # torch's CPU kernels compute x * scale + (bias - mean * scale): here Inf - Inf.
        of_channels = (-1, *(1,) * (x.dim() - 2))
        y = (wide - mean.reshape(of_channels)) * scale.reshape(of_channels)
        return (y if bias is None else y + bias.reshape(of_channels)).to(x.dtype)

    def __str__(self) -> str:
        return self._in_mode("running")


@dataclass(frozen=True)
class GroupNorm(Whole):
    """``y = (x - mean) / sqrt(var + eps) * weight + bias`` over (group of channels, space)."""

    name: ClassVar[str] = "group_norm"
    mixes: ClassVar[bool] = True
    num_groups: int | str = parameter(int)
    weight: Operand = parameter(Tensor, default=None)
    bias: Operand = parameter(Tensor, default=None)
    eps: float = 1e-5

    def shape(self, shape: Shape) -> Shape:
        groups = integer("num_groups", self.num_groups)
        if groups < 1:
            raise RuntimeError(f"group_norm: num_groups must be at least 1, but got {groups}")
        if shape.c % groups:
            raise RuntimeError(
                f"group_norm: num_groups={groups} does not divide the {shape.c} channels"
            )
        _more_than_one_value("group_norm", shape.n * shape.c // groups * shape.positions, shape)
        return shape

    def scope(self, shape: Shape) -> int:
        return shape.c // integer("num_groups", self.num_groups) * shape.positions

    def apply(self, x: Tensor, env: Env) -> Tensor:
        groups = integer("num_groups", self.num_groups)
        wide, (weight, bias) = alike(x, env, self.weight, self.bias)
        y = _affine(
            lambda weight, bias: F.group_norm(wide, groups, weight, bias, self.eps), weight, bias
        )
        return y.to(x.dtype)


@dataclass(frozen=True)
class SpaceSoftmax(Whole):
    """``y = exp(x - m) / sum exp(x - m)``, ``m = max x``, over all positions of one channel.

    ``bounded``: a rewrite knows that no exponent can overflow or vanish, so nothing is taken off.
    """

    name: ClassVar[str] = "softmax"
    bounded: bool = False

    def scope(self, shape: Shape) -> int:
        return shape.positions

    def apply(self, x: Tensor, env: Env) -> Tensor:
        # torch.softmax adds the terms one after another and is off by 5e-5 over 131,072
        # positions; sum() adds them pairwise and is off by 2e-7.
        flat = x.flatten(2)
        terms = flat if self.bounded else flat - flat.detach().amax(2, keepdim=True)
        terms = terms.exp()
        return (terms / terms.sum(2, keepdim=True)).reshape(x.shape)

    def __str__(self) -> str:
        return "softmax(space, bounded)" if self.bounded else "softmax(space)"


def _running(mean: Operand, var: Operand, momentum: float) -> Running | None:
    # Names only: tensors that a stage still holds are lifted out of it before anything runs.
    named = isinstance(mean, str) and isinstance(var, str)
    return Running(mean, var, momentum) if named else None  # type: ignore[arg-type]


def _affine(
    norm: Callable[[Tensor | None, Tensor | None], Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """A norm of torch's with its weight and bias.

    torch's CPU kernels compute ``x * (w/s) + (b - mean * w/s)``, where an infinite weight gives
    Inf - Inf; then weight and bias are applied as the definition says, after the norm.
    """
    if weight is None or weight.device.type != "cpu" or plain.finite(weight):
        return norm(weight, bias)
    y = norm(None, None)
    y = y * weight.reshape(1, -1, *[1] * (y.dim() - 2))
    return y if bias is None else y + bias.reshape(1, -1, *[1] * (y.dim() - 2))


def _more_than_one_value(name: str, values: int, shape: Shape) -> None:
    if values == 1:
        raise ValueError(
            f"{name}: expected more than 1 value per channel, got an input of {list(shape.dims)}"
        )
