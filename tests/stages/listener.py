"""A listener to the words of ``stages.walk``, in plain torch and float64."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from tests.sweeping import expected
from transfuse.maths.expr import Expr
from transfuse.maths.primitives import InTorch
from transfuse.problem import Shape
from transfuse.stages import Stage
from transfuse.stages.running import Running
from transfuse.stages.walk import Given, Statistic, Value
from transfuse.sweeps import Fold, Folding, Slide, View


def swept(stage: Stage, x: Tensor, env: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """What a stage says it does to ``x``, and the operands as it leaves them."""
    walk = Listener(x, env)
    stage.sweep(walk)
    return walk.x, walk.env


class Listener:
    """Does each word at once."""

    def __init__(self, x: Tensor, env: Mapping[str, Tensor]) -> None:
        self.x, self.env = x.double(), {name: each.double() for name, each in env.items()}
        self.statistics: list[Tensor] = []

    @property
    def shape(self) -> Shape:
        n, c, *spatial = self.x.shape
        return Shape(n, c, tuple(spatial))

    def map(self, expr: Expr, values: Mapping[str, Value] | None = None) -> None:
        named = {name: self._met(each) for name, each in (values or {}).items()}
        self.x = InTorch(expr)({"x": self.x, **named}, self.x).expand(self.x.shape)

    def fold(self, folding: Folding, axes: Sequence[int], groups: int = 1) -> tuple[Statistic, ...]:
        found = self._folded(folding, self.x, axes)
        if groups > 1:
            parts = self.x.unflatten(1, (groups, -1))
            # Its channels are the third axis now.
            found = self._folded(folding, parts, [axis + (axis > 0) for axis in axes])
            found = tuple(
                each.expand(-1, -1, parts.shape[2], *each.shape[3:]).flatten(1, 2) for each in found
            )
        self.statistics += found
        first = len(self.statistics) - len(found)
        return tuple(map(Statistic, range(first, len(self.statistics))))

    def reduce(self, folding: Folding, axes: Sequence[int]) -> None:
        (self.x,) = self._folded(folding, self.x, axes)

    def slide(
        self, folding: Any, outputs: Sequence[int], *, sign: Value | None = None, **options: Any
    ) -> None:
        sizes = (*self.x.shape[:2], *outputs)
        out, source = _view(0, sizes), _view(1, tuple(self.x.shape))
        slots, others = [self.x.new_empty(0), self.x.reshape(-1)], ()
        if sign is not None:
            slots.append(self._met(sign).expand(sizes).reshape(-1))
            others = (("sign", _view(2, sizes)),)
        tuples = {k: tuple(v) if isinstance(v, list | tuple) else v for k, v in options.items()}
        slide = Slide(out, folding, (("x", source),), **tuples, others=others)
        (self.x,) = expected(slide, slots)

    def shuffle(self, factor: int) -> None:
        n, c, *space = self.x.shape
        y = self.x.new_full((n, c // factor ** len(space), *(s * factor for s in space)), torch.nan)
        for number, at in enumerate(product(range(factor), repeat=len(space))):
            places = (slice(None), slice(None), *(slice(i, None, factor) for i in at))
            y[places] = self.x[:, number :: factor ** len(space)]
        self.x = y

    def cat(self, other: Given, channels: int, first: bool) -> None:
        joined = self.env[other.name]
        assert joined.shape[1] == channels
        assert other.axes == tuple(range(self.x.dim()))
        self.x = torch.cat((joined, self.x) if first else (self.x, joined), 1)

    def update(self, running: Running, mean: Statistic, var: Statistic, count: int) -> None:
        found = [self._met(each).mean(0).flatten() for each in (mean, var)]
        self.env.update(running.moved(self.env, *found, count))

    def _met(self, value: Value) -> Tensor:
        if isinstance(value, Statistic):
            return self.statistics[value.number]
        dims = self.x.shape
        return self.env[value.name].reshape(
            [size if axis in value.axes else 1 for axis, size in enumerate(dims)]
        )

    def _folded(self, folding: Folding, x: Tensor, axes: Sequence[int]) -> tuple[Tensor, ...]:
        """Results with the folded axes as 1."""
        kept = [axis for axis in range(x.dim()) if axis not in axes]
        values = x.permute(*kept, *axes).contiguous()
        view = _view(1, tuple(values.shape))
        out = _view(0, tuple(x.shape[axis] for axis in kept))
        outs = (out, out) if folding in ("exponentials", "moments") else (out,)
        slots = [x.new_empty(0), values.reshape(-1)]
        dims = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
        return tuple(
            each.reshape(dims) for each in expected(Fold(outs, folding, (("x", view),)), slots)
        )


def _view(slot: int, sizes: tuple[int, ...]) -> View:
    strides = [1] * len(sizes)
    for axis in reversed(range(len(sizes) - 1)):
        strides[axis] = strides[axis + 1] * sizes[axis + 1]
    return View(slot, torch.float64, sizes, tuple(strides))
