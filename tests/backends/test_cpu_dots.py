"""Products of bfloat16 two by two, where the processor has them: the same sums as one by one."""

import pytest
import torch
from torch import Tensor

from transfuse import Problem
from transfuse.backends import cpu
from transfuse.chain import Chain
from transfuse.reference import scatter
from transfuse.stages import Stage, avg_pool, conv_transpose

LINES = [
    # channels of a group that are even and odd, blocks of half a vector, one and two
    *(f"n2 ci{ci} co{co} i7x19 k3 p1" for ci in (2, 6, 7) for co in (5, 16, 40)),
    "n1 ci12 co10 i5x6 k4 s2 p1 g2",
    "n1 ci12 co40 i5x6 k3 d2 g2",
    "n1 ci6 co24 i3x4x5 k3x2x3 s1x2x1",
    "n2 ci64 co8 i90 k5 p2",
    "n40 ci32 co16 i3x3 k3 p1",  # samples side by side
    "n1 ci1024 co48 i4x4 k3 p1",  # weights in parts
]


def integers(*dims: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, dims, generator=generator).bfloat16()


def computed(problem: Problem, x: Tensor, weight: Tensor, *before: Stage) -> Tensor:
    chain = Chain(*before, conv_transpose(problem.rank))
    return cpu.Cpu().run(chain, problem, x, weight, {})


@pytest.mark.parametrize("line", LINES)
def test_sums_are_exact(isa: str, line: str) -> None:
    problem = Problem.parse(f"{line} bf16")
    x, weight = integers(*problem.input.dims), integers(*problem.weight, seed=1)
    expected = scatter(problem, x.double(), weight.double(), None)
    assert torch.equal(computed(problem, x, weight), expected.bfloat16())


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("channels", [6, 7])
def test_channels_last_at_any_address(isa: str, channels: int, first: int) -> None:
    """Two channels are 32 bits in memory, or not where they begin at an odd element."""
    problem = Problem.parse("n2 ci6 co17 i5x21 k3 p1 bf16")
    memory = integers(1 + 2 * 5 * 21 * channels)
    x = memory[first:].as_strided((2, 6, 5, 21), (105 * channels, 1, 21 * channels, channels))
    weight = integers(*problem.weight, seed=1)
    expected = scatter(problem, x.double(), weight.double(), None)
    assert torch.equal(computed(problem, x, weight), expected.bfloat16())


def test_weights_that_are_not_finite_reach_only_what_they_meet(isa: str) -> None:
    problem = Problem.parse("n1 ci6 co17 i3x9 k3 p1 bf16")
    x, weight = integers(*problem.input.dims) + 2, integers(*problem.weight, seed=1)
    weight[1, 0, 0, 0], weight[-1, -1, 2, 2] = torch.inf, torch.nan
    y = computed(problem, x, weight)
    expected = scatter(problem, x.double(), weight.double(), None).bfloat16()
    assert torch.equal(y.nan_to_num(77), expected.nan_to_num(77))
    assert y.isfinite().any()


@pytest.mark.parametrize("window", [2, 3])
def test_a_factor_of_the_weights_is_not_rounded_to_bfloat16(isa: str, window: int) -> None:
    """A quarter leaves weights exact, a ninth does not."""
    problem = Problem.parse("n1 ci8 co16 i12x12 k3 bf16")
    x, weight = integers(*problem.input.dims), integers(*problem.weight, seed=1)
    y = computed(problem, x, weight, avg_pool(window))
    pooled = torch.nn.functional.avg_pool2d(x.double(), window)
    inner = problem.at(tuple(pooled.shape[2:]))
    expected = scatter(inner, pooled, weight.double(), None)
    torch.testing.assert_close(y.double(), expected, rtol=2**-8, atol=1e-5)
