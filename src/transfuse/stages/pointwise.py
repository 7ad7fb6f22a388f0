"""Stages that see one element at a time."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transfuse.stages.base import Env, Kind, Number, Stage, parameter, value


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
