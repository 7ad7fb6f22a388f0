"""The engine of matrix products: kernels that strides divide, against their definition.

Small integers: every sum is exact and rounded once, so results are compared bit for bit.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse import fills
from transfuse.backends.triton import calls, lower
from transfuse.backends.triton.draft import Draft
from transfuse.backends.triton.engines.contract import Task
from transfuse.backends.triton.engines.gemm.gemm_geometry import Anchors, in_place
from transfuse.backends.triton.engines.gemm.gemm_launch import Gemm
from transfuse.backends.triton.engines.portable.tiling import heuristic
from transfuse.backends.triton.gpu import SHARED, Gpu
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.explanation import explain
from transfuse.geometry import Axis
from transfuse.plan import fused
from transfuse.problem import Problem
from transfuse.reference import scatter
from transfuse.stages import add, conv_transpose, leaky_relu, max_pool, pointwise, relu, sigmoid

from .conftest import Child, Interpreter

LAST = {3: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}
ARITHMETIC = ["fp16", "bf16", "tf32 cuda:sm90"]
# One thing that anchors, phases or tiles may get wrong in each line.
LINES = [
    # kernel and stride alike, along one axis, two and three; channels that fill no tile
    "n2 ci8 co8 i24 k2 s2",
    "n3 ci8 co5 i8x8 k2 s2",
    "n1 ci16 co6 i4x4x8 k2 s2",
    "n2 ci24 co3 i4x8 k4 s4",
    "n2 ci8 co3 i8x4 k4x2 s4x2",
    "n2 ci8 co2 i2x4 k8 s8",
    # one tap, many channels: more columns than a tile has
    "n2 ci8 co150 i8x8 k1",
    "n2 ci8 co3 i8 k1",
    # sums longer than a step
    "n1 ci152 co3 i8x8 k2 s2",
    # several taps along a line: padding, none, more than a phase; output padding
    "n2 ci8 co5 i32 k4 s2 p1",
    "n2 ci8 co5 i32 k4 s2",
    "n3 ci16 co3 i24 k16 s8 p4",
    "n2 ci8 co4 i40 k8 s4 p2",
    "n2 ci8 co4 i16 k12 s4 p5 op3",
    "n2 ci8 co4 i16 k3 p1",
    "n2 ci8 co4 i16 k4 p3",
    "n2 ci8 co4 i16 k2 s2 op1",
    # several taps along more axes than one
    "n2 ci8 co5 i4x5 k4 s2 p1",
    "n2 ci5 co3 i3x4 k4x2 s2x1 p1x0 op1x0",
    "n2 ci3 co4 i5x3 k2x4 s2x2 p0x3",
    "n1 ci4 co3 i2x3x3 k4 s2 p1",
    "n2 ci3 co2 i3x2x4 k2x3x4 s1x1x4 p1x1x0",
    # results cropped
    "n2 ci8 co4 i8x8 k2 s2 p1",
    "n2 ci8 co4 i8x8 k4x2 s4x2 p1x0",
    # anchors in more than one tile
    "n2 ci8 co3 i16x16 k2 s2",
    "n2 ci8 co3 i264 k4 s2 p1",
]


def filled(line: str, seed: int = 0) -> tuple[Problem, Tensor, Tensor]:
    """A problem, and small integers for it."""
    problem = Problem.parse(line)
    generator, dtype = torch.Generator().manual_seed(seed), ELEMENTS[problem.dtype].dtype
    x = torch.randint(-3, 4, problem.input.dims, generator=generator)
    weight = torch.randint(-2, 3, problem.weight, generator=generator)
    return problem, x.to(dtype), weight.to(dtype)


def computed(
    interpreter: Interpreter, problem: Problem, x: Tensor, weight: Tensor, last: bool = False
) -> Tensor:
    """The result of this engine; its layout is the input's."""
    chain = Chain(conv_transpose(problem.rank))
    form = LAST[x.dim()] if last else torch.contiguous_format
    strides = torch.empty(chain.result(problem), device="meta", memory_format=form).stride()
    answer = interpreter(chain, problem, x, weight, {}, strides=strides)
    assert "multiply" in [each["kernel"] for each in answer["launches"]], answer["launches"]
    found: Tensor = answer["results"][0]
    return found


