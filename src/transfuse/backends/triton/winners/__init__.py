"""Gradients behind max windows on the GPU, from the few outputs that have one.

A list of winners is made of the windows' gradients, by channel; where in its window each is, is
found by computing the window's values again. Both gradients are sums over the list: by weights
channel by channel, by the input line by line, for which the list is brought in another order.
Nobody waits for anybody: every sum has one order, and every run gives the same bits.
"""

from collections.abc import Sequence as Some
from math import prod

from torch import Tensor

from transfuse.backends.base import Scatter
from transfuse.backends.triton.winners import launches
from transfuse.backends.triton.winners.pattern import MOST, MOST_TAPS, pattern_axes
from transfuse.problem import Problem
from transfuse.reverse.axes import AxisWindows

ADDRESSED = 2**31
"""Outputs, inputs and weights are told apart by 32-bit integers."""
KEPT = 16
"""Ways for tensors to lie that launches are kept for."""


def prepare(problem: Problem, windows: Some[AxisWindows], most: int) -> Scatter | None:
    """The gradients of a convolution whose output these windows see, ``most`` of which have one."""
    axes = pattern_axes(problem, windows)
    columns, phases = prod(a.outputs for a in axes), prod(a.every for a in axes)
    if max(columns, phases) > MOST or axes[-1].taps > MOST_TAPS:
        return None
    if max(problem.output().numel, problem.input.numel, prod(problem.weight)) >= ADDRESSED:
        return None
    return _Scattered(launches.Facts(problem, tuple(windows), axes, most))


class _Scattered:
    """The launches, by how tensors lie."""

    def __init__(self, facts: launches.Facts) -> None:
        self.facts = facts
        self.made: dict[object, launches.Made] = {}

    def __call__(
        self,
        g: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        values: Tensor | None,
        dx: Tensor | None,
        dw: Tensor | None,
    ) -> None:
        assert values is None, "looked up nowhere"
        given = (g, x, weight, bias, dx)
        lies = (None if t is None else (t.dtype, t.stride(), t.data_ptr() & 15 > 0) for t in given)
        key = (x.device, dw is None, *lies)
        if key not in self.made:
            if len(self.made) >= KEPT:
                self.made.clear()
            self.made[key] = launches.Made(self.facts, g, x, weight, bias, dx, dw is not None)
        self.made[key](g, x, weight, bias, dx, dw)
