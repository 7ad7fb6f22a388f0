"""The core where outputs begin before the first tap and end beyond the last: bit for bit.

``tests/test_paddings.py`` draws geometries; here are the ways of the core that few channels do not
take: rows in pairs, channels in parts, tiles that lie wholly beyond every tap, wide steps.
"""

from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.front import run
from transfuse.problem import DTYPES, Problem
from transfuse.reference import scatter
from transfuse.stages import conv_transpose, max_pool

LINES = [
    # rows in pairs: every phase of a stride, begun before the input
    *(
        f"n1 ci32 co32 i5x4 {kernel} {padding}"
        for kernel, padding in product(
            ("k3", "k5x2 s2", "k4x3 s2", "k7x2 s3x1"),
            ("p-1 op-1", "p-2 op3", "p-5 op7", "p1x-1 op-3"),
        )
    ),
    # channels in parts: few positions, many weights
    "n1 ci128 co256 i2x2 k3 s2 p-3 op-2",
    # tiles beyond every tap, on either side
    "n1 ci3 co20 i4x3 k3 p-40x-200 op-10x-40",
    "n2 ci3 co2 i5 k3 s2 p-5000 op-9000",
    "n1 ci3 co20 i5 k3 s2 p100 op250",
    # strides and dilations far wider than a tile
    "n1 ci2 co5 i3 k2 s1009 d7 p-1500 op-100",
    "n1 ci2 co5 i3 k3 s6 d1009 p-700 op800",
    # three axes, groups, one channel in each
    "n2 ci4 co36 i3x4x5 k3x2x4 s2x3x1 p-1x2x-3 op-3x4x-5 g2",
    "n1 ci6 co6 i4x7 k3 s2 p-3 op-4 g6",
    "n1 ci4 co12 i4x7 k3x4 s3 d2 p-4x2 op2x-5 g4",
]


@cache
def computed(line: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Input, weights and bias, small integers, and the outputs by the definition."""
    problem = Problem.parse(line)
    generator = torch.Generator().manual_seed(0)
    shapes = problem.input.dims, problem.weight, (problem.out_channels,)
    x, w, b = (torch.randint(-2, 3, each, generator=generator).double() for each in shapes)
    return x, w, b, scatter(problem, x, w, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("line", LINES)
def test_bit_for_bit(line: str, dtype: str) -> None:
    problem = Problem.parse(f"{line} {dtype}")
    x, w, b, expected = (each.to(ELEMENTS[dtype].dtype) for each in computed(line))
    chain, operands = Chain(conv_transpose(problem.rank, "b")), {"b": b}
    assert torch.equal(run(chain, problem, x, w, operands, backend="cpu"), expected)
    pooled = run(Chain(*chain.stages, max_pool(2)), problem, x, w, operands, backend="cpu")
    assert torch.equal(pooled.double(), max_pool(2).apply(expected.double(), {}))
