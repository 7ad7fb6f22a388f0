"""Hopper's kernels on a GPU, one build at many sizes; results on both sides of 4 GiB of addresses.

On another GPU the same calls go to portable kernels, and must be as right.
"""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from transfuse import fills
from transfuse.accuracy import Oracle
from transfuse.backends.triton import Triton
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import add, conv_transpose, group_norm, max_pool, relu, sigmoid, softmax
from transfuse.tensors import describe

SOFTMAX = (softmax("channels"), add("shift"), sigmoid())
PATTERNS: list[tuple[str, int, tuple[Any, ...]]] = [
    ("ci64 co64 k3x7 fp16", 2, ()),
    ("ci64 co128 k4 s2 p1 op1 fp32", 2, SOFTMAX),
    ("ci24 co200 k3 p1 fp16", 2, (relu(),)),
    ("ci64 co32 k3x4 s1x2 p1 d2x1 fp32", 2, (group_norm(4),)),
    ("ci48 co40 k3 s2 p1 op1 bf16", 3, (sigmoid(),)),
    ("ci64 co64 k16 s2 p7 fp16", 1, (relu(),)),
    ("ci32 co64 k5 s2 p2 fp32", 3, (max_pool(6),)),
]
LARGEST = {1: 3000, 2: 90, 3: 24}
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def case(line: str, then: tuple[Any, ...], last: bool = False) -> tuple[Any, ...]:
    """A chain, its problem and its tensors on the GPU."""
    problem = Problem.parse(f"{line} cuda")
    chain = Chain(conv_transpose(problem.rank, "bias"), *then)
    x, weight, operands = fills.real(chain, problem, 0)
    if last:
        x = x.contiguous(memory_format=LAST[problem.rank])
    problem = replace(
        problem,
        device=describe(x)["device"],
        precision="tf32" if problem.dtype == "fp32" else "ieee",
        layout="channels_last" if last else "contiguous",
    )
    return chain, problem, x, weight, operands


@pytest.mark.parametrize(("line", "rank", "then"), PATTERNS, ids=[each[0] for each in PATTERNS])
def test_sizes(line: str, rank: int, then: tuple[Any, ...]) -> None:
    draw = random.Random(line)
    channels, outputs, *kernel = line.split()
    for turn in range(6):
        spatial = "x".join(str(draw.randint(6, LARGEST[rank])) for _ in range(rank))
        batch = draw.choice((1, 2, 3, 5, 9, 16))
        whole = f"n{batch} {channels} {outputs} i{spatial} {' '.join(kernel)}"
        given = case(whole, then, last=rank > 1 and turn % 2 == 1)
        y = Triton().run(*given)
        accuracy = Oracle(*given, Triton().ulp(given[1])).judge(y)
        assert accuracy.ok, f"{whole}: {accuracy.fault}"


@pytest.mark.parametrize(
    ("line", "then"),
    [
        ("n4 ci64 co128 i33x33 k4 s2 p1 op1 fp16", SOFTMAX),
        ("n3 ci32 co72 i21x19x7 k3 fp16", ()),
        ("n5 ci32 co72 i41x39 k3 s2 fp32", (sigmoid(),)),
    ],
)
def test_border_of_addresses(line: str, then: tuple[Any, ...]) -> None:
    """The same bits wherever results lie, also where the upper half of addresses changes."""
    room = 9 << 30
    if torch.cuda.mem_get_info()[0] < room:
        pytest.skip(f"less than {room} bytes of GPU memory are free")
    memory = torch.empty(room, dtype=torch.uint8, device="cuda")
    border = -(-(memory.data_ptr() + (1 << 29)) // (1 << 32)) * (1 << 32) - memory.data_ptr()
    chain, problem, x, weight, operands = case(line, then)
    shape = chain.result(problem)
    size = torch.Size(shape).numel() * x.element_size()
    expected = Triton().run(chain, problem, x, weight, operands)
    for part in (0.0, 0.1, 0.37, 0.5, 0.93, 1.0):
        start = border - int(size * part) // 16 * 16
        out = memory[start : start + size].view(x.dtype).view(shape).fill_(torch.nan)
        Triton().run(chain, problem, x, weight, operands, out)
        assert torch.equal(out, expected), f"{part} of the results lie before the border"
