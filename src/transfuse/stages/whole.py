"""Stages that need a statistic over more than any tile holds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse.geometry import integer
from transfuse.problem import Shape
from transfuse.stages.base import Env, Kind, Operand, Stage, channel, parameter


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

    The statistics are those of this batch, the variance is the biased one.
    """

    name: ClassVar[str] = "batch_norm"
    weight: Operand = parameter(Tensor, default=None)
    bias: Operand = parameter(Tensor, default=None)
    eps: float = 1e-5

    def shape(self, shape: Shape) -> Shape:
        _more_than_one_value("batch_norm", shape.n * shape.positions, shape)
        return shape

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return _affine(
            lambda weight, bias: F.batch_norm(
                x, None, None, weight, bias, training=True, eps=self.eps
            ),
            _operand(self.weight, env),
            _operand(self.bias, env),
        )


@dataclass(frozen=True)
class BatchStatistics(Whole):
    """First half of a batch norm: mean and variance into ``key``; the values pass unchanged."""

    name: ClassVar[str] = "batch_statistics"
    applies: ClassVar[bool] = False
    key: str

    def shape(self, shape: Shape) -> Shape:
        _more_than_one_value("batch_norm", shape.n * shape.positions, shape)
        return shape

    def apply(self, x: Tensor, env: Env) -> Tensor:
        axes = [0, *range(2, x.dim())]
        env[f"{self.key}.var"], env[f"{self.key}.mean"] = torch.var_mean(x, axes, correction=0)
        return x


@dataclass(frozen=True)
class BatchApply(Whole):
    """Second half of a batch norm: ``y = (x - mean) / sqrt(var + eps) * weight + bias``."""

    name: ClassVar[str] = "batch_apply"
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
class GroupNorm(Whole):
    """``y = (x - mean) / sqrt(var + eps) * weight + bias`` over (group of channels, space)."""

    name: ClassVar[str] = "group_norm"
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
        return _affine(
            lambda weight, bias: F.group_norm(x, groups, weight, bias, self.eps),
            _operand(self.weight, env),
            _operand(self.bias, env),
        )


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


def _operand(name: Operand, env: Env) -> Tensor | None:
    # Contiguous: torch rounds otherwise in its path for strided operands.
    return env[name].flatten().contiguous() if isinstance(name, str) else None


def _affine(
    norm: Callable[[Tensor | None, Tensor | None], Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """A norm of torch's with its weight and bias.

    torch's CPU kernels compute ``x * (w/s) + (b - mean * w/s)``, where an infinite weight gives
    Inf - Inf; then weight and bias are applied as the definition says, after the norm.
    """
    if weight is None or weight.device.type != "cpu" or bool(weight.sum().isfinite()):
        return norm(weight, bias)
    y = norm(None, None)
    y = y * weight.reshape(1, -1, *[1] * (y.dim() - 2))
    return y if bias is None else y + bias.reshape(1, -1, *[1] * (y.dim() - 2))


def _more_than_one_value(name: str, values: int, shape: Shape) -> None:
    if values == 1:
        raise ValueError(
            f"{name}: expected more than 1 value per channel, got an input of {list(shape.dims)}"
        )
