"""What a call should do: its shapes and values by the definition, written out once more."""

from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from transfuse.problem import Shape
from transfuse.stages import (
    Stage,
)
from transfuse.stages.window import AvgPool, Window

INT32, MOST = 2**31 - 1, 2**48
COMPUTED = 2**16
"""Elements between two stages that a call may have to be run."""
ALLOCATED = 2**33
"""Elements that are too many for the child's memory: to ask for them must raise."""
ALLOWED = (RuntimeError, TypeError, ValueError, NotImplementedError)
SUFFIXES = {"fp32": "f32", "fp64": "f64", "fp16": "f16", "bf16": "bf16"}
CLOSE = {"fp32": 2e-4, "fp64": 1e-9, "fp16": 2e-2, "bf16": 1e-1}
OPTIONS = ("stride", "padding", "dilation", "output_padding")


class Wrong(Exception):
    """A call did what it must not do."""


@dataclass
class Call:
    """One convolution within stages: everything that tells what comes of it."""

    rank: int
    batch: int
    in_channels: int
    out_channels: int
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    groups: int
    dtype: str
    options: dict[str, tuple[int, ...]]
    after: tuple[int, ...] | None = None  # padding at the end, where it is given in pairs
    before: list[Stage] = field(default_factory=list)
    then: list[Stage] = field(default_factory=list)

    def shapes(self) -> list[Shape] | None:
        """The values before, between and after the stages; None for a call that is not legal."""
        shape = Shape(self.batch, self.in_channels, self.spatial)
        found = [shape]
        for stage in (*self.before, None, *self.then):
            step = self._convolved(shape) if stage is None else _staged(stage, shape)
            if step is None or prod(max(1, size) for size in step.dims) > MOST:
                return None
            found.append(shape := step)
        return found

    def _convolved(self, shape: Shape) -> Shape | None:
        counts = (self.in_channels, self.out_channels, *self.spatial, *self.kernel, self.groups)
        weight = (self.in_channels, self.out_channels, *self.kernel)
        if self.batch < 0 or min(counts) < 1 or prod(weight) > MOST or prod(self.kernel) > INT32:
            return None
        if self.in_channels % self.groups or self.out_channels % self.groups:
            return None
        spatial = []
        each = zip(shape.spatial, self.kernel, *(self.options[o] for o in OPTIONS), strict=True)
        least = 0 if self.after is None else -INT32
        for a, (n, k, stride, padding, dilation, extra) in enumerate(each):
            after = padding if self.after is None else self.after[a]
            if not (1 <= stride <= INT32 and 1 <= dilation <= INT32):
                return None
            if not (least <= padding <= INT32 and least <= after <= INT32):
                return None
            size = (n - 1) * stride - padding - after + dilation * (k - 1) + extra + 1
            if not 0 <= extra < max(stride, dilation) or size < 1:
                return None
            spatial.append(size)
        return Shape(shape.n, self.out_channels, tuple(spatial))

    def result(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, env: dict[str, Tensor]
    ) -> Tensor:
        """The values in float64, by the definition."""
        y = x.double()
        for stage in self.before:
            y = _applied(stage, y, env)
        y = self._sum(y, weight.double())
        if bias is not None:
            y = y + bias.double().reshape(1, -1, *[1] * self.rank)
        for stage in self.then:
            y = _applied(stage, y, env)
        return y

    def _sum(self, x: Tensor, weight: Tensor) -> Tensor:
        """Every output from each (input, tap) that meets in it: o = i * s - p + k * d."""
        meets = []
        for a in range(self.rank):
            stride, padding, dilation, extra = (self.options[o][a] for o in OPTIONS)
            n, k = x.shape[2 + a], self.kernel[a]
            after = padding if self.after is None else self.after[a]
            size = (n - 1) * stride - padding - after + dilation * (k - 1) + extra + 1
            found = torch.zeros(size, n, k, dtype=torch.float64)
            for i in range(n):
                for tap in range(k):
                    o = i * stride - padding + tap * dilation
                    if 0 <= o < size:
                        found[o, i, tap] = 1
            meets.append(found)
        group = (self.groups, self.in_channels // self.groups)
        y = x.reshape(x.shape[0], *group, *x.shape[2:])
        w = weight.reshape(*group, *weight.shape[1:])
        sums = {1: "ngcx,gcdk,oxk->ngdo", 2: "ngcxy,gcdkl,oxk,pyl->ngdop"}
        sums[3] = "ngcxyz,gcdklm,oxk,pyl,qzm->ngdopq"
        return torch.einsum(sums[self.rank], y, w, *meets).flatten(1, 2)

    @property
    def exact(self) -> bool:
        return all(stage.exact for stage in (*self.before, *self.then))


def _staged(stage: Stage, shape: Shape) -> Shape | None:
    """A stage's output; pools by rules written out here."""
    if not isinstance(stage, Window):
        try:
            return stage.shape(shape)
        except ALLOWED:
            return None
    rank = len(shape.spatial)
    average = isinstance(stage, AvgPool)
    most = INT32 if average or rank > 1 else 2**62
    spatial = []
    for n, window in zip(shape.spatial, stage.windows(rank), strict=True):
        kernel, stride, padding = window
        if max(window) > most or min(kernel, stride) < 1 or not 0 <= padding <= kernel // 2:
            return None
        if n + 2 * padding < kernel or (average and rank == 3 and n < kernel):
            return None
        spatial.append((n + 2 * padding - kernel) // stride + 1)
    return shape._replace(spatial=tuple(spatial))


def _applied(stage: Stage, x: Tensor, env: dict[str, Tensor]) -> Tensor:
    """A stage's maths; pools axis by axis, with windows cut to the values there are."""
    if not isinstance(stage, Window):
        return stage.apply(x, dict(env))
    for a, (kernel, stride, padding) in enumerate(stage.windows(x.dim() - 2), 2):
        n = x.shape[a]
        count = (n + 2 * padding - kernel) // stride + 1
        firsts = [j * stride - padding for j in range(count)]
        spans = [x.narrow(a, max(0, i), min(n, i + kernel) - max(0, i)) for i in firsts]
        if isinstance(stage, AvgPool):
            parts = [span.sum(a, keepdim=True) / kernel for span in spans]
        else:
            parts = [span.amax(a, keepdim=True) for span in spans]
        x = torch.cat(parts, a)
    return x


def judge(call: Call, y: Tensor, expected: Tensor) -> None:
    if y.shape != expected.shape:
        raise Wrong(f"shape {list(y.shape)}, expected {list(expected.shape)}")
    if call.exact and not torch.equal(y.double(), expected.to(y.dtype).double()):
        raise Wrong(f"not exact: {y.flatten()[:8]} for {expected.flatten()[:8]}")
    bound = CLOSE[call.dtype] * (1 + expected.abs())
    if expected.numel() and not bool(((y.double() - expected).abs() <= bound).all()):
        raise Wrong(f"off by {float((y.double() - expected).abs().max())}")
