"""Stages that see one window: pooling in floor mode, windows past the last full one are dropped."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse.geometry import LARGEST, bounded, per_axis, pooled
from transfuse.problem import Shape, expect_addressable
from transfuse.stages.base import Env, Kind, Operand, Stage, channel, parameter, shown

Size = int | tuple[int, ...]


@dataclass(frozen=True)
class Window(Stage):
    """Windows of ``kernel`` every ``stride`` (default: the kernel), after ``padding``."""

    kind: ClassVar[Kind] = Kind.WINDOW
    kernel: Size | str = parameter(int, tuple)
    stride: Size | None = None
    padding: Size = 0

    def windows(self, rank: int) -> tuple[tuple[int, int, int], ...]:
        """(kernel, stride, padding) per axis."""
        kernel = per_axis(f"{self.name} kernel", self.kernel, rank)
        stride = (
            kernel if self.stride is None else per_axis(f"{self.name} stride", self.stride, rank)
        )
        padding = per_axis(f"{self.name} padding", self.padding, rank)
        return tuple(zip(kernel, stride, padding, strict=True))

    @property
    def tiles(self) -> bool:
        """Whether the windows tile the axes: kernel = stride, no padding."""
        return self.stride in (None, self.kernel) and self.padding == 0

    def shape(self, shape: Shape) -> Shape:
        rank = len(shape.spatial)
        for name, given in zip(
            ("kernel", "stride", "padding"), zip(*self.windows(rank), strict=True), strict=True
        ):
            bounded(self.name, name, given, self._largest(rank))
        spatial = []
        for n, (kernel, stride, padding) in zip(shape.spatial, self.windows(rank), strict=True):
            if kernel < 1 or stride < 1:
                raise RuntimeError(
                    f"{self.name}: kernel and stride must be at least 1, "
                    f"but got kernel={kernel}, stride={stride}"
                )
            if not 0 <= padding <= kernel // 2:
                raise RuntimeError(
                    f"{self.name}: padding must be 0 to {kernel // 2} (half of kernel={kernel}), "
                    f"but got padding={padding}"
                )
            spatial.append(pooled(n, kernel, stride, padding))
            size = (n + 2 * padding - kernel) // stride + 1
            if size < 1:
                raise RuntimeError(
                    f"{self.name}: input of size {list(shape.spatial)} is smaller than a window "
                    f"of {kernel}; output size would be "
                    f"({n} + 2*{padding} - {kernel}) // {stride} + 1 = {size}"
                )
        found = shape._replace(spatial=tuple(spatial))
        expect_addressable(f"{self.name}: output", found.dims)
        return found

    def _largest(self, rank: int) -> int:
        """The largest number that torch takes for a window: in 64 bits along a single axis."""
        return 2**62 if rank == 1 else LARGEST

    def need(self, extents: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        windows = self.windows(len(extents))
        reach = (
            (n - 1) * stride + kernel - padding
            for n, (kernel, stride, padding) in zip(extents, windows, strict=True)
        )
        return tuple(min(at, n) for at, n in zip(reach, full, strict=True))

    def _options(self, x: Tensor) -> tuple[tuple[int, ...], ...]:
        kernel, stride, padding = zip(*self.windows(x.dim() - 2), strict=True)
        return kernel, stride, padding

    def __str__(self) -> str:
        def size(value: object) -> str:
            return "x".join(map(str, value)) if isinstance(value, tuple) else f"{value}"

        extra = "" if self.stride is None else f", stride {size(self.stride)}"
        extra += "" if self.padding == 0 else f", padding {size(self.padding)}"
        return f"{self.name}({size(self.kernel)}{extra})"


_MAX: dict[int, Callable[..., Tensor]] = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}
_AVG: dict[int, Callable[..., Tensor]] = {3: F.avg_pool1d, 4: F.avg_pool2d, 5: F.avg_pool3d}


@dataclass(frozen=True)
class MaxPool(Window):
    """``y = max over the window``; NaN wins."""

    name: ClassVar[str] = "max_pool"
    exact: ClassVar[bool] = True

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return _MAX[x.dim()](x, *self._options(x))


@dataclass(frozen=True)
class AvgPool(Window):
    """``y = mean over the window``, padding counted as zeros; ``divide=False`` gives the sum."""

    name: ClassVar[str] = "avg_pool"
    divide: bool = True

    def _largest(self, rank: int) -> int:
        return LARGEST  # whatever the rank

    def shape(self, shape: Shape) -> Shape:
        found = super().shape(shape)
        for n, (kernel, _, padding) in zip(
            shape.spatial, self.windows(len(shape.spatial)), strict=True
        ):
            if n < kernel and len(shape.spatial) == 3:
                raise RuntimeError(
                    f"avg_pool: input of size {list(shape.spatial)} is smaller than a window of "
                    f"{kernel}; in three dimensions padding={padding} does not count, as in torch"
                )
        return found

    def apply(self, x: Tensor, env: Env) -> Tensor:
        y = _AVG[x.dim()](x, *self._options(x))
        return y if self.divide else y * self.cells(x.dim() - 2)

    def cells(self, rank: int) -> int:
        """Elements of one window."""
        return prod(kernel for kernel, _, _ in self.windows(rank))

    def __str__(self) -> str:
        return super().__str__() if self.divide else super().__str__().replace("avg", "sum", 1)


@dataclass(frozen=True)
class ExtremumPool(Window):
    """``y = max over the window`` where the channel's ``sign`` operand is >= 0, else the min.

    What max-pooling becomes when it moves before a multiplication by that operand.
    """

    name: ClassVar[str] = "extremum_pool"
    exact: ClassVar[bool] = True
    sign: Operand = parameter(Tensor, kw_only=True)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        flip = torch.where(channel(self.sign, env, x) < 0, -1.0, 1.0).to(x.dtype)
        return _MAX[x.dim()](x * flip, *self._options(x)) * flip

    def __str__(self) -> str:
        return super().__str__()[:-1] + f" by sign of {shown(self.sign)})"
