"""Chains drawn by seed: the CPU serves every one itself, to the last stage, and is right."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from transfuse import draws, fills
from transfuse.accuracy import Oracle
from transfuse.backends.cpu import Cpu
from transfuse.chain import Chain
from transfuse.problem import DTYPES, Problem

TOGETHER = 40
"""Chains of one test."""
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def drawn(part: int) -> Iterator[tuple[int, Chain, Problem]]:
    for seed in range(part * TOGETHER, (part + 1) * TOGETHER):
        chain, problem = draws.drawn(seed, dtype=DTYPES[seed % len(DTYPES)])
        last = seed % 3 == 0 and problem.rank > 1
        yield seed, chain, replace(problem, layout="channels_last") if last else problem


def served_and_right(seed: int, chain: Chain, problem: Problem) -> None:
    where = f"seed {seed}\n  {problem}\n  {chain}"
    assert Cpu().verdict(chain, problem).ok, where
    assert not Cpu().route(chain, problem).rest, where
    x, weight, operands = fills.real(chain, problem, seed)
    if problem.layout == "channels_last":
        x = x.contiguous(memory_format=FORMATS[problem.rank])
    y = Cpu().run(chain, problem, x, weight, operands)
    accuracy = Oracle(chain, problem, x, weight, operands, Cpu().ulp(problem)).judge(y)
    assert accuracy.ok, f"{accuracy.fault}, {where}"


@pytest.mark.parametrize("part", range(3))
def test_drawn_chains(part: int) -> None:
    for each in drawn(part):
        served_and_right(*each)


@pytest.mark.long
@pytest.mark.parametrize("part", range(3, 50))
def test_all_drawn_chains(part: int) -> None:
    for each in drawn(part):
        served_and_right(*each)


def test_draws_are_the_same_in_every_process() -> None:
    first, second = (draws.drawn(7) for _ in range(2))
    assert first == second
    assert str(first[0]).startswith("conv_transpose2d(+ t0) -> pixel_shuffle(2) -> selu -> gated")


def test_draws_hold_every_kind_of_stage() -> None:
    names = {stage.name for seed in range(300) for stage in draws.drawn(seed)[0].stages}
    assert {"softmax", "layer_norm", "rms_norm", "instance_norm", "cat", "pixel_shuffle"} <= names
    assert {"lp_pool", "adaptive_max_pool", "logsumexp", "flatten", "gated", "prelu"} <= names
