"""Stages that see one window: pooling over windows of one size, or as many as are asked for.

The functions of ``pools.py`` make them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isinf, prod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse.geometry import LARGEST, bounded, per_axis, pooled
from transfuse.maths import eq, exp, log, sqrt, where
from transfuse.maths.expr import Expr, X
from transfuse.problem import Shape, expect_addressable
from transfuse.stages.actions import Pool
from transfuse.stages.base import Env, Kind, Operand, Stage, channel, parameter, shown
from transfuse.stages.walk import Given, Walk
from transfuse.symbols import Symbol

Size = int | tuple[int, ...]


@dataclass(frozen=True)
class Window(Stage):
    """Windows of ``kernel_size`` every ``stride`` (default: the kernel), after ``padding``.

    In ``ceil_mode`` a last window may reach beyond the padding, if it begins before it.
    """

    kind: ClassVar[Kind] = Kind.WINDOW
    averages: ClassVar[bool] = False
    """Whether torch computes it by ``avg_pool``, which takes fewer shapes."""
    kernel_size: Size | str = parameter(int, tuple)
    stride: Size | None = None
    padding: Size = 0
    dilation: Size = 1
    ceil_mode: bool = False

    def windows(self, rank: int) -> tuple[tuple[int, int, int], ...]:
        """(kernel, stride, padding) per axis."""
        kernel = per_axis(f"{self.name} kernel_size", self.kernel_size, rank)
        stride = (
            kernel if self.stride is None else per_axis(f"{self.name} stride", self.stride, rank)
        )
        padding = per_axis(f"{self.name} padding", self.padding, rank)
        return tuple(zip(kernel, stride, padding, strict=True))

    def dilations(self, rank: int) -> tuple[int, ...]:
        return per_axis(f"{self.name} dilation", self.dilation, rank)

    @property
    def tiles(self) -> bool:
        """Whether the windows tile the axes: kernel = stride, no padding, no part of a window."""
        in_place = self.stride in (None, self.kernel_size) and self.padding == 0
        return in_place and self.dilation == 1 and not self.ceil_mode

    @property
    def filled(self) -> bool:
        """Whether every window is known to hold an input: with gaps, one may miss them all."""
        return self.dilation == 1 or self.padding == 0

    def simple(self, rank: int) -> bool:
        """Whether kernel, stride and padding are all there is to it, as in an engine's windows."""
        return set(self.dilations(rank)) == {1} and not self.ceil_mode

    def shape(self, shape: Shape) -> Shape:
        rank = len(shape.spatial)
        windows, dilations = self.windows(rank), self.dilations(rank)
        named = zip(("kernel", "stride", "padding"), zip(*windows, strict=True), strict=True)
        for name, given in (*named, ("dilation", dilations)):
            bounded(self.name, name, given, self._largest(rank))
        spatial = []
        for n, window, dilation in zip(shape.spatial, windows, dilations, strict=True):
            kernel, stride, padding = window
            if kernel < 1 or stride < 1:
                raise RuntimeError(
                    f"{self.name}: kernel and stride must be at least 1, "
                    f"but got kernel={kernel}, stride={stride}"
                )
            if dilation < 1:
                raise RuntimeError(f"{self.name}: dilation must be at least 1, but got {dilation}")
            if not 0 <= padding <= kernel // 2:
                raise RuntimeError(
                    f"{self.name}: padding must be 0 to {kernel // 2} (half of kernel={kernel}), "
                    f"but got padding={padding}"
                )
            if self.averages and rank == 3 and n < kernel:
                raise RuntimeError(
                    f"{self.name}: input of size {list(shape.spatial)} is smaller than a window of "
                    f"{kernel}; in three dimensions padding={padding} does not count, as in torch"
                )
            size = pooled(n, kernel, stride, padding, dilation, self.ceil_mode)
            spatial.append(size)
            if size < 1:
                reach = dilation * (kernel - 1) + 1
                raise RuntimeError(
                    f"{self.name}: input of size {list(shape.spatial)} is smaller than a window "
                    f"of {reach}; output size would be ({n} + 2*{padding} - {reach}) // {stride} "
                    f"+ 1 = {(n + 2 * padding - reach) // stride + 1}"
                )
        found = shape._replace(spatial=tuple(spatial))
        expect_addressable(f"{self.name}: output", found.dims)
        return found

    def _largest(self, rank: int) -> int:
        """The largest number that torch takes for a window: in 64 bits along a single axis."""
        return 2**62 if rank == 1 and not self.averages else LARGEST

    def need(self, extents: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        rank = len(extents)
        reach = (
            (n - 1) * stride + dilation * (kernel - 1) + 1 - padding
            for n, (kernel, stride, padding), dilation in zip(
                extents, self.windows(rank), self.dilations(rank), strict=True
            )
        )
        return tuple(min(at, n) for at, n in zip(reach, full, strict=True))

    def cells(self, rank: int) -> int:
        """Elements of one window."""
        return prod(kernel for kernel, _, _ in self.windows(rank))

    def _options(self, rank: int) -> tuple[Sequence[int], ...]:
        kernel, stride, padding = zip(*self.windows(rank), strict=True)
        return kernel, stride, padding

    def _slide(self, walk: Walk) -> dict[str, Any]:
        """What ``Walk.slide`` is told of the windows."""
        rank = len(walk.shape.spatial)
        kernel, stride, padding = self._options(rank)
        return {
            "outputs": self.shape(walk.shape).spatial,
            "kernel": kernel,
            "stride": stride,
            "padding": padding,
            "dilation": self.dilations(rank),
        }

    def __str__(self) -> str:
        extra = "" if self.stride is None else f", stride {_size(self.stride)}"
        extra += "" if self.padding == 0 else f", padding {_size(self.padding)}"
        extra += "" if self.dilation == 1 else f", dilation {_size(self.dilation)}"
        extra += ", ceil_mode=True" if self.ceil_mode else ""
        return f"{self.name}({_size(self.kernel_size)}{extra})"


def _size(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else f"{value}"


_MAX: dict[int, Callable[..., Tensor]] = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}


@dataclass(frozen=True)
class MaxPool(Window):
    """``y = max over the window``; NaN wins."""

    name: ClassVar[str] = "max_pool"
    exact: ClassVar[bool] = True

    def apply(self, x: Tensor, env: Env) -> Tensor:
        rank = x.dim() - 2
        return _MAX[x.dim()](x, *self._options(rank), self.dilations(rank), self.ceil_mode)

    @property
    def largest(self) -> bool:
        return self.filled

    def by_sign(self, sign: Operand) -> "ExtremumPool":
        return ExtremumPool(**vars(self), sign=sign)

    def merged(self, after: Stage) -> "MaxPool | None":
        if not (isinstance(after, MaxPool) and self.tiles and after.tiles):
            return None
        one, other = self.kernel_size, after.kernel_size
        single = isinstance(one, int | Symbol) and isinstance(other, int | Symbol)
        return MaxPool(one * other) if single else None  # type: ignore[operator]

    def action(self, shape: Shape) -> Pool | None:
        rank = len(shape.spatial)
        return Pool("max", self.windows(rank)) if self.simple(rank) else None

    def sweep(self, walk: Walk) -> None:
        options = self._slide(walk)
        sizes = ("kernel", "stride", "padding")
        if any(size > LARGEST for name in sizes for size in options[name]):
            told = (options[name] for name in ("outputs", *sizes, "dilation"))
            cut = (_cut(*each) for each in zip(walk.shape.spatial, *told, strict=True))
            options |= zip(sizes, zip(*cut, strict=True), strict=True)
        walk.slide("max", **options)


def _cut(
    n: int, outputs: int, kernel: int, stride: int, padding: int, dilation: int
) -> tuple[int, int, int]:
    """Kernel, stride and padding of smaller windows that hold the same of ``n`` values.

    Along one axis torch takes windows of any size. Most of one that 32 bits do not hold is padding,
    and its values lie side by side: no other fits its padding.
    """
    if dilation == 1:
        needless = max(0, padding - (outputs - 1) * stride)  # in front of the last window's values
        padding -= needless
        kernel = min(kernel - needless, n + padding)
    return kernel, stride if outputs > 1 else 1, padding


@dataclass(frozen=True)
class AvgPool(Window):
    """``y = sum over the window / the elements in it``, or ``/ divisor_override``."""

    name: ClassVar[str] = "avg_pool"
    averages: ClassVar[bool] = True
    count_include_pad: bool = True
    divisor_override: int | None = None

    def divisor(self, rank: int) -> int | None:
        """What the sum of every window is divided by; None where it is not the same for all."""
        if self.divisor_override is not None:
            return self.divisor_override
        padded = any(padding for _, _, padding in self.windows(rank))
        varies = self.ceil_mode or (padded and not self.count_include_pad)
        return None if varies else self.cells(rank)

    def undivided(self, rank: int) -> tuple["AvgPool", int] | None:
        divisor = self.divisor(rank)
        return None if divisor is None else (replace(self, divisor_override=1), divisor)

    def simple(self, rank: int) -> bool:
        return super().simple(rank) and self.divisor(rank) is not None

    def action(self, shape: Shape) -> Pool | None:
        rank = len(shape.spatial)
        divisor = self.divisor(rank)
        if divisor is None or not self.simple(rank):
            return None
        return Pool("sum", self.windows(rank), divisor)

    def shape(self, shape: Shape) -> Shape:
        if self.divisor_override == 0:
            raise RuntimeError(f"{self.name}: divisor_override must not be 0")
        return super().shape(shape)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        rank = x.dim() - 2
        options = (self.ceil_mode, self.count_include_pad, self.divisor_override)
        if rank > 1:
            return _AVG[rank](x, *self._options(rank), *options)
        # Along one axis torch's function has no divisor; its kernel is that of two.
        windows = zip((1, 1, 0), self._options(1), strict=True)
        return _AVG[2](x.unsqueeze(2), *((a, *b) for a, b in windows), *options).squeeze(2)

    def sweep(self, walk: Walk) -> None:
        walk.slide(
            "mean",
            **self._slide(walk),
            counts_padding=self.count_include_pad,
            divisor=self.divisor_override,
        )

    def __str__(self) -> str:
        extra = "" if self.count_include_pad else ", count_include_pad=False"
        divisor = self.divisor_override
        extra += "" if divisor is None else f", divisor_override={divisor}"
        return super().__str__()[:-1] + extra + ")"


_AVG: dict[int, Callable[..., Tensor]] = {2: F.avg_pool2d, 3: F.avg_pool3d}
_LP: dict[int, Callable[..., Tensor]] = {1: F.lp_pool1d, 2: F.lp_pool2d, 3: F.lp_pool3d}


@dataclass(frozen=True)
class LpPool(Window):
    """``y = (sum over the window of x**norm_type) ** (1 / norm_type)``, as torch computes it.

    That is by way of the mean: of a window that ``ceil_mode`` cuts short, the sum is taken as that
    of a full one with the same mean. Of an infinite norm it is the limit: the largest ``|x|``, or
    the smallest where that is -Inf.
    """

    name: ClassVar[str] = "lp_pool"
    averages: ClassVar[bool] = True
    norm_type: float = field(default=2.0, kw_only=True)

    def shape(self, shape: Shape) -> Shape:
        if self.norm_type == 0:
            raise ZeroDivisionError("lp_pool: norm_type must not be 0")
        return super().shape(shape)

    def simple(self, rank: int) -> bool:
        return False

    def apply(self, x: Tensor, env: Env) -> Tensor:
        rank = x.dim() - 2
        kernel, stride, padding = self._options(rank)
        if isinf(self.norm_type):  # torch knows these from some version on
            sized = x.abs() if self.norm_type > 0 else -x.abs()
            y = _MAX[x.dim()](sized, kernel, stride, padding, 1, self.ceil_mode)
            return y if self.norm_type > 0 else -y
        size, step = (kernel[0], stride[0]) if rank == 1 else (kernel, stride)
        return _LP[rank](x, self.norm_type, size, step, self.ceil_mode)

    def sweep(self, walk: Walk) -> None:
        if isinf(self.norm_type):
            walk.map(abs(X) if self.norm_type > 0 else -abs(X))
            walk.slide("max", **self._slide(walk))
            if self.norm_type < 0:
                walk.map(-X)
            return
        cells = self.cells(len(walk.shape.spatial))
        walk.map(_power(X, self.norm_type))
        walk.slide("mean", **self._slide(walk))
        root = _power(X * cells, 1 / self.norm_type)
        # As in torch the derivative of a window of zeros is 0, not that of a root there.
        walk.map(where(eq(X, 0.0), 0.0, root) if self.norm_type > 1 else root)

    def __str__(self) -> str:
        return f"{self.name}({self.norm_type}, {super().__str__().partition('(')[2]}"


def _power(x: Expr, power: float) -> Expr:
    if power == 0.5:
        return sqrt(x)
    return x ** int(power) if power.is_integer() else exp(log(x) * power)


@dataclass(frozen=True)
class ExtremumPool(Window):
    """``y = max over the window`` where the channel's ``sign`` operand is >= 0, else the min.

    What max-pooling becomes when it moves before a multiplication by that operand.
    """

    name: ClassVar[str] = "extremum_pool"
    exact: ClassVar[bool] = True
    sign: Operand = parameter(Tensor, kw_only=True)

    def apply(self, x: Tensor, env: Env) -> Tensor:
        rank = x.dim() - 2
        flip = torch.where(channel(self.sign, env, x) < 0, -1.0, 1.0).to(x.dtype)
        options = (*self._options(rank), self.dilations(rank), self.ceil_mode)
        return _MAX[x.dim()](x * flip, *options) * flip

    def action(self, shape: Shape) -> Pool | None:
        rank = len(shape.spatial)
        assert isinstance(self.sign, str)
        return Pool("sign", self.windows(rank), sign=self.sign) if self.simple(rank) else None

    def sweep(self, walk: Walk) -> None:
        assert isinstance(self.sign, str)
        walk.slide("sign", **self._slide(walk), sign=Given(self.sign, (1,)))

    def __str__(self) -> str:
        return super().__str__()[:-1] + f" by sign of {shown(self.sign)})"


_ADAPTIVE: dict[tuple[str, int], Callable[..., Tensor]] = {
    ("avg", 1): F.adaptive_avg_pool1d,
    ("avg", 2): F.adaptive_avg_pool2d,
    ("avg", 3): F.adaptive_avg_pool3d,
    ("max", 1): F.adaptive_max_pool1d,
    ("max", 2): F.adaptive_max_pool2d,
    ("max", 3): F.adaptive_max_pool3d,
}
Sizes = int | None | tuple[int | None, ...]


@dataclass(frozen=True)
class AdaptivePool(Stage):
    """``y = mean or max over windows that share out each axis``, as many as ``output_size`` says.

    Output ``o`` of ``m`` covers the inputs from ``floor(o * n / m)`` to ``ceil((o + 1) * n / m)``.
    """

    output_size: Any
    made: str = field(default="avg", metadata={"names": True, "words": ("avg", "max")})

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"adaptive_{self.made}_pool"

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.made == "max"

    def sees(self, rank: int) -> Kind:
        return Kind.AXES

    def outputs(self, spatial: tuple[int, ...]) -> tuple[int, ...]:
        """How many along each axis; where nothing is said, as many as there are."""
        given = self.output_size
        sizes = given if isinstance(given, tuple) else (given,) * len(spatial)
        if len(sizes) != len(spatial):
            raise RuntimeError(
                f"{self.name}: output_size must be one integer or {len(spatial)} of them, one per "
                f"axis, but got {list(sizes)}"
            )
        found = tuple(n if size is None else size for n, size in zip(spatial, sizes, strict=True))
        if min(found) < 1:
            raise RuntimeError(
                f"{self.name}: elements of output_size must be at least 1, but got {list(found)}"
            )
        return found

    def shape(self, shape: Shape) -> Shape:
        found = shape._replace(spatial=self.outputs(shape.spatial))
        expect_addressable(f"{self.name}: output", found.dims)
        return found

    def need(self, extents: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        return full

    def apply(self, x: Tensor, env: Env) -> Tensor:
        outputs = self.outputs(tuple(x.shape[2:]))
        return _ADAPTIVE[self.made, len(outputs)](x, outputs)

    def sweep(self, walk: Walk) -> None:
        outputs = self.outputs(walk.shape.spatial)
        walk.slide("mean" if self.made == "avg" else "max", outputs, adaptive=True)
