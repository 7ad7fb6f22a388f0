"""Calls: the recipe for tensors that lie as these do, run on the caller's stream and device."""

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor

from transfuse.backends.triton import config as tiling
from transfuse.backends.triton.copies import Five
from transfuse.backends.triton.lower import Program
from transfuse.backends.triton.recipe import Gpu, Recipe, five, three
from transfuse.problem import Problem

_recipes: dict[object, Recipe] = {}
MOST = 4096
"""Recipes kept; with one more, all are made again when they are next needed."""


def run(
    program: Program,
    core: Problem,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor,
) -> None:
    """Compute ``out``; ``core`` is the convolution's own problem."""
    tensors = [x, weight, out, _flag(x.device), *operands.values()]
    # Compiled kernels know which addresses are multiples of 16.
    aligned = tuple([tensor.data_ptr() % 16 == 0 for tensor in tensors])
    key = (program, core, x.shape, x.stride(), weight.stride(), out.stride(), x.device, aligned)
    recipe = _recipes.get(key)
    if recipe is None:
        if len(_recipes) >= MOST:
            _recipes.clear()
        recipe = _recipes[key] = _recipe(program, core, x, weight, operands, out)
    if x.device.type == "cuda" and torch.cuda.current_device() != x.device.index:
        with torch.cuda.device(x.device):
            recipe(tensors)
    else:
        recipe(tensors)


def _recipe(
    program: Program,
    core: Problem,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor,
) -> Recipe:
    strides: tuple[Five, Five, Five] = (
        five(x.stride()),
        five(weight.stride()),
        five(out.stride()),
    )
    gpu = _gpu(x.device)
    return Recipe(
        program,
        core,
        three(x.shape[2:], 1),
        strides,
        list(operands),
        x.device,
        gpu,
        lambda shape: tiling.heuristic(shape, gpu.capability),
    )


@lru_cache(maxsize=64)
def _flag(device: torch.device) -> Tensor:
    """Raised to the number of a call whose weights hold NaN or Inf."""
    return torch.zeros(1, dtype=torch.int64, device=device)


@lru_cache(maxsize=64)
def _gpu(device: torch.device) -> Gpu:
    """Compute capability as 90 for 9.0; an H100's, without its own kernels, where no GPU is."""
    if device.type != "cuda":
        return Gpu(90, 132, real=False)
    properties = torch.cuda.get_device_properties(device)
    return Gpu(10 * properties.major + properties.minor, properties.multi_processor_count)
