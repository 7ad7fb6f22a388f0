"""Weights that are not finite, on a GPU: each call, each replay of a graph is judged by its own."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from transfuse import fills
from transfuse.backends.triton import Triton, calls
from transfuse.chain import Chain
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.stages import batch_norm, clamp, conv_transpose, softmax

# With a statistic on Hopper, whose loop gathers elsewhere than the careful launch does.
CHAINS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "moments": ("n8 ci64 co64 i32x32 k3 p1", (batch_norm(training=True),)),
    "peaks": ("n8 ci64 co64 i32x32 k3 p1", (softmax("space"),)),
    "exponentials": ("n8 ci64 co64 i32x32 k3 p1", (clamp(-1.0, 1.0), softmax("space"))),
}
ARITHMETICS = {"tf32": "fp32 tf32 cuda", "fp16": "fp16 cuda"}
Call = tuple[Chain, Problem]


def call(name: str, arithmetic: str) -> Call:
    if name in OPERATORS:
        case = OPERATORS[name].case("small").on(arithmetic, "cuda")
        return OPERATORS[name].bound(case), case.problem
    line, then = CHAINS[name]
    return Chain(conv_transpose(2), *then), Problem.parse(f"{line} {ARITHMETICS[arithmetic]}")


def filled(made: Call, seed: int, wild: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    x, weight, operands = fills.real(*made, seed)
    if wild:
        weight.view(-1)[0] = torch.nan
        weight.view(-1)[-1] = torch.inf
    return x, weight, operands


def same_bits(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


every = pytest.mark.parametrize("name", [*OPERATORS, *CHAINS])
both = pytest.mark.parametrize("arithmetic", ARITHMETICS)


@both
@every
def test_replays_of_a_graph(name: str, arithmetic: str) -> None:
    """Weights that turn not finite and back between replays: the bits of a call made afresh."""
    made = call(name, arithmetic)
    x, weight, operands = filled(made, 0, wild=False)
    out = Triton().run(*made, x, weight, operands)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        Triton().run(*made, x, weight, operands, out)
    for seed, wild in enumerate((True, False, True, False, False), start=1):
        x_now, weight_now, _ = filled(made, seed, wild)
        x.copy_(x_now)
        weight.copy_(weight_now)
        out.fill_(torch.nan)
        graph.replay()
        assert same_bits(out, Triton().run(*made, x_now, weight_now, operands)), f"replay {seed}"


@both
@every
def test_two_streams(name: str, arithmetic: str, cuda: torch.device) -> None:
    """A stream of calls with such weights beside one of calls without, from two threads."""
    made = call(name, arithmetic)
    tensors = [filled(made, seed, wild) for seed, wild in enumerate((False, True))]
    right = [Triton().run(*made, *each) for each in tensors]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(cuda) for _ in tensors]

    def work(which: int) -> int:
        with torch.cuda.stream(streams[which]):
            results = [Triton().run(*made, *tensors[which]) for _ in range(60)]
        streams[which].synchronize()
        return sum(not same_bits(each, right[which]) for each in results)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, (0, 1))) == [0, 0]


@both
@every
def test_calls_between_the_launches_of_others(
    name: str, arithmetic: str, cuda: torch.device
) -> None:
    """One of each kind, launch by launch, the other whole between any two of its launches."""
    made = call(name, arithmetic)
    tensors = [filled(made, seed, wild) for seed, wild in enumerate((False, True))]
    calls._ready.clear()
    right = [Triton().run(*made, *each) for each in tensors]
    (launch_plan,) = (ready.launch_plan for ready in calls._ready.values())
    stream = torch.cuda.current_stream(cuda).cuda_stream
    for which, (x, weight, operands) in enumerate(tensors):
        for before in range(1, len(launch_plan.launches)):
            out = torch.full_like(right[which], torch.nan)
            scratch = torch.full((launch_plan.bytes,), 255, dtype=torch.uint8, device=cuda)
            given = [each.data_ptr() for each in (x, weight, out, *operands.values())]
            memory = [*given, *(scratch.data_ptr() + at for at, _, _ in launch_plan.scratch)]
            for launch in launch_plan.launches[:before]:
                launch.by_triton()(memory, stream)
            other = Triton().run(*made, *tensors[1 - which])
            for launch in launch_plan.launches[before:]:
                launch.by_triton()(memory, stream)
            assert same_bits(out, right[which]), f"another call after {before} launches"
            assert same_bits(other, right[1 - which]), f"a call after {before} launches of another"
