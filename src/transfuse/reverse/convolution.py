"""The reverse of the transposed convolution: torch's own, for input and weight."""

import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse import plain
from transfuse.problem import Problem


def backward(
    problem: Problem, g: Tensor, x: Tensor, weight: Tensor, by_x: bool, by_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients by input and weight, those asked for, from that by the convolution's output.

    All in one type. Where torch does not know such paddings, it takes what both ends have in common
    away, as ``reference.in_torch`` does; outputs beyond that were cropped, or held the bias alone.
    """
    padding, output_padding = problem.padding, problem.output_padding
    if not problem.in_torch:
        ends = [(a.padding, a.padding - a.output_padding) for a in problem.axes]
        padding, output_padding = tuple(max(0, min(pair)) for pair in ends), (0,) * problem.rank
        margins = [
            side
            for axis, taken in zip(reversed(problem.axes), reversed(padding), strict=True)
            for side in _margins(axis.grid - 2 * taken, axis.padding - taken, axis.size)
        ]
        g = F.pad(g, margins)
    # oneDNN multiplies the zeros around its input by the weights; float64 does not go through it.
    leaks = x.device.type == "cpu" and x.dtype != torch.float64 and not plain.finite(weight)
    wide = [each.double() if leaks else each for each in (g, x, weight)]
    found = torch.ops.aten.convolution_backward(
        *wide,
        None,
        problem.stride,
        padding,
        problem.dilation,
        True,  # transposed
        output_padding,
        problem.groups,
        (by_x, by_weight, False),
    )
    dx, dw = (each.to(x.dtype) if each is not None else None for each in found[:2])
    return dx, dw


def _margins(full: int, start: int, size: int) -> tuple[int, int]:
    """What is added before and after ``size`` places from ``start`` on to make all ``full``."""
    return start, full - start - size
