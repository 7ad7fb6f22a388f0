"""Calls: the recipe for tensors that lie as these do, run on the caller's stream and device."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from transfuse.backends.triton import config as tiling
from transfuse.backends.triton import lower
from transfuse.backends.triton.copies import Five
from transfuse.backends.triton.recipe import Gpu, Recipe, five, three
from transfuse.chain import Chain
from transfuse.plan import Plan

MOST = 4096
"""Recipes kept; with one more, all are made again when they are next needed."""

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Ready:
    """A recipe, and the tensor it fills."""

    recipe: Recipe
    shape: tuple[int, ...]
    format: torch.memory_format


_ready: dict[object, Ready] = {}


def run(
    chain: Chain,
    plan: Plan,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
) -> Tensor:
    """The result of a chain, in ``out`` if that is given."""
    strides = None if out is None else out.stride()
    operands = {name: _flat(tensor) for name, tensor in operands.items()}
    given = (x, weight, *operands.values()) if out is None else (x, weight, out, *operands.values())
    # Compiled kernels know which addresses are multiples of 16.
    aligned = tuple([tensor.data_ptr() % 16 == 0 for tensor in given])
    key = (chain, plan.problem, x.stride(), weight.stride(), strides, x.device, aligned)
    ready = _ready.get(key)
    if ready is None:
        if len(_ready) >= MOST:
            _ready.clear()
        ready = _ready[key] = _prepare(chain, plan, x, weight, operands, out)
    if out is None:
        out = torch.empty(ready.shape, dtype=x.dtype, device=x.device, memory_format=ready.format)
    if not out.numel():
        return out
    tensors = [x, weight, out, _flag(x.device), *operands.values()]
    if x.device.type == "cuda" and torch.cuda.current_device() != x.device.index:
        with torch.cuda.device(x.device):
            ready.recipe(tensors)
    else:
        ready.recipe(tensors)
    return out


def _prepare(
    chain: Chain,
    plan: Plan,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
) -> Ready:
    problem, shape = plan.problem, plan.chain.shapes(plan.problem)[-1].dims
    last = CHANNELS_LAST.get(x.dim()) if problem.layout == "channels_last" else None
    like = torch.empty(shape, device="meta", memory_format=last or torch.contiguous_format)
    strides: tuple[Five, Five, Five] = (
        five(x.stride()),
        five(weight.stride()),
        five((like if out is None else out).stride()),
    )
    gpu = _gpu(x.device)
    recipe = Recipe(
        lower.program(chain, plan),
        plan.chain.core(problem),
        three(x.shape[2:], 1),
        strides,
        list(operands),
        x.device,
        gpu,
        lambda shape: tiling.heuristic(shape, gpu.capability),
    )
    return Ready(recipe, shape, last or torch.contiguous_format)


def _flat(operand: Tensor) -> Tensor:
    """One value per channel, side by side."""
    if operand.dim() == 1 and (operand.stride(0) == 1 or len(operand) == 1):
        return operand
    return operand.reshape(-1).contiguous()


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
