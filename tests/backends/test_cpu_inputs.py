"""What a tile reads: inputs where they lie, and nothing where outputs meet none."""

import pytest
import torch
from torch import Tensor

import transfuse
from transfuse import Problem
from transfuse.reference import scatter
from transfuse.stages import add, sigmoid

IN_PLACE = (
    "n2 ci16 co8 i9x31 k2 s2 p0 fp32",  # every tap meets an input everywhere
    "n2 ci8 co24 i7x40 k1 s1 p0 fp32",
    "n2 ci16 co24 i3x120 k1x3 s1 p0x1 fp32",  # few outputs at the ends: a copy with zeros there
    "n2 ci24 co40 i5x13 k3x2 s3x2 p0x1 fp32",
    "n2 ci16 co32 i6x9 k3 s1 p1 d2 fp32",  # rows so short that taps are taken where they meet
    "n2 ci32 co48 i6x7 k4 s2 p1 g2 fp32",
    "n1 ci64 co16 i200x3 k2 s2 p0 op1 fp32",
    "n2 ci1024 co16 i3x20 k2 s2 p0 fp32",  # lines of the cache drive one another out: a copy
    "n2 ci16 co24 i4x5x6 k2 s2 p0 fp32",
    "n2 ci8 co16 i3x5x6 k2x1x3 s2x1x3 p0 d1x2x1 fp64",
    "n9 ci16 co16 i40x2 k3 s1 p1 fp32",  # samples side by side
    "n3 ci40 co1 i90x70 k2 s2 p0 fp32",  # vectors of positions, channels far apart
    "n3 ci24 co3 i5x7 k3 s3 p0 fp32",
    "n2 ci24 co4 i300 k2 s1 p0 d3 g4 fp32",
    "n2 ci6 co2 i3x4x33 k1 s1 p0 fp64",
    "n1 ci64 co256 i4x4 k2 s2 p0 fp32",  # few tiles: channels in parts
)
GAPS = (
    "n2 ci16 co32 i7x7 k1 s4 p0 fp32",
    "n2 ci16 co64 i6x6 k7x1 s6 p1x0 d4 fp32",
    "n2 ci2 co24 i3x3x2 k4 s4 p1 d2 fp32",
    "n2 ci32 co3 i5x5 k2 s6 p0 op3 fp32",  # few output channels
    "n2 ci32 co32 i5x5 k2 s5 p0 g32 fp32",  # each channel a group
    "n2 ci64 co64 i40x40 k3x3 s1x4 p1x0 fp32",  # rows in pairs
    "n2 ci16 co16 i30x30 k2 s2 p0 d2 fp32",
)


def last(x: Tensor) -> Tensor:
    return x.to(memory_format={4: torch.channels_last, 5: torch.channels_last_3d}[x.dim()])


def integers(problem: Problem, dims: tuple[int, ...], seed: int) -> Tensor:
    dtype = {"fp32": torch.float32, "fp64": torch.float64}[problem.dtype]
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, dims, generator=generator).to(dtype)


def call(problem: Problem, x: Tensor, w: Tensor, *then: object, **options: Tensor) -> Tensor:
    return transfuse.conv_transpose(
        x,
        w,
        stride=problem.stride,
        padding=problem.padding,
        output_padding=problem.output_padding,
        dilation=problem.dilation,
        groups=problem.groups,
        then=[*then],
        backend="cpu",
        **options,
    )


@pytest.mark.parametrize("line", [*IN_PLACE, *GAPS])
def test_both_layouts_give_what_the_definition_says(isa: str, line: str) -> None:
    problem = Problem.parse(line)
    x, w = integers(problem, problem.input.dims, 0), integers(problem, problem.weight, 1)
    bias = integers(problem, (problem.out_channels,), 2)
    expected = scatter(problem, x.double(), w.double(), bias.double())
    for each in (x, last(x)) if problem.rank > 1 else (x,):
        # Memory that was not zero before.
        out = torch.full_like(call(problem, each, w), torch.nan)
        assert call(problem, each, w, bias=bias, out=out).double().equal(expected)


def test_inputs_that_only_look_like_columns(isa: str) -> None:
    """Channels side by side, but rows, or positions, that lie apart, or values of 16 bits."""
    problem = Problem.parse("n2 ci16 co24 i6x9 k2 s2 p0 fp32")
    wide, w = integers(problem, (2, 12, 27, 40), 0), integers(problem, problem.weight, 1)
    x = wide.permute(0, 3, 1, 2)[:, 8:24, ::2, ::3]
    expected = scatter(problem, x.double(), w.double())
    assert call(problem, x, w).double().equal(expected)
    low = call(problem, last(x).bfloat16(), w.bfloat16())
    assert low.double().equal(expected)


def test_columns_stay_within_the_input(isa: str) -> None:
    """The last position ends where memory does: NaN lies behind it, and before the first."""
    problem = Problem.parse("n1 ci12 co16 i5x13 k2 s2 p0 fp32")
    room = torch.full((12 * 65 + 128,), torch.nan)
    x = room[64:-64].view(1, 5, 13, 12).permute(0, 3, 1, 2)
    x.copy_(integers(problem, problem.input.dims, 0))
    w = integers(problem, problem.weight, 1)
    assert call(problem, x, w).double().equal(scatter(problem, x.double(), w.double()))


def test_columns_with_weights_that_are_not_finite(isa: str) -> None:
    problem = Problem.parse("n1 ci16 co16 i4x9 k3 s1 p1 d2 fp32")
    x, w = integers(problem, problem.input.dims, 0), integers(problem, problem.weight, 1)
    w[3, 5, 0, 1], w[2, 7, 2, 2] = torch.nan, torch.inf
    expected = scatter(problem, x.double(), w.double())
    y = call(problem, last(x), w).double()
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.nan_to_num(0, 9, -9), expected.nan_to_num(0, 9, -9))


def test_the_rest_of_a_chain_sees_zeros_in_gaps(isa: str) -> None:
    problem = Problem.parse("n2 ci16 co32 i7x7 k1 s4 p0 fp32")
    x, w = integers(problem, problem.input.dims, 0), integers(problem, problem.weight, 1)
    y = call(problem, last(x), w, add(1.0), sigmoid())
    expected = (scatter(problem, x.double(), w.double()) + 1).sigmoid()
    torch.testing.assert_close(y.double(), expected, rtol=1e-6, atol=0)
