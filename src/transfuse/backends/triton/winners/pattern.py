"""What the kernels of winners are compiled for, and the integers that they are told.

Along an axis an output ``o`` and an input ``i`` meet at tap ``k`` where ``o + padding`` is
``i * stride + k * dilation``. Here outputs are counted from the padding on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

from transfuse.backends.triton.segments import power
from transfuse.backends.triton.strides import Three, three
from transfuse.backends.triton.told import Divisor, divisor, told
from transfuse.problem import Problem
from transfuse.reverse.axes import AxisWindows

LEAST = 16
"""The narrowest side of a matrix that tensor cores multiply."""
MOST = 256
"""Outputs of a window, or phases of a stride, that have a column each."""

MOST_TAPS = 16
"""Taps along a line that reach an output: they are written out."""


@dataclass(frozen=True)
class AxisPattern:
    """One axis. Windows see inputs one after another from their first on, ``inputs`` at most.

    A column of a matrix stands for an output of a window, ``outputs`` of them. Seen from the
    window's first input these are ``step`` apart from ``first`` on: a tap's dilation times its
    number. Where windows move by whole strides, columns are the window's own outputs; else they
    stand for those of windows that begin anywhere between two inputs.

    The taps that reach an output are ``every`` apart, ``taps`` at most, and the inputs that they
    find are ``hop`` apart.
    """

    kernel: int
    stride: int
    padding: int
    dilation: int
    window: int
    window_stride: int
    window_padding: int
    window_dilation: int

    @property
    def reach(self) -> int:
        return (self.kernel - 1) * self.dilation

    @property
    def least(self) -> int:
        """From an input to the first window that it could reach if that began there, negative."""
        return self.padding - self.window_padding - self.reach

    @property
    def lift(self) -> int:
        """Whole strides that make this larger than 0: divisions of kernels round to 0."""
        return max(0, -self.least) // self.stride + 1

    @property
    def whole(self) -> bool:
        return self.window_stride % self.stride == 0

    @property
    def first(self) -> int:
        if not self.whole:
            return self.reach - (self.stride - 1)
        return self.reach - (self.window_padding - self.padding + self.reach) % self.stride

    @property
    def step(self) -> int:
        return self.window_dilation if self.whole else 1

    @property
    def outputs(self) -> int:
        if self.whole:
            return self.window
        return self.stride + (self.window - 1) * self.window_dilation

    @property
    def inputs(self) -> int:
        return max(0, self.first + (self.outputs - 1) * self.step) // self.stride + 1

    @property
    def every(self) -> int:
        return self.stride // gcd(self.stride, self.dilation)

    @property
    def hop(self) -> int:
        return self.every * self.dilation // self.stride

    @property
    def taps(self) -> int:
        return -(-self.kernel // self.every)


@dataclass(frozen=True)
class Pattern:
    """What the kernels are compiled for.

    ``rows`` winners are taken at once, and ``channels`` of the input; inputs or windows of a line:
    ``line``. ``unit`` channels are one aligned piece of memory. ``last``: the gradient by the input
    has its channels side by side.
    """

    z: AxisPattern
    y: AxisPattern
    x: AxisPattern
    rows: int
    channels: int
    line: int
    unit: int
    grouped: bool
    biased: bool
    dot: str
    last: bool = False

    @property
    def axes(self) -> tuple[AxisPattern, AxisPattern, AxisPattern]:
        return self.z, self.y, self.x

    @property
    def columns(self) -> int:
        return max(LEAST, power(prod(axis.outputs for axis in self.axes)))

    @property
    def phases(self) -> int:
        return max(LEAST, power(prod(axis.every for axis in self.axes)))

    @property
    def inputs(self) -> int:
        return prod(axis.inputs for axis in self.axes)

    @property
    def taps(self) -> int:
        return prod(axis.kernel for axis in self.axes)

    @property
    def met(self) -> int:
        """Lines of taps that reach an output, at most."""
        return self.z.taps * self.y.taps


def pattern_axes(
    problem: Problem, windows: Sequence[AxisWindows]
) -> tuple[AxisPattern, AxisPattern, AxisPattern]:
    """The axes of a convolution and the windows behind it."""
    each = [
        AxisPattern(k, s, p, d, w.kernel, w.stride, w.padding, w.dilation)
        for k, s, p, d, w in zip(
            problem.kernel,
            problem.stride,
            problem.padding,
            problem.dilation,
            windows,
            strict=True,
        )
    ]
    missing = AxisPattern(1, 1, 0, 1, 1, 1, 0, 1)
    a, b, c = (*[missing] * (3 - len(each)), *each)
    return a, b, c


@dataclass(frozen=True)
class Listing:
    """What gradients are looked through by: blocks of ``channels`` and windows of a ``line``.

    ``inner``: the axis along which these lie side by side. ``tf32``: gradients are rounded.
    """

    channels: int
    line: int
    inner: int
    tf32: bool


@dataclass(frozen=True)
class Turn:
    """How two axes are turned around, by blocks of each; ``inner``: the one that lay innermost."""

    block_a: int
    block_b: int
    inner: str
    tf32: bool


class Sizes(NamedTuple):
    """What all kernels are told, as ``told.py`` has it.

    Winners are grouped by sample, line of windows, ``blocks`` of a line, and channel. No more than
    ``most`` are kept.
    """

    batch: Divisor
    inputs: tuple[int, ...]
    outputs: tuple[Divisor, ...]
    windows: tuple[Divisor, ...]
    lines: Divisor
    blocks: Divisor
    channels: Divisor
    group_channels: Divisor
    inner: int
    most: int


def sizes_of(
    problem: Problem, windows: Sequence[AxisWindows], line: int, unit: int, most: int
) -> Sizes:
    """Those of a problem, whose blocks of windows are so many of a line."""
    outputs = three([axis.n for axis in windows], 1)
    seen: Three = three([axis.outputs for axis in windows], 1)
    return Sizes(
        batch=divisor(problem.batch),
        inputs=tuple(map(told, three(problem.spatial, 1))),
        outputs=tuple(map(divisor, outputs)),
        windows=tuple(map(divisor, seen)),
        lines=divisor(seen[0] * seen[1]),
        blocks=divisor(-(-seen[2] // line)),
        channels=divisor(problem.out_channels),
        group_channels=divisor(problem.out_channels // problem.groups),
        inner=told(problem.in_channels // problem.groups // unit),
        most=told(most),
    )
