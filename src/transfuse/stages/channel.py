"""Stages that see all channels of one position."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from transfuse.problem import Shape
from transfuse.stages.base import Env, Kind, Stage


@dataclass(frozen=True)
class ChannelSum(Stage):
    """``y[n, 0, …] = sum over c of x[n, c, …]``; the axis is kept."""

    kind: ClassVar[Kind] = Kind.CHANNEL
    name: ClassVar[str] = "sum"
    exact: ClassVar[bool] = True

    def shape(self, shape: Shape) -> Shape:
        return shape._replace(c=1)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return x.sum(1, keepdim=True)

    def __str__(self) -> str:
        return "sum(channels)"


@dataclass(frozen=True)
class ChannelSoftmax(Stage):
    """``y = exp(x - m) / sum exp(x - m)``, ``m = max x``, over the channels of one position."""

    kind: ClassVar[Kind] = Kind.CHANNEL
    name: ClassVar[str] = "softmax"

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return x.softmax(1)

    def __str__(self) -> str:
        return "softmax(channels)"
