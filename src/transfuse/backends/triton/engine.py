"""Calls: the recipe for tensors that lie as these do, run on the caller's stream and device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from transfuse.backends.triton import lower, tuned
from transfuse.backends.triton.config import MULTIPROCESSORS, Config, Shape
from transfuse.backends.triton.copies import Five
from transfuse.backends.triton.lower import Pass
from transfuse.backends.triton.recipe import Gpu, Recipe, five, three
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
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
    if not plan.problem.batch:  # nothing to compute, and nothing to divide by it
        shape, layout = _result(plan, x)
        empty = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)
        return empty if out is None else out
    strides = None if out is None else out.stride()
    operands = {name: _flat(tensor) for name, tensor in operands.items()}
    known = (x, weight, *operands.values()) if out is None else (x, weight, out, *operands.values())
    # Compiled kernels know which addresses are multiples of 16.
    aligned = tuple([tensor.data_ptr() % 16 == 0 for tensor in known])
    key = (
        chain, plan.problem, x.stride(), weight.stride(), strides, x.device, aligned,
        tuned.generation(),
    )  # fmt: skip
    ready = _ready.get(key)
    if ready is None:
        if len(_ready) >= MOST:
            _ready.clear()
        ready = _ready[key] = prepare(chain, plan, x, weight, operands, out)
    if out is None:
        out = torch.empty(ready.shape, dtype=x.dtype, device=x.device, memory_format=ready.format)
    follow(ready.recipe, [x, weight, out, _flag(x.device), *operands.values()])
    return out


def follow(recipe: Recipe, tensors: list[Tensor]) -> None:
    """Run a recipe on x, weight, out, flag and operands, on their device."""
    device = tensors[0].device
    if device.type == "cuda" and torch.cuda.current_device() != device.index:
        with torch.cuda.device(device):
            recipe(tensors)
    else:
        recipe(tensors)


def given(x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor) -> list[Tensor]:
    """The tensors of a call, as a recipe takes them."""
    return [x, weight, out, _flag(x.device), *map(_flat, operands.values())]


def prepare(
    chain: Chain,
    plan: Plan,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    choose: Callable[[Pass, Shape], Config] | None = None,
    gpu: Gpu | None = None,
) -> Ready:
    """The recipe for tensors that lie as these do; tiles are tuned or counted, or as told."""
    shape, layout = _result(plan, x)
    like = torch.empty(shape, device="meta", memory_format=layout)
    strides: tuple[Five, Five, Five] = (
        five(x.stride()),
        five(weight.stride()),
        five((like if out is None else out).stride()),
    )
    there, name = gpu or _gpu(x.device), tuned.gpu(x.device)
    program, core = lower.program(chain, plan), plan.chain.core(plan.problem)

    def best(each: Pass, shape: Shape) -> Config:
        return tuned.choose(program, core, each, shape, name, there.capability).config

    recipe = Recipe(
        program,
        core,
        three(x.shape[2:], 1),
        strides,
        list(operands),
        x.device,
        there,
        choose or best,
    )
    return Ready(recipe, shape, layout)


def _result(plan: Plan, x: Tensor) -> tuple[tuple[int, ...], torch.memory_format]:
    """Shape and layout of the result: the layout is the input's."""
    last = CHANNELS_LAST.get(x.dim()) if plan.problem.layout == "channels_last" else None
    return plan.chain.shapes(plan.problem)[-1].dims, last or torch.contiguous_format


def explained(chain: Chain, plan: Plan) -> list[tuple[str, str]]:
    """Each pass that convolves: its engine, its tiles, and where these come from.

    The GPU need not be there; what was tuned is taken where it is, and is of the problem's kind.
    """
    problem, program, core = plan.problem, lower.program(chain, plan), plan.chain.core(plan.problem)
    _, _, kind = problem.device.partition(":sm")
    wanted, name = (int(kind), "") if kind.isdigit() else (90, "interpreter")
    here = torch.device("cuda", 0)
    if kind and torch.cuda.is_available() and tuned.capability(here) == wanted:
        name = tuned.gpu(here)
    choices: dict[Pass, tuned.Choice] = {}

    def choose(each: Pass, shape: Shape) -> Config:
        choices[each] = tuned.choose(program, core, each, shape, name, wanted)
        return choices[each].config

    def tensor(*dims: int) -> Tensor:
        return torch.empty(dims, dtype=ELEMENTS[problem.dtype].dtype, device="meta")

    operands = {name: tensor(channels) for name, channels in chain.channels(problem)}
    gpu = Gpu(wanted, MULTIPROCESSORS.get(wanted, 108), real=bool(kind))
    x, weight = tensor(*problem.input.dims), tensor(*problem.weight)
    engines = prepare(chain, plan, x, weight, operands, None, choose, gpu).recipe.engines
    rows = []
    for each, engine in zip((p for p in program.passes if p.convolves), engines, strict=True):
        tiles = str(choices[each]) if engine == tuned.PORTABLE else "tiles of its own"
        rows.append((tuned.chain(program, each, core.rank), f"{engine}: {tiles}"))
    return rows


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
