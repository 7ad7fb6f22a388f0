"""The oracle: any chain in plain torch, in float64.

``evaluate`` is a chain's maths in the type of its input; ``reference`` the same in float64. The
convolution has a second, independent definition, ``scatter``, that shares nothing with torch's.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse import plain
from transfuse.chain import Chain
from transfuse.elements import float32_on_cuda
from transfuse.geometry import Axis
from transfuse.problem import Problem, on_cuda
from transfuse.stages import ConvTranspose, Env, Stage

_CONV: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


def reference(
    chain: Chain, problem: Problem, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor]
) -> Tensor:
    """The chain in float64, whatever the type of its tensors."""
    wide: Env = {name: tensor.double() for name, tensor in operands.items()}
    return evaluate(chain, problem, x.double(), weight.double(), wide)


def evaluate(
    chain: Chain,
    problem: Problem,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    after: Callable[[Tensor], Tensor] | None = None,
    updated: Env | None = None,
) -> Tensor:
    """The chain stage by stage, one torch call or two each, in the type of ``x``.

    ``after`` is applied to the result of every stage. Nothing is written to the operands: those
    that the chain updates are put into ``updated`` as it leaves them.
    """
    env: Env = dict(operands)
    for stage in chain.typed(problem).stages:
        x = applied(stage, problem, x, weight, env)
        x = x if after is None else after(x)
    if updated is not None:
        updated.update((name, env[name]) for name in chain.updates)
    return x


def applied(stage: Stage, problem: Problem, x: Tensor, weight: Tensor, env: Env) -> Tensor:
    """One stage in torch; tensors that it updates are put into ``env``."""
    if not isinstance(stage, ConvTranspose):
        return stage.apply(x, env)
    kernel = weight if stage.weight_scale == 1 else weight * stage.weight_scale
    bias = env[stage.bias] if isinstance(stage.bias, str) else None
    return convolve(problem, x, kernel, bias)


def convolve(problem: Problem, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch's transposed convolution, with NaN and Inf where the definition has them.

    oneDNN multiplies the zeros around its input by the weights, so on CPU a NaN or Inf weight
    reaches outputs that its tap does not touch. float64 does not go through oneDNN. Traces and
    transforms, in which no values can be looked at, have torch's answer.
    """
    leaks = x.device.type == "cpu" and x.dtype != torch.float64 and not plain.finite(weight)
    bias = bias.double() if leaks and bias is not None else bias
    y = in_torch(
        problem,
        _convolution(problem, x),
        x.double() if leaks else x,
        weight.double() if leaks else weight,
        bias,
    )
    return y.to(x.dtype)


def in_torch(
    problem: Problem,
    convolve: Callable[..., Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """The problem by a function of torch's, which may not know such paddings.

    Where it does not, it takes what both ends have in common away. The rest is cropped, and outputs
    beyond those that a tap can reach hold the bias.
    """
    if problem.in_torch:
        return convolve(x, weight, bias, *_options(problem))
    options = problem.groups, problem.dilation
    ends = [(a.padding, a.padding - a.output_padding) for a in problem.axes]
    common = tuple(max(0, min(pair)) for pair in ends)
    y = convolve(x, weight, bias, problem.stride, common, (0,) * problem.rank, *options)
    for dim, (axis, taken) in enumerate(zip(problem.axes, common, strict=True), 2):
        y = _windowed(y, dim, axis.padding - taken, axis.size, bias)
    return y


def _windowed(y: Tensor, dim: int, start: int, size: int, fill: Tensor | None) -> Tensor:
    """``size`` places of an axis from ``start`` on; beyond its ends ``fill``, by channel."""
    before = min(size, max(0, -start))
    first = min(y.shape[dim], max(0, start))
    kept = max(0, min(y.shape[dim], start + size) - first)

    def filled(count: int) -> Tensor:
        dims = (*y.shape[:dim], count, *y.shape[dim + 1 :])
        ones = [1] * (y.dim() - 2)
        return y.new_zeros(dims) if fill is None else fill.view(1, -1, *ones).expand(dims)

    parts = filled(before), y.narrow(dim, first, kept), filled(size - before - kept)
    return torch.cat(parts, dim)


def torch_call(problem: Problem, x: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]] | None:
    """What ``convolve`` calls on a device that is no CPU, as torch is set now: a function of input,
    weight and bias, and what it takes after these. None: it takes more than one call.
    """
    return (_convolution(problem, x), _options(problem)) if problem.in_torch else None


def _options(problem: Problem) -> tuple[Any, ...]:
    """What torch's functions take after the tensors, in their order."""
    sizes = problem.stride, problem.padding, problem.output_padding
    return (*sizes, problem.groups, problem.dilation)


def _convolution(problem: Problem, x: Tensor) -> Callable[..., Tensor]:
    """torch's function; where it is set to another precision, one that takes the problem's.

    torch has no public way to say it for one call. Its setting is the whole process's, and to
    change it and put it back would change what other threads compute meanwhile.
    """
    matters = on_cuda(problem.device) and x.dtype == torch.float32
    if matters and problem.precision != float32_on_cuda():
        return partial(_convolve_in, problem.precision)
    return _CONV[problem.rank]


def _convolve_in(
    precision: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> Tensor:
    """What ``conv_transpose*d`` calls, with the precision as an argument instead of a setting."""
    cudnn = torch.backends.cudnn
    return torch._convolution(
        x,
        weight,
        bias,
        stride,
        padding,
        dilation,
        True,  # transposed
        output_padding,
        groups,
        cudnn.benchmark,
        cudnn.deterministic or torch.are_deterministic_algorithms_enabled(),
        cudnn.enabled,
        precision == "tf32",
    )


def scatter(problem: Problem, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The definition itself: every input adds ``x * w[k]`` to output ``i*s - p + k*d``, tap by tap.

    Slow and simple. Exact on small integers, and a NaN reaches just the outputs it touches.
    """
    n, groups, rank = x.shape[0], problem.groups, problem.rank
    parts = x.reshape(n, groups, problem.in_channels // groups, 1, *problem.spatial)
    kernels = weight.reshape(groups, problem.in_channels // groups, -1, *problem.kernel)
    # Scatter into the uncropped grid, so that no tap needs a border of its own.
    grid = [axis.grid for axis in problem.axes]
    y = x.new_zeros(n, groups, problem.out_channels // groups, *grid)
    for tap in product(*map(range, problem.kernel)):
        reached = [_lattice(axis, k) for axis, k in zip(problem.axes, tap, strict=True)]
        taps = _at(kernels, tap).reshape(1, *kernels.shape[:3], *[1] * rank)
        _at(y, reached).add_((parts * taps).sum(2))
    y = y.flatten(1, 2)
    for dim, axis in enumerate(problem.axes, 2):
        y = _windowed(y, dim, axis.padding, axis.size, None)
    return y if bias is None else y + bias.reshape(1, -1, *[1] * rank)


def _lattice(axis: Axis, k: int) -> slice:
    """Where tap ``k`` puts the inputs of an axis, before the padding is cropped off."""
    first = k * axis.dilation
    return slice(first, first + (axis.n - 1) * axis.stride + 1, axis.stride)


def _at(tensor: Tensor, index: Sequence[int | slice]) -> Tensor:
    """A view along the last axes."""
    where: tuple[Any, ...] = (Ellipsis, *index)
    return tensor[where]
