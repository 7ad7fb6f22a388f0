"""Values to try a chain on: real numbers, integers, and real numbers with NaN and Inf."""

from collections.abc import Callable
from math import sqrt
from random import Random

import torch
from torch import Tensor

from transfuse.accuracy import terms
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem
from transfuse.stages.norm import Norm

Tensors = tuple[Tensor, Tensor, dict[str, Tensor]]
"""Input, kernel, and the operands by name."""


def real(chain: Chain, problem: Problem, seed: int) -> Tensors:
    """Signed normal numbers; weights scaled so that the convolution's outputs are near 1.

    All-positive values would saturate a clamp and hide lost precision.
    """
    x, weight, operands = _filled(chain, problem, seed, torch.Tensor.normal_)
    return x, weight.mul_(1.5 / sqrt(terms(chain.core(problem)))), operands


def integers(chain: Chain, problem: Problem, seed: int) -> Tensors:
    """Integers from -2 to 2: every sum is exact, and so is every result of exact stages."""
    return _filled(chain, problem, seed, lambda t, generator: t.random_(-2, 3, generator=generator))


def special(chain: Chain, problem: Problem, seed: int) -> Tensors:
    """Real numbers with an Inf, a -Inf and a NaN in the input and a NaN in the kernel."""
    x, weight, operands = real(chain, problem, seed)
    draw = Random(seed)
    for value in (torch.inf, -torch.inf, torch.nan):
        if x.numel():
            x[_somewhere(x, draw)] = value
    weight[_somewhere(weight, draw)] = torch.nan
    return x, weight, operands


def _somewhere(tensor: Tensor, draw: Random) -> tuple[int, ...]:
    return tuple(draw.randrange(size) for size in tensor.shape)


def _filled(chain: Chain, problem: Problem, seed: int, fill: Callable[..., Tensor]) -> Tensors:
    device = problem.device.partition(":")[0]
    generator = torch.Generator(device).manual_seed(seed)

    def tensor(*dims: int) -> Tensor:
        empty = torch.empty(dims, dtype=ELEMENTS[problem.dtype].dtype, device=device)
        return _laid_out(fill(empty, generator=generator), problem)

    operands = {name: tensor(*dims) for name, dims in chain.dims(problem)}
    for stage in chain.stages:
        if isinstance(stage, Norm) and isinstance(stage.running_var, str):
            operands[stage.running_var].abs_()
    return tensor(*problem.input.dims), tensor(*problem.weight), operands


def _laid_out(tensor: Tensor, problem: Problem) -> Tensor:
    """A tensor with all axes as the problem's layout says, the kernel as a model in it has it."""
    known = {4: torch.channels_last, 5: torch.channels_last_3d}
    if problem.layout != "channels_last" or tensor.dim() != problem.rank + 2:
        return tensor
    return tensor.contiguous(memory_format=known[tensor.dim()])
