"""Calls: the recipe for tensors that lie as these do, run on the caller's stream and device."""

from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
from torch import Tensor

from transfuse.backends.triton import tuned
from transfuse.backends.triton.config import MULTIPROCESSORS, Config, Shape
from transfuse.backends.triton.copies import Five
from transfuse.backends.triton.lower import Pass, Program
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
    tensors = given(x, weight, operands, out)
    # Compiled kernels know which addresses are multiples of 16.
    aligned = tuple([tensor.data_ptr() % 16 == 0 for tensor in tensors])
    key = (
        program, core, x.shape, x.stride(), weight.stride(), out.stride(), x.device, aligned,
        tuned.generation(),
    )  # fmt: skip
    made = _recipes.get(key)
    if made is None:
        if len(_recipes) >= MOST:
            _recipes.clear()
        made = _recipes[key] = recipe(program, core, x, weight, operands, out)
    follow(made, tensors)


def given(x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor) -> list[Tensor]:
    """The tensors of a call, as a recipe takes them."""
    return [x, weight, out, _flag(x.device), *operands.values()]


def follow(made: Recipe, tensors: list[Tensor]) -> None:
    """Run a recipe on the device of its tensors."""
    device = tensors[0].device
    if device.type == "cuda" and torch.cuda.current_device() != device.index:
        with torch.cuda.device(device):
            made(tensors)
    else:
        made(tensors)


def recipe(
    program: Program,
    core: Problem,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor,
    choose: Callable[[Pass, Shape], Config] | None = None,
    gpu: Gpu | None = None,
) -> Recipe:
    """The launches for tensors that lie as these do; tiles are tuned or counted, or as told."""
    strides: tuple[Five, Five, Five] = (
        five(x.stride()),
        five(weight.stride()),
        five(out.stride()),
    )
    there, name = gpu or _gpu(x.device), tuned.gpu(x.device)

    def best(each: Pass, shape: Shape) -> Config:
        return tuned.choose(program, core, each, shape, name, there.capability).config

    source = three(x.shape[2:], 1)
    return Recipe(program, core, source, strides, list(operands), x.device, there, choose or best)


def explained(
    program: Program,
    core: Problem,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor,
) -> list[tuple[str, str]]:
    """Each pass that convolves: its engine, its tiles, and where these come from.

    Tensors may be without memory, and the GPU need not be there; what was tuned is taken where it
    is there, and is of the problem's kind.
    """
    _, _, kind = core.device.partition(":sm")
    wanted, name = (int(kind), "") if kind.isdigit() else (90, "interpreter")
    here = torch.device("cuda", 0)
    if kind and torch.cuda.is_available() and tuned.capability(here) == wanted:
        name = tuned.gpu(here)
    choices: dict[Pass, tuned.Choice] = {}

    def choose(each: Pass, shape: Shape) -> Config:
        choices[each] = tuned.choose(program, core, each, shape, name, wanted)
        return choices[each].config

    passes = [each for each in program.passes if each.convolves]
    gpu = Gpu(wanted, MULTIPROCESSORS.get(wanted, 108), real=bool(kind))
    made = recipe(program, core, x, weight, operands, out, choose, gpu)
    return [
        (
            tuned.chain(program, each, core.rank),
            f"{engine}: {choices[each]}"
            if engine == tuned.PORTABLE
            else f"{engine}: tiles of its own",
        )
        for each, engine in zip(passes, made.engines, strict=True)
    ]


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
