"""Jobs of ``test_not_finite.py``, as a script: calls whose launches are held back, as a CUDA graph
holds them, and then made in another order or over again, in Triton's interpreter.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from child import changed, guarded, hasten, serve
from torch import Tensor

from transfuse.backends.triton import Triton
from transfuse.backends.triton.engines import ordered
from transfuse.backends.triton.engines.hopper_strip.strip_launch import HopperStrip, rows
from transfuse.backends.triton.engines.portable import convolve_launch, tiling
from transfuse.backends.triton.launch import Launch
from transfuse.chain import Chain
from transfuse.problem import Problem

Tensors = tuple[Tensor, Tensor, dict[str, Tensor]]
INTERPRET, ENGINES = Launch.interpret, ordered.ENGINES


class ByRows(HopperStrip):
    """The portable kernel in the place of Hopper's own, which no interpreter runs.

    What it gathers lies elsewhere than what the careful launch gathers, as Hopper's does.
    """

    def verdict(self, task: Any) -> str:
        return ""

    def configs(self, task: Any) -> Iterator[Any]:
        yield "rows"

    def convolve(self, task: Any, tiles: Any) -> Any:
        tiled, tiles = rows(task.draft, task.work), tiling.heuristic(task.work, 90, "rows")
        partials = task.draft.gather(task.segment, tiled.tiles, tiled.of_tile)
        convolve_launch.add(task.draft, task.segment, task.out, tiled, tiles, partials)
        return partials


class Call:
    """The launches of a call and its result."""

    def __init__(self, chain: Chain, problem: Problem, tensors: Tensors) -> None:
        self.launches: list[Callable[[], None]] = []
        self.out = torch.full(chain.shapes(problem)[-1].dims, torch.nan, dtype=tensors[0].dtype)
        Launch.interpret = lambda each, *given: self.launches.append(
            partial(INTERPRET, each, *given)
        )  # type: ignore[method-assign]
        try:
            Triton().run(chain, problem, *tensors, self.out)
        finally:
            Launch.interpret = INTERPRET  # type: ignore[method-assign]

    def replay(self) -> Tensor:
        self.out.fill_(torch.nan)
        for launch in self.launches:
            launch()
        return self.out.clone()


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def interleaved(
    chain: Chain, problem: Problem, tensors: list[Tensors], orders: list[list[int]]
) -> list[list[bool]]:
    """For each order, which results are those of calls alone; an order names a call per launch."""
    alone = [Call(chain, problem, each).replay() for each in tensors]
    found = []
    for order in orders:
        calls = [Call(chain, problem, each) for each in tensors]
        left = [iter(call.launches) for call in calls]
        for which in order:
            next(left[which])()
        assert not any(list(each) for each in left), "launches were left over"
        pairs = zip(calls, alone, strict=True)
        found.append([same_bits(call.out, right) for call, right in pairs])
    return found


def replayed(chain: Chain, problem: Problem, tensors: Tensors, weights: list[Tensor]) -> list[bool]:
    """Whether a call made over again on other weights gives the bits of a new call on them."""
    x, weight, operands = tensors
    call, found = Call(chain, problem, tensors), []
    for each in weights:
        weight.copy_(each)
        right = Call(chain, problem, (x, each, operands)).replay()
        found.append(same_bits(call.replay(), right))
    return found


def answers(chain: Chain, problem: Problem, tensors: Tensors) -> list[int]:
    """The first word of what a call found in its weights, then how often each answer was given."""
    call = Call(chain, problem, tensors)
    call.replay()
    pack = call.launches[0]
    (wild,) = (each for each in pack.args[1] if each.dtype == torch.int32)
    return [int(wild[0]), *(int((wild[1:] == answer).sum()) for answer in (0, 1)), len(wild) - 1]


JOBS = {each.__name__: each for each in (interleaved, replayed, answers)}


def work(
    do: str, stages: tuple[Any, ...], problem: Problem, strips: bool = False, **job: Any
) -> Any:
    ordered.ENGINES = (ByRows(), *ENGINES) if strips else ENGINES
    with changed("store", None), guarded():
        return JOBS[do](Chain(*stages), replace(problem, device="cuda:sm90"), **job)


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Conversion of an array with ndim > 0 to a scalar")
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    hasten()
    serve(work)
