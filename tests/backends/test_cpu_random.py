"""Random chains over random convolutions on the CPU: right, and the same bits for any threads."""

from collections.abc import Iterator
from random import Random

import pytest
import torch

from transfuse import fills
from transfuse.accuracy import Oracle
from transfuse.backends.cpu import Cpu
from transfuse.chain import Chain
from transfuse.problem import DTYPES, Problem
from transfuse.stages import (
    Stage,
    add,
    avg_pool,
    batch_norm,
    clamp,
    conv_transpose,
    group_norm,
    max_pool,
    scale,
    sigmoid,
    softmax,
    tanh,
)
from transfuse.stages import sum as channel_sum

POOLS = (max_pool(2), max_pool(3, 2, 1), max_pool(2, 1), avg_pool(2), avg_pool(3, 1, 1))
BEFORE = (None, None, max_pool(2), max_pool(3, 2, 1), avg_pool(2), avg_pool(3, 2, 1))
LARGEST = 200_000
"""Elements between two stages."""


def stages(random: Random, name: Iterator[str]) -> list[Stage]:
    """One stage or a few that belong together; every operand has a name of its own."""
    return random.choice(
        [
            [],
            [add(next(name))],
            [scale(next(name))],
            [scale(-2)],
            [clamp(-0.5, 1)],
            [sigmoid()],
            [tanh()],
            [softmax("channels")],
            [channel_sum("channels", keepdim=True)],
            [batch_norm(weight=next(name), bias=next(name), training=True)],
            [batch_norm(next(name), next(name), next(name), next(name), random.random() < 0.5)],
            [group_norm(3, next(name), next(name))],
            [clamp(-1, 2), softmax("space")],
            [softmax("channels"), add(next(name)), scale(3), sigmoid()],
        ]
    )


def chains(seed: int, count: int) -> Iterator[tuple[Chain, Problem]]:
    """Those that torch takes; widths of 1 are among them, and strides larger than kernels."""
    random = Random(seed)
    while count:
        rank = random.choice((1, 2, 3))
        groups = random.choice((1, 1, 1, 2, 3))

        def axes(low: int, high: int, rank: int = rank) -> tuple[int, ...]:
            return tuple(random.randint(low, high) for _ in range(rank))

        problem = Problem(
            batch=random.choice((1, 2, 3, 5, 17)),
            in_channels=groups * random.choice((1, 2, 3, 8, 16, 33)),
            out_channels=6 * random.choice((1, 2, 3, 8)),
            spatial=axes(1, (60, 14, 7)[rank - 1]),
            kernel=axes(1, 4),
            stride=axes(1, 3),
            padding=axes(0, 2),
            dilation=axes(1, 2),
            output_padding=(0,) * rank,
            groups=groups,
            dtype=random.choice(DTYPES),
        )
        name = iter(f"operand{i}" for i in range(99))
        pool = random.choice([[], [random.choice(POOLS)]])
        then = [*stages(random, name), *pool, *stages(random, name), *stages(random, name)]
        first = random.choice(BEFORE)
        conv = conv_transpose(rank, random.choice((None, "bias")))
        chain = Chain(*([] if first is None else [first]), conv, *then)
        try:
            largest = max(shape.numel for shape in chain.shapes(problem))
        except (RuntimeError, ValueError):
            continue
        if largest <= LARGEST and Cpu().verdict(chain, problem).ok:
            count -= 1
            yield chain, problem


@pytest.mark.parametrize("seed", range(6))
def test_random_chains(seed: int) -> None:
    threads = torch.get_num_threads()
    try:
        for chain, problem in chains(seed, 100):
            for fill in (fills.real, fills.special):
                x, weight, operands = fill(chain, problem, seed)
                torch.set_num_threads(1)
                y = Cpu().run(chain, problem, x, weight, operands)
                accuracy = Oracle(chain, problem, x, weight, operands, Cpu().ulp(problem)).judge(y)
                assert accuracy.ok, f"{accuracy.fault}\n  {problem}\n  {chain}\n  {fill.__name__}"
                torch.set_num_threads(3)
                again = Cpu().run(chain, problem, x, weight, operands)
                assert same_bits(y, again), f"other bits\n  {problem}\n  {chain}"
    finally:
        torch.set_num_threads(threads)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))
