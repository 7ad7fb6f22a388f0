"""The reverse of the transposed convolution: ordinary ones, which are torch's.

``y = convT(x, w)`` is the adjoint of a convolution with the same weights, so the gradient by x is
that convolution of the one by y, and the gradient by w is its gradient by its weights, with x in
the place of what comes in. Torch runs both at least as fast as its ``convT`` backward, and along
three axes several times as fast. At stride 1 the first is a transposed convolution, too, of flipped
taps.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse import plain
from transfuse.problem import Problem


def backward(
    problem: Problem, g: Tensor, x: Tensor, weight: Tensor, by_x: bool, by_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients by input and weight, those asked for, from that by the convolution's output.

    All are of one type.
    """
    padding: Sequence[int] = problem.padding
    if any(a.padding < 0 or not 0 <= a.output_padding < a.stride for a in problem.axes):
        padding = [max(0, min(a.padding, a.padding - a.output_padding)) for a in problem.axes]
        for dim, (axis, taken) in enumerate(zip(problem.axes, padding, strict=True), 2):
            g = _covering(g, dim, axis.padding - taken, axis.grid - 2 * taken)
    none = (0,) * problem.rank
    options = (problem.stride, padding, problem.dilation, False, none, problem.groups)
    # oneDNN multiplies the zeros around its input by the weights; float64 does not go through it.
    leaks = x.device.type == "cpu" and x.dtype != torch.float64 and not plain.finite(weight)
    dtype = x.dtype
    if leaks:
        g, x, weight = g.double(), x.double(), weight.double()
    dx = dw = None
    if by_x:
        dx = torch.ops.aten.convolution(g, weight, None, *options).to(dtype)
    if by_weight:
        only = (False, True, False)
        dw = torch.ops.aten.convolution_backward(x, g, weight, None, *options, only)[1].to(dtype)
    return dx, dw


def turned(problem: Problem) -> Problem | None:
    """The transposed convolution that gives the gradient by the input; None where there is none."""
    if set(problem.stride) != {1}:
        return None
    reaches = (d * (k - 1) for d, k in zip(problem.dilation, problem.kernel, strict=True))
    return replace(
        problem,
        in_channels=problem.out_channels,
        out_channels=problem.in_channels,
        spatial=problem.output().spatial,
        padding=tuple(reach - p for reach, p in zip(reaches, problem.padding, strict=True)),
        output_padding=tuple(-p for p in problem.output_padding),
        layout="contiguous" if problem.layout == "strided" else problem.layout,
    )


def flipped(problem: Problem, weight: Tensor) -> Tensor:
    """Its weights."""
    parts = weight.reshape(problem.groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(0, 1)
    return parts.flip(*range(2, parts.dim())).contiguous()


def _covering(g: Tensor, dim: int, first: int, size: int) -> Tensor:
    """The gradient along all that taps reach of an axis; ``first``: where its own begins there.

    Outputs beyond that held the bias alone, and those cropped have no gradient.
    """
    begin = min(g.shape[dim], max(0, -first))
    kept = max(0, min(g.shape[dim], size - first) - begin)
    before = max(0, first) if kept else 0
    margins = (0, 0) * (g.dim() - 1 - dim) + (before, size - before - kept)
    return F.pad(g.narrow(dim, begin, kept), margins)
