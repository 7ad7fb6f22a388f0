"""Where derivatives jump: ties, edges, branches, NaN; on small integers bit for bit as torch."""

from typing import Any

import pytest
import torch

from tests.gradients.autograd import by_autograd, wanted
from transfuse import stages as s
from transfuse.chain import Chain
from transfuse.fills import integers
from transfuse.gradients import gradients
from transfuse.maths import where
from transfuse.problem import Problem
from transfuse.stages import Stage, pointwise

PROBLEM = "n2 ci2 co4 i{} k3 s2 p1"
POOLS = {
    "tiles": s.max_pool(2),
    "tiles with a rest": s.max_pool(3),
    "large tiles": s.max_pool(6),
    "overlapping": s.max_pool(3, 1),
    "padded": s.max_pool(3, 2, 1),
    "dilated": s.max_pool(2, 1, 1, 2),
    "with gaps": s.max_pool(2, 3),
    "ceil": s.max_pool(3, 2, 0, 1, True),
    "global": s.adaptive_max_pool(1),
    "uneven": s.adaptive_max_pool(4),
    "average": s.avg_pool(2, 1, 1),
    "average of a power of two": s.avg_pool(4, 2, 1, True, divisor_override=8),
}
SIZES = {1: "13", 2: "7x8", 3: "4x5x4"}


@pointwise
def branches(x: Any, t: Any) -> Any:
    """Each branch has a slope of its own, at the edge the second."""
    return where(x < 1.0, 3.0 * x, x * t)


STAGES: list[tuple[Stage, ...]] = [
    (s.clamp(-2.0, 2.0),),
    (s.clamp("low", "high"),),
    (s.relu(),),
    (s.relu6(),),
    (s.abs(),),
    (s.hardtanh(-1.0, 1.0),),
    (s.threshold(1.0, 0.0),),
    (s.softshrink(1.0),),
    (s.maximum("low"),),
    (s.minimum("high"),),
    (branches("low"),),
    (s.sum("channels"),),
    (s.amax((1, 2)), s.scale(8.0)),
    (s.pixel_shuffle(2), s.square()),
    (s.cat("skip", first=True), s.relu()),
]


def exact(chain: Chain, problem: Problem, seed: int) -> None:
    """Hold the gradients of small integers to torch's, bit for bit."""
    x, weight, operands = integers(chain, problem, seed)
    generator = torch.Generator().manual_seed(seed)
    grad = torch.randint(-4, 5, chain.result(problem), generator=generator).float()
    got = gradients(chain, problem, grad, x, weight, operands, wanted(chain, operands))
    for name, each in by_autograd(chain, problem, grad, x, weight, operands).items():
        assert torch.equal(got[name].double(), each), (chain, name)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_ties_in_windows(rank: int, name: str, layout: str) -> None:
    problem = Problem.parse(f"{PROBLEM.format(SIZES[rank])} {layout if rank > 1 else ''}")
    exact(Chain(s.conv_transpose(rank, "b"), s.relu(), POOLS[name]), problem, 7)


@pytest.mark.parametrize("rank", [1, 2])
def test_windows_before_the_convolution(rank: int) -> None:
    problem = Problem.parse(PROBLEM.format(SIZES[rank]))
    exact(Chain(s.relu(), s.max_pool(2, 1), s.conv_transpose(rank)), problem, 3)


@pytest.mark.parametrize("stages", STAGES, ids=lambda stages: stages[0].name)
def test_edges_and_branches(stages: tuple[Stage, ...]) -> None:
    problem = Problem.parse(PROBLEM.format("5x6"))
    skip = (2, 3, 9, 11)
    chain = Chain(s.conv_transpose(2, "b"), *stages).fitted({"skip": skip})
    exact(chain, problem, 11)


def test_nan_goes_where_torch_lets_it_go() -> None:
    """A window with NaNs gives its gradient to the last of them."""
    for pool in (s.max_pool(2), s.max_pool(3, 1, 1)):
        problem = Problem.parse("n1 ci1 co1 i8x8 k1 s1")
        chain = Chain(s.conv_transpose(2), pool)
        x, weight = torch.randn(1, 1, 8, 8), torch.ones(1, 1, 1, 1)
        x[0, 0, 2, 3] = x[0, 0, 3, 2] = x[0, 0, 5, 5] = torch.nan
        grad = torch.randn(chain.result(problem))
        got = gradients(chain, problem, grad, x, weight, {}, ["input"])
        expected = by_autograd(chain, problem, grad, x, weight, {})
        torch.testing.assert_close(got["input"].double(), expected["input"], rtol=1e-6, atol=1e-6)


def test_windows_of_zeros_have_no_root() -> None:
    problem = Problem.parse("n1 ci1 co1 i6x6 k1 s1 fp64")
    chain = Chain(s.conv_transpose(2), s.relu(), s.lp_pool(2, 2))
    x, weight = torch.randn(1, 1, 6, 6, dtype=torch.float64), torch.ones(1, 1, 1, 1).double()
    x[:, :, :2] = -1
    grad = torch.ones(chain.result(problem), dtype=torch.float64)
    got = gradients(chain, problem, grad, x, weight, {}, ["input"])
    expected = by_autograd(chain, problem, grad, x, weight, {})
    torch.testing.assert_close(got["input"], expected["input"])