def defined(problem: Problem, x: Tensor, weight: Tensor) -> Tensor:
    return scatter(problem, x.double(), weight.double()).to(x.dtype)


def cases() -> Iterator[Any]:
    """Every line in one arithmetic and layout, these in turn; the first ones in all of them."""
    for at, line in enumerate(LINES):
        for turn, arithmetic in enumerate(ARITHMETIC):
            for last in (False, True):
                picked = (2 * turn + last) == at % 6
                marks = () if picked or (at == 1 and not last) else pytest.mark.long
                yield pytest.param(f"{line} {arithmetic}", last, marks=marks)


@pytest.mark.parametrize(("line", "last"), [*cases()])
def test_every_result(line: str, last: bool, interpreter: Interpreter) -> None:
    problem, x, weight = filled(line)
    if last:
        x = x.to(memory_format=LAST[x.dim()])
    y = computed(interpreter, problem, x, weight, last)
    torch.testing.assert_close(y, defined(problem, x, weight), rtol=0, atol=0)


@pytest.mark.parametrize("line", ["n2 ci8 co4 i8x8 k2 s2 fp16", "n2 ci8 co3 i16 k4 s2 p1 bf16"])
def test_strided_tensors(line: str, interpreter: Interpreter) -> None:
    """A slice of a wider input, weights with their axes in another order."""
    problem, x, weight = filled(line)
    wide = torch.full((x.shape[0], 3 * x.shape[1], *x.shape[2:]), torch.nan, dtype=x.dtype)
    inner = wide[:, x.shape[1] : 2 * x.shape[1]]
    inner.copy_(x)
    turned = weight.transpose(0, 1).contiguous().transpose(0, 1)
    y = computed(interpreter, problem, inner, turned)
    torch.testing.assert_close(y, defined(problem, x, weight), rtol=0, atol=0)


WILD = [
    ("n2 ci8 co5 i16 k8 s4 p2 fp16", False),
    ("n2 ci8 co5 i16 k4 s2 p1 tf32 cuda:sm90", False),
    ("n2 ci8 co5 i8 k2 s2 op1 bf16", False),
    ("n2 ci8 co5 i8x8 k2 s2 fp16", False),
    ("n2 ci16 co5 i8x8 k2 s2 fp16", True),
    ("n2 ci6 co4 i4x3 k4 s2 p1 fp16", True),
]


@pytest.mark.parametrize(("line", "last"), WILD)
def test_weights_that_are_not_finite(line: str, last: bool, interpreter: Interpreter) -> None:
    """NaN and Inf show in the outputs that they touch, and nowhere else: no zero meets them."""
    problem, x, weight = filled(line)
    if last:
        x = x.to(memory_format=LAST[x.dim()])
    weight[1, 2, ..., 0] = torch.nan
    weight[2, 0, ..., -1] = torch.inf
    y = computed(interpreter, problem, x, weight, last)
    expected = defined(problem, x, weight)
    assert expected.isfinite().any()
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


TAILS = {
    "bias": (add("bias"), relu()),
    "numbers": (leaky_relu(0.1), sigmoid()),
    "per channel": (pointwise(lambda x, a, b: x * a + b)("a", "b"),),
}


@pytest.mark.parametrize("name", TAILS)
@pytest.mark.parametrize("line", ["n2 ci8 co5 i8x8 k2 s2 fp16", "n2 ci8 co5 i16 k4 s2 p1 bf16"])
def test_tails(name: str, line: str, interpreter: Interpreter) -> None:
    problem = Problem.parse(line)
    chain = Chain(conv_transpose(problem.rank), *TAILS[name])
    launches = interpreter.right(chain, problem, times=2)
    assert "multiply" in [each["kernel"] for each in launches]
