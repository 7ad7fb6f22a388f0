"""The launch of ``Slide``.

An axis along which windows are one element, one after another, is an axis like those of samples
and channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import product
from math import prod

from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.lower import parts
from transfuse.backends.triton.segments import Node
from transfuse.backends.triton.sweeps.blocks import (
    MOST,
    Across,
    BlockAxis,
    Laid,
    laid,
    merged,
    widest,
)
from transfuse.backends.triton.sweeps.launch_arguments import LaunchArguments
from transfuse.backends.triton.told import told
from transfuse.maths.expr import X, substituted
from transfuse.sweeps import Fold, Slide, View

SLIDE = Kernel("sweeps.slide_kernel", "slide", static=3)

ELEMENTS = (256, 1024)
"""Of a block: where windows slide along its columns, and where they do not. Adaptive windows, which
are walked tap by tap in a loop, are as many in both."""
COLUMNS = (64, 16)
ADAPTIVE_COLUMNS = (256, 64, 16)
MANY = 64
"""Taps of windows that are rather folded, where they lie side by side and share no input."""
FEW = 32
"""Taps that are written out: a kernel is built for their number along each axis."""


@dataclass(frozen=True)
class WindowAxis:
    """Windows along one axis of inputs."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    dilation: int


@dataclass(frozen=True)
class Sliding:
    """What the kernel is compiled for, beside where its views lie.

    Views are the result, then the ``others``, up to that number; then values, up to ``values``.
    """

    folding: str
    taps: tuple[tuple[int, ...], ...]  # those that are written out: of each, its number along axes
    adaptive: bool
    long: bool  # inputs times outputs pass 32 bits
    counts_padding: bool
    rows: tuple[int, ...]  # of each axis: the window along it, or -1
    cols: tuple[int, ...]
    before: Node
    after: Node
    number: int  # the first of those of ``after``
    others: int
    values: int
    divisor: int  # where the number is to divide by; -1: none
    sign: int  # which of the others has the signs


def launches(sweep: Slide, at: Callable[[int], int]) -> list[Launch]:
    """The launch of a sweep; ``at`` has the number of a slot's tensor."""
    results = [sweep.out, *(view for _, view in sweep.others)]
    views = [*results, *(view for _, view in sweep.values)]
    if 0 in sweep.out.sizes:
        return []
    given = LaunchArguments(views, at)
    before = parts(sweep.before, [name for name, _ in sweep.values], given.numbers)
    first = 3 * len(given.numbers)
    named = [name for name, _ in sweep.others]
    numbers: list[float] = []
    after = parts(sweep.after, named, numbers)
    given.numbers += numbers
    divisor = -1
    if sweep.divisor is not None:
        divisor = 3 * len(given.numbers)
        given.numbers.append(sweep.divisor)
    windows = _windows(sweep)
    found, rows, cols = _laid(sweep, views, len(results), windows)
    sliding = Sliding(
        sweep.folding,
        _few(windows) if not sweep.adaptive else (),
        sweep.adaptive,
        any(window.inputs * (window.outputs + 1) >= MOST for window in windows),
        sweep.counts_padding,
        rows,
        cols,
        before,
        after,
        first,
        len(results),
        len(views),
        divisor,
        named.index("sign") if sweep.folding == "sign" else 0,
    )
    ints = tuple(tuple(map(told, astuple(window))) for window in windows)
    taps = (told(prod(window.kernel for window in windows)),)
    arguments = [*given.arguments(found), ints, taps, found.block, sliding, given.acc]
    return [Launch(SLIDE, found.blocks, arguments)]


def folded(sweep: Slide) -> Fold | None:
    """The same as a fold over axes of windows, where these are large and share no input."""
    windows = _windows(sweep)
    if sweep.folding == "sign" or prod(window.kernel for window in windows) < MANY:
        return None
    for window in windows:
        apart = window.stride == window.kernel and not window.padding and window.dilation == 1
        if sweep.adaptive:
            apart = window.inputs == window.outputs * window.kernel
        if not apart or window.inputs < window.outputs * window.kernel:
            return None
    kernel = tuple(window.kernel for window in windows)

    def view(given: View) -> View:
        n, c, *space = given.strides
        steps = tuple(stride * size for stride, size in zip(space, kernel, strict=True))
        sizes = (*sweep.out.sizes, *kernel)
        return replace(given, sizes=sizes, strides=(n, c, *steps, *space))

    folding, after = sweep.folding, sweep.after
    if folding == "mean" and sweep.divisor is not None:
        folding, after = "sum", substituted(after, {"x": X / sweep.divisor})
    values = tuple((name, view(given)) for name, given in sweep.values)
    return Fold((sweep.out,), folding, values, sweep.before, after, sweep.others)


def _few(windows: Sequence[WindowAxis]) -> tuple[tuple[int, ...], ...]:
    """The taps of windows, where they are few."""
    kernel = [window.kernel for window in windows]
    return tuple(product(*map(range, kernel))) if prod(kernel) <= FEW else ()


def _windows(sweep: Slide) -> list[WindowAxis]:
    """Windows along every axis of space."""
    inputs, outputs = sweep.values[0][1].sizes[2:], sweep.out.sizes[2:]
    if sweep.adaptive:  # the most inputs that a window may have
        return [
            WindowAxis(n, o, n // o + (2 if n % o else 0), 1, 0, 1)
            for n, o in zip(inputs, outputs, strict=True)
        ]
    options = (sweep.kernel, sweep.stride, sweep.padding, sweep.dilation)
    return [WindowAxis(*each) for each in zip(inputs, outputs, *options, strict=True)]


def _laid(
    sweep: Slide, views: Sequence[View], results: int, windows: Sequence[WindowAxis]
) -> tuple[Laid, tuple[int, ...], tuple[int, ...]]:
    """What lies innermost in the values along columns, all else along rows; the windows of each."""
    found = []
    for i, size in enumerate(sweep.out.sizes):
        strides = tuple(view.strides[i] for view in views)
        window = i - 2
        if i < 2 or windows[i - 2] == WindowAxis(size, size, 1, 1, 0, 1):
            window = -1
        if size > 1 or window >= 0:
            found.append(BlockAxis(size, strides, window))
    key = [*range(results, len(views)), *range(results)]
    one = BlockAxis(1, (0,) * len(views))
    *outer, inner = merged(found, key) or [one]
    outer = outer or [one]
    columns = widest(inner.size, ADAPTIVE_COLUMNS if sweep.adaptive else COLUMNS)
    moved = range(results, len(views)) if inner.window >= 0 else ()
    many = ELEMENTS[inner.window < 0 or sweep.adaptive]
    rows = Across(outer, many // columns, even=False)
    block = laid(views, rows, Across([inner], columns), moved)
    return block, tuple(axis.window for axis in outer), (inner.window,)
