"""The core's convolution against its definition.

Small integers: every sum is exact in the type it is computed in and rounded once, so results are
compared bit for bit, in all four element types.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from random import Random

import pytest
import torch
from torch import Tensor

from transfuse.backends.cpu import Cpu
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.front import run
from transfuse.problem import DTYPES, Problem
from transfuse.reference import scatter
from transfuse.stages import conv_transpose

GUARD = 256
SENTINEL = -77.0

# What a kernel that works in vectors, blocks and tiles may get wrong, one line each.
LINES = [
    # rows of the microkernel: every remainder of 6 and 12 positions
    *(f"n1 ci3 co8 i{n} k2" for n in range(1, 27)),
    # channels: one vector, two, tails of both; the same for the inputs
    *(f"n2 ci3 co{co} i4x5 k3 s2 p1" for co in (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 65)),
    *(f"n1 ci{ci} co5 i3x4 k3 s1 p1" for ci in (1, 2, 5, 8, 15, 16, 17, 31, 33, 64, 65)),
    # input channels by parts: weights larger than the first-level cache
    "n1 ci130 co17 i5x4 k4 p1",
    "n1 ci129 co33 i7 k7 s1 p3 fp64",
    "n1 ci67 co16 i3x3x3 k3 s1 p1",
    "n1 ci1030 co3 i3x5 k1",
    # rows in pairs: every number of taps, odd rows, borders, phases, groups, planes, several tiles
    *(f"n1 ci32 co17 i7x5 k{k}x2" for k in range(2, 9)),
    *(f"n1 ci33 co16 i{n}x3 k3 p1" for n in range(4, 9)),
    *(f"n1 ci32 co16 i5x4 k{k} s2 p1 op1" for k in (3, 4, 5, 6)),
    "n1 ci40 co20 i6x4 k7x3 s3x2 p2x0 op2x1",
    "n1 ci32 co16 i8x6 k5 p4",
    "n1 ci32 co16 i9x3 k5x3 s2x1 d2x1 p3x1 op1x0",
    "n1 ci32 co16 i4x4 k3 d2",
    "n2 ci64 co40 i6x7 k4 s2 p1 g2",
    "n2 ci32 co33 i3x5x6 k3x5x3 s2 p1x2x1",
    "n1 ci32 co65 i40x50 k3x7",
    "n1 ci70 co33 i31x20 k4 s2 p1 op1",
    # few positions: output channels in parts, of one tile and of several, of paired rows
    *(f"n1 ci3 co{co} i4x3 k3 s2 p1" for co in (32, 48, 64, 96, 192)),
    "n2 ci5 co128 i2 k5 s3 p1 op2",
    "n1 ci33 co256 i5x6 k4 s2 p1",
    "n3 ci40 co160 i3x4x4 k3 s2 p1 op1",
    "n1 ci6 co64 i5x4 k3 d2 fp64",
    "n1 ci512 co512 i40 k4 s2 p1",
    "n1 ci260 co192 i300 k3 s2",
    # one position: a product of input and weights
    *(f"n{n} ci5 co3 i1x1 k3x4 s{s}" for n in (1, 2, 3) for s in (1, 3)),
    "n3 ci70 co40 i1 k9 fp64",
    "n2 ci33 co65 i1x1x1 k2x3x3",
    "n2 ci5 co6 i1x1 k3 bf16",
    "n2 ci6 co4 i1x1 k3 g2",
    "n2 ci5 co4 i1x1 k3 p1",
    "n2 ci5 co4 i1x1 k3 s2 op1",
    "n2 ci5 co4 i1x1 k3 d2",
    # several tiles, cut along each axis
    "n1 ci2 co33 i3001 k3 s2 p1 op1",
    "n2 ci3 co17 i33x47 k3x4 s2 p1",
    "n1 ci2 co65 i67x9 k2x3 s1x2 fp64",
    "n1 ci2 co16 i9x11x13 k3 s2 p1 op1",
    "n3 ci2 co5 i40x3x5 k2x1x3 s1x3x2",
    "n1 ci1 co1 i70x90 k3 s1 p1",
    # weights beyond the cache, tiles of half the rows
    "n24 ci32 co32 i11x13 k8 fp64",
    # huge strides, kernels smaller than the stride: most outputs meet no tap
    "n2 ci3 co5 i4 k3 s17 p1 op16",
    "n1 ci3 co17 i3 k70 s64 p2 op63",
    "n1 ci2 co3 i3x2 k2x5 s64x17 op63x0",
    "n1 ci2 co9 i2x2x2 k1x2x3 s17x1x64 op3x0x63",
    "n2 ci4 co8 i5x6 k1 s3 op2",
    "n1 ci5 co2 i4x3x2 k1x2x1 s2x3x4",
    # kernels of one tap
    "n1 ci1 co1 i1 k1",
    "n3 ci17 co31 i5x7 k1",
    "n1 ci8 co64 i2x3x5 k1",
    # dilation, larger and smaller than the stride, and output padding that needs it
    "n1 ci3 co5 i7 k3 s1 d5 p2 op4",
    "n2 ci2 co17 i5x6 k3x2 s2x3 d3x2 p2x1 op2x1",
    "n1 ci3 co4 i3x4x2 k2 s1 d1x2x3 op0x1x2",
    "n1 ci2 co3 i9 k4 s3 d3 p4 op2",
    "n1 ci2 co3 i9x4 k3 s2 d2 p1 op1",
    # output padding on each axis alone, and as far as it goes
    "n1 ci2 co3 i3x4x5 k2 s3 op2x0x0",
    "n1 ci2 co3 i3x4x5 k2 s3 op0x2x0",
    "n1 ci2 co3 i3x4x5 k2 s3 op0x0x2",
    "n2 ci2 co3 i4x4 k3 s4 op3",
    # padding that leaves a single output, or crops whole taps away
    "n1 ci3 co5 i1 k5 p2",
    "n2 ci3 co5 i2x3 k6x5 s1x2 p3x4",
    "n1 ci2 co3 i3 k2 s2 p2",
    # groups: depthwise, with a multiplier, one output channel from several, odd sizes
    *(f"n2 ci{g} co{g} i5x6 k3 s2 p1 op1 g{g}" for g in (2, 3, 8, 17, 33)),
    "n1 ci9 co9 i4x3x5 k3x2x1 s1x2x3 d2x1x1 g9",
    "n3 ci7 co7 i41 k4 s3 p2 op2 d2 g7",
    "n1 ci4 co12 i6x5 k3 s2 g4",
    "n1 ci3 co51 i5x4 k3 s1x3 g3",
    "n2 ci8 co4 i4x5 k3 s2 p1 g4",
    "n1 ci15 co3 i9 k5 s2 g3",
    "n1 ci10 co2 i3x3x3 k2 s2 g2",
    "n2 ci6 co34 i4x4 k2x3 g2",
    "n1 ci66 co66 i3x7 k3 p1 g2",
]


def drawn(seed: int, count: int) -> Iterator[Problem]:
    """Random legal problems, each once, in all element types; every axis draws its own options."""
    random, seen = Random(seed), set()
    while len(seen) < count:
        rank = random.choice((1, 2, 3))

        def axes(low: int, high: int, rank: int = rank) -> tuple[int, ...]:
            return tuple(random.randint(low, high) for _ in range(rank))

        groups = random.choice((1, 1, 1, 2, 3, 5))
        widest = 40 if groups == 1 else 12
        stride, dilation = axes(1, 4), axes(1, 3)
        problem = Problem(
            batch=random.randint(1, 3),
            in_channels=groups * random.choice((1, 1, 2, 3, 5, 9)),
            out_channels=groups * random.choice((1, 1, 2, 4, random.randint(1, widest))),
            spatial=axes(1, (30, 9, 5)[rank - 1]),
            kernel=axes(1, (7, 5, 3)[rank - 1]),
            stride=stride,
            padding=axes(0, 3),
            dilation=dilation,
            output_padding=tuple(
                random.randrange(max(both)) for both in zip(stride, dilation, strict=True)
            ),
            groups=groups,
            dtype=random.choice(DTYPES),
        )
        if problem not in seen and min(axis.size for axis in problem.axes) >= 1:
            seen.add(problem)
            yield problem


def listed() -> Iterator[Problem]:
    """Every line in float32 unless it names its type."""
    for line in LINES:
        problem = Problem.parse(line)
        yield problem
        if problem.rank == 2 and problem.dtype == "fp32":
            yield from (Problem.parse(f"{line} {dtype}") for dtype in DTYPES if dtype != "fp32")


EXACT = [*listed(), *drawn(seed=1, count=200)]
SPECIAL = [*map(Problem.parse, LINES), *drawn(seed=2, count=300)]


def integers(problem: Problem, bound: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Input, weights and bias, integers around 0."""
    generator = torch.Generator().manual_seed(hash(problem.spatial) % 1000)
    dtype = ELEMENTS[problem.dtype].dtype
    shapes = problem.input.dims, problem.weight, (problem.out_channels,)
    x, w, b = (torch.randint(-bound, bound + 1, s, generator=generator).to(dtype) for s in shapes)
    return x, w, b


