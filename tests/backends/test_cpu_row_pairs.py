"""Two rows of outputs at once: dilation, groups of few channels, and planes that tiles share."""

import ctypes

import pytest
import torch
from torch import Tensor

from transfuse import Problem
from transfuse.backends import cpu
from transfuse.backends.cpu.executables import Core
from transfuse.chain import Chain
from transfuse.reference import reference, scatter
from transfuse.stages import conv_transpose

LINES = [
    # rows of a pair are 2, 3, 4 and 6 outputs apart; odd rows, borders
    *(f"n1 ci32 co16 i{n}x5 k{k} d2 p{p}" for n in (16, 19) for k, p in ((2, 0), (3, 2), (5, 4))),
    "n1 ci32 co17 i13x4 k4x2 d3x1",
    "n1 ci32 co16 i17x3 k5x3 s2x1 d4x1 p3x1",
    "n1 ci33 co16 i9x4 k7x3 s3x1 d2x1 p2x1 op1x0",
    "n1 ci32 co16 i9x4 k3 s2 d2 p1 op1",
    "n2 ci36 co40 i7x12x5 k5 d2 p4",
    # groups of few channels, shared by taps of the other axes
    "n1 ci32 co16 i6x8x7 k5 p2 g2",
    "n2 ci64 co24 i5x9x8 k3 p1 g2",
    "n1 ci32 co16 i9x12x6 k5 d2 p2 g2",
    "n1 ci24 co9 i9x12 k3x9 p1x4",
    # several tiles along the depth that read most planes, and one that does not
    "n1 ci32 co32 i14x12x12 k5 p2",
    "n2 ci16 co32 i15x9x12 k5x3x3 d2x1x1 p4x1x1",
]


def tensors(problem: Problem, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, weight = (
        torch.randint(-2, 3, dims, generator=generator).float()
        for dims in (problem.input.dims, problem.weight)
    )
    return x, weight


def computed(problem: Problem, x: Tensor, weight: Tensor) -> Tensor:
    return cpu.Cpu().run(Chain(conv_transpose(problem.rank)), problem, x, weight, {})


def definition(problem: Problem, x: Tensor, weight: Tensor) -> Tensor:
    return scatter(problem, x.double(), weight.double(), None)


def in_pairs(core: ctypes.CDLL, line: str) -> bool:
    """Packed weights have one element more then, which tells whether they may be used so."""
    problem = Problem.parse(line)
    program = Core(Chain(conv_transpose(problem.rank)), problem).ready._program
    return bool(core.transfuse_packed_bytes(ctypes.byref(program)) // 4 % 2)


@pytest.mark.parametrize("options", ["k3 p1", "k2", "k4 s2 p1", "k5 s2 p2"])
def test_where_it_saves_enough_products(core: ctypes.CDLL, isa: str, options: str) -> None:
    assert in_pairs(core, f"n1 ci64 co64 i16x16 {options}")


def test_most_of_these_layers_are(core: ctypes.CDLL, isa: str) -> None:
    """What is computed by columns instead goes by the vectors of an instruction set."""
    assert sum(in_pairs(core, line) for line in LINES) >= len(LINES) - 3


@pytest.mark.parametrize(
    "line",
    [
        "n1 ci64 co64 i16x16 k3x1 s2x1 p1x0 op1x0",  # five products for six, of one tap each
        "n1 ci64 co64 i5x7 k3 s2",
        "n1 ci32 co16 i8x5 k2 d2",  # ends of the height
        "n1 ci64 co64 i21x8 k2 p1 d4",  # a row without another one
        "n1 ci64 co64 i16x16 k2 s2",
    ],
)
def test_where_it_does_not(core: ctypes.CDLL, isa: str, line: str) -> None:
    assert not in_pairs(core, line)


@pytest.mark.parametrize("line", LINES)
def test_the_same_sums_as_one_row_after_another(isa: str, line: str) -> None:
    problem = Problem.parse(line)
    x, weight = tensors(problem)
    assert torch.equal(computed(problem, x, weight).double(), definition(problem, x, weight))


@pytest.mark.parametrize("line", LINES[-2:])
def test_one_value_beyond_bounds_and_any_number_of_threads(isa: str, line: str) -> None:
    """A tile whose planes have it takes its rows one by one, the same tiles for every thread."""
    problem = Problem.parse(line)
    x, weight = tensors(problem)
    x += torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) / 3
    x[0, 1, 0, 2, 1] = torch.inf
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(computed(problem, x, weight))
    finally:
        torch.set_num_threads(before)
    for each in found:
        assert torch.equal(each.nan_to_num(77), found[0].nan_to_num(77))
    infinite = definition(problem, x, weight).isfinite().logical_not()
    assert torch.equal(found[0].isfinite().logical_not(), infinite)


@pytest.mark.parametrize("line", ["n1 ci64 co32 i30x20 k3 d2", "n1 ci32 co16 i8x12x10 k5 p2 g2"])
def test_they_round_no_worse_than_one_row_after_another(line: str) -> None:
    """With a weight beyond what pairs take rows are taken one by one; here it meets zeros alone."""
    problem = Problem.parse(line)
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(d, generator=generator) for d in (problem.input.dims, problem.weight))
    x[:, 0] = 0
    beyond = weight.clone()
    beyond.flatten()[0] = 2.0**60
    exact = reference(Chain(conv_transpose(problem.rank)), problem, x, weight, {})
    paired, single = (
        (computed(problem, x, each).double() - exact).square().mean().sqrt().item()
        for each in (weight, beyond)
    )
    assert 0 < paired <= 1.5 * single
    assert paired != single  # or no rows were paired