def poisoned(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Integers with one to three NaN and Inf in the input, in the weights, or in both."""
    x, w, b = integers(problem)
    random = Random(str(problem))
    for tensor in random.choice(((x,), (w,), (x, w))):
        flat = tensor.view(-1)
        for _ in range(random.randint(1, 3)):
            flat[random.randrange(flat.numel())] = random.choice((torch.nan, torch.inf, -torch.inf))
    return x, w, b


@cache
def expected(problem: Problem, special: bool = False) -> Tensor:
    """The definition in float64, rounded once."""
    x, w, b = (poisoned if special else integers)(problem)
    wide = scatter(problem, x.double(), w.double(), b.double())
    return wide.to(x.dtype)


def computed(problem: Problem, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """What the core gives, between two guards, in memory that was NaN before."""
    shape = problem.output()
    memory = torch.full((shape.numel + 2 * GUARD,), SENTINEL, dtype=x.dtype)
    out = memory[GUARD:-GUARD].view(shape.dims).fill_(torch.nan)
    run(Chain(conv_transpose(problem.rank, "b")), problem, x, w, {"b": b}, out, "cpu")
    assert (memory[:GUARD] == SENTINEL).all()
    assert (memory[-GUARD:] == SENTINEL).all()
    return out


@pytest.mark.parametrize("problem", EXACT, ids=str)
def test_integers_bit_for_bit(problem: Problem) -> None:
    assert torch.equal(computed(problem, *integers(problem)), expected(problem))


@pytest.mark.parametrize("problem", SPECIAL, ids=str)
def test_nan_and_inf_reach_what_they_touch(problem: Problem) -> None:
    y, exact = computed(problem, *poisoned(problem)), expected(problem, special=True)
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(test(y), test(exact)), test.__name__
    assert torch.equal(y[exact.isfinite()], exact[exact.isfinite()])


@pytest.mark.parametrize("tensor", ["input", "weights"])
@pytest.mark.parametrize("line", ["n1 ci32 co16 i8x5 k3 p1", "n1 ci32 co16 i5x6x4 k3 s2 p1"])
def test_large_values_do_not_overflow_on_the_way(line: str, tensor: str) -> None:
    """Rows in pairs add inputs, and weights, that a definition never adds."""
    problem = Problem.parse(line)
    x, w, b = integers(problem, bound=1)
    large, small = (x, w) if tensor == "input" else (w, x)
    large *= 2.0**127
    small *= 2.0**-20
    exact = scatter(problem, x.double(), w.double(), b.double())
    assert torch.equal(computed(problem, x, w, b).double(), exact)


def test_most_of_the_special_results_are_finite() -> None:
    """A NaN everywhere would be right everywhere."""
    finite = [expected(problem, special=True).isfinite().double().mean() for problem in SPECIAL]
    assert 0.5 < torch.stack(finite).mean() < 0.999
    assert sum(share < 1 for share in finite) > 0.9 * len(SPECIAL)


def test_the_sample_has_every_feature() -> None:
    for sample in (EXACT, SPECIAL):
        assert {(p.rank, p.dtype) for p in sample} == set(product((1, 2, 3), DTYPES))
        assert {p.batch for p in sample} >= {1, 2, 3}
        for rank in (1, 2, 3):
            of_rank = [p for p in sample if p.rank == rank]
            assert any(p.groups == 1 for p in of_rank)
            assert any(1 < p.groups == p.in_channels == p.out_channels for p in of_rank)
            assert any(1 < p.groups == p.out_channels < p.in_channels for p in of_rank)
            assert any(1 < p.groups == p.in_channels < p.out_channels for p in of_rank)
            for axis in range(rank):
                column = [p.axes[axis] for p in of_rank]
                assert {a.stride for a in column} >= {1, 2, 3, 4}
                assert {a.dilation for a in column} >= {1, 2, 3}
                assert any(a.k < a.stride for a in column)
                assert any(a.output_padding >= a.stride for a in column)
                assert any(0 < a.output_padding < a.stride for a in column)
                assert any(a.padding > a.dilation * (a.k - 1) for a in column), "inputs cropped"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_sixteen_bits_round_once_and_overflow_to_inf(dtype: str) -> None:
    """Sums beyond the type's range are Inf of their sign; those just inside are not."""
    element = ELEMENTS[dtype]
    most = torch.finfo(element.dtype).max
    problem = Problem.parse(f"n1 ci4 co3 i5x7 k1 {dtype}")
    x, w, b = (torch.ones(s, dtype=element.dtype) for s in (problem.input.dims, problem.weight, 3))
    x *= most / 2
    b.zero_()
    w[:, 1] *= -1
    w[2:, 2] = -1
    y = computed(problem, x, w, b)
    assert y[:, 0].isposinf().all()
    assert y[:, 1].isneginf().all()
    assert (y[:, 2] == 0).all(), "Inf on the way is not Inf in the end"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_sixteen_bits_round_to_nearest_even(dtype: str) -> None:
    """Every 16-bit value times a few weights: exact in float32, then rounded as torch rounds."""
    element = ELEMENTS[dtype]
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(element.dtype)
    w = torch.tensor([1, 1.5, -0.375, 3.5, 1 / 3, -(2**-11), 2**-13 / 3, 900]).to(element.dtype)
    problem = Problem.parse(f"n1 ci1 co{w.numel()} i{every.numel()} k1 {dtype}")
    x, b = every.view(problem.input.dims), torch.zeros_like(w)
    y = computed(problem, x, w.view(problem.weight), b)[0]
    right = (every.float() * w.float()[:, None]).to(element.dtype)
    torch.testing.assert_close(y, right, rtol=0, atol=0, equal_nan=True)


def test_every_problem_here_is_served() -> None:
    for problem in (*EXACT, *SPECIAL):
        assert Cpu().verdict(Chain(conv_transpose(problem.rank, "b")), problem).ok
