"""The engine of few output channels, against its definition.

Small integers: every sum is exact and rounded once, so results are compared bit for bit.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.triton import Triton
from transfuse.backends.triton.engines.few import few_tiling
from transfuse.backends.triton.engines.few.few_records import FewTile
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem
from transfuse.reference import scatter
from transfuse.stages import (
    add,
    clamp,
    conv_transpose,
    group_norm,
    max_pool,
    pointwise,
    relu,
    sigmoid,
    softmax,
    square,
    tanh,
)
from transfuse.stages import sum as channel_sum

from .conftest import Child, Interpreter

LAST = {3: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}
ARITHMETIC = ["fp32", "fp16", "tf32 cuda:sm90", "bf16", "fp64"]
# One thing that anchors, phases, taps or stores may get wrong in each line.
LINES = [
    # strides that do not divide the kernel; phases of one tap more than others, or of none
    "n2 ci3 co1 i5x6 k9 s4 p4 op3",
    "n2 ci4 co3 i7 k3 s2 p1 op1",
    "n1 ci5 co3 i4x3 k5x3 s2 p2x1 op1",
    "n2 ci3 co2 i6 k2 s3 op1",
    "n1 ci4 co2 i3x4x2 k3 s2 p1 op1",
    "n2 ci4 co1 i5x4 k3x5 s3x2 p1",
    # strides that do
    "n2 ci8 co4 i6x4 k4 s2 p1",
    "n3 ci4 co3 i8 k16 s8 p4",
    "n2 ci4 co2 i3x2x4 k2 s2",
    "n2 ci8 co1 i4x8 k3 s3",
    # stride 1, one tap
    "n2 ci4 co3 i7x5 k7x3 p3x1",
    "n2 ci12 co4 i8x8 k1",
    "n1 ci2 co2 i3x3x3 k3x1x2 s1x2x1",
    # paddings: more than a phase, below zero, from beyond the last tap on, up to the first
    "n2 ci3 co1 i16 k6 s2 p5",
    "n2 ci2 co3 i4 k4 s2 p-3 op2",
    "n2 ci3 co2 i3x4 k3 s2 p-1x2 op-3x2",
    "n1 ci2 co3 i2x2x3 k3x2x1 s2x1x3 p-1x1x-2 op-2x0x-4",
    "n1 ci2 co3 i3 k2 s3 p7 op14",
    "n1 ci2 co3 i3 k2 s2 p-9 op-16",
    # one tap of a dilated axis
    "n1 ci2 co3 i4x3 k1x3 d2x1",
    # anchors in more than one tile, of more than one plane
    "n2 ci4 co2 i1100 k4 s2 p1",
    "n2 ci3 co1 i13x11x10 k3 s2 p1",
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
    """The result of this engine: one launch, and no memory but that of the call. Where tensor cores
    are slow, it serves however small a layer is."""
    chain = Chain(conv_transpose(problem.rank))
    form = LAST[x.dim()] if last else torch.contiguous_format
    strides = torch.empty(chain.result(problem), device="meta", memory_format=form).stride()
    options = {"strides": strides, "machine": "slow"}
    answer = interpreter(chain, problem, x, weight, {}, **options)
    assert [each["kernel"] for each in answer["launches"]] == ["few_outputs"]
    found: Tensor = answer["results"][0]
    return found


def defined(problem: Problem, x: Tensor, weight: Tensor) -> Tensor:
    return scatter(problem, x.double(), weight.double()).to(x.dtype)


def cases() -> Iterator[Any]:
    """Every line in every arithmetic; two layouts of results, these in turn."""
    for (at, line), (turn, arithmetic) in product(enumerate(LINES), enumerate(ARITHMETIC)):
        yield pytest.param(f"{line} {arithmetic}", (at + turn) % 2 == 1)


@pytest.mark.parametrize(("line", "last"), [*cases()])
def test_every_result(line: str, last: bool, interpreter: Interpreter) -> None:
    problem, x, weight = filled(line)
    y = computed(interpreter, problem, x, weight, last)
    torch.testing.assert_close(y, defined(problem, x, weight), rtol=0, atol=0)


def _channels_last_weights(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x, weight.to(memory_format=torch.channels_last)


def _turned_weights(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x, weight.transpose(0, 1).contiguous().transpose(0, 1)


def _slices(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Every second channel and line of what is otherwise NaN; of weights, column too."""
    n, c, h, w = x.shape
    lines = torch.full((n, 2 * c, 2 * h, w + 1), torch.nan, dtype=x.dtype)[:, ::2, 1::2, 1:]
    n, c, h, w = weight.shape
    columns = torch.full((n, 2 * c, h, 2 * w), torch.nan, dtype=x.dtype)[:, ::2, :, 1::2]
    return lines.copy_(x), columns.copy_(weight)


@pytest.mark.parametrize("lie", [_channels_last_weights, _turned_weights, _slices])
def test_tensors_that_lie_otherwise(lie: Any, interpreter: Interpreter) -> None:
    problem, x, weight = filled("n2 ci8 co3 i4x5 k3 s2 p1 op1")
    y = computed(interpreter, problem, *lie(x, weight))
    torch.testing.assert_close(y, defined(problem, x, weight), rtol=0, atol=0)


WILD = [
    "n2 ci3 co1 i5x6 k9 s4 p4 op3",
    "n2 ci4 co3 i7 k3 s2 p1 op1 fp16",
    "n2 ci8 co4 i4x3 k4 s2 p1 bf16",
    "n1 ci2 co3 i3 k2 s3 p7 op14 fp64",
    "n2 ci4 co2 i2x3x3 k3 s1 tf32 cuda:sm90",
]


@pytest.mark.parametrize("line", WILD)
def test_weights_that_are_not_finite(line: str, interpreter: Interpreter) -> None:
    """NaN and Inf show in the outputs that they touch, and nowhere else: no zero meets them."""
    problem, x, weight = filled(line)
    weight[1, 0, ..., 0] = torch.nan
    weight[0, -1, ..., -1] = torch.inf
    y, expected = computed(interpreter, problem, x, weight), defined(problem, x, weight)
    assert expected.isfinite().any()
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


def test_the_last_weight_is_looked_at(interpreter: Interpreter) -> None:
    """Of more than a program looks at at once."""
    problem, x, weight = filled("n1 ci24 co3 i2x2 k5 s2 p1")
    assert weight.numel() > 1024
    weight[-1, -1, -1, -1] = torch.inf
    y, expected = computed(interpreter, problem, x, weight), defined(problem, x, weight)
    assert expected.isfinite().any()
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("line", WILD)
def test_inputs_that_are_not_finite(line: str, interpreter: Interpreter) -> None:
    problem, x, weight = filled(line)
    x[0, 0, ..., 0], x[0, 1, ..., -1] = torch.nan, -torch.inf
    y, expected = computed(interpreter, problem, x, weight), defined(problem, x, weight)
    assert expected.isfinite().any()
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


TAILS = {
    "bias": (add("bias"), relu()),
    "numbers": (clamp(-1.0, 1.0), sigmoid()),
    "per channel": (pointwise(lambda x, a, b: x * a + b)("a", "b"),),
    "over channels": (softmax("channels"),),
    "the sum of channels": (tanh(), channel_sum("channels", keepdim=True)),
}


@pytest.mark.parametrize("name", TAILS)
@pytest.mark.parametrize(
    "line",
    [
        "n2 ci4 co3 i5x6 k5 s2 p2 op1",
        "n2 ci4 co1 i9 k7 s4 fp16",
        "n1 ci4 co4 i2x3x2 k3 s2 bf16",
    ],
)
def test_tails(name: str, line: str, interpreter: Interpreter) -> None:
    problem = Problem.parse(line)
    chain = Chain(conv_transpose(problem.rank), *TAILS[name])
    launches = interpreter.right(chain, problem, machine="slow")
    assert [each["kernel"] for each in launches] == ["few_outputs"]


@pytest.mark.parametrize(
    "line", ["n2 ci4 co3 i3x4 k3 s2 p1 op1", "n2 ci4 co2 i6 k9 s4 p4 op3 fp16"]
)
def test_an_operand_for_every_element(line: str, interpreter: Interpreter) -> None:
    """A residual is read where results lie, phases and anchors shuffled likewise."""
    problem = Problem.parse(line)
    result = Chain(conv_transpose(problem.rank)).result(problem)
    chain = Chain(conv_transpose(problem.rank), add("skip"), relu())
    fitted = chain.fitted({"skip": tuple(result)})
    launches = interpreter.right(fitted, problem, machine="slow")
    assert [each["kernel"] for each in launches] == ["few_outputs"]


HOT = [
    ("n16 ci56 co1 i256x256 k9 s4 p4 op3 cuda:sm90 tf32", (), ("v4", "32")),
    ("n8 ci64 co3 i128x128 k4 s2 p1 cuda:sm90", (tanh(),), ("", "32")),
    ("n2 ci32 co2 i32x32x32 k3 s2 p1 op1 cuda:sm90 tf32", (), ("", "32")),
    ("n8 ci64 co2 i256x256 k2 s2 fp16 cuda:sm90", (add("bias"),), ("v4", "32")),
]


@pytest.mark.parametrize(("line", "then", "stores"), HOT)
def test_hopper(line: str, then: tuple[Any, ...], stores: tuple[str, str], compiler: Child) -> None:
    """Nothing is spilled; phases of whole lines are stored together."""
    problem = Problem.parse(line)
    stages = Chain(conv_transpose(problem.rank), *then).stages
    (hot,) = compiler(stages=stages, problem=problem, capability=90)
    assert hot["kernel"] == "few_outputs"
    assert hot["spilled"] == hot["wgmma"] == hot["mma"] == 0, hot
    assert {*hot["stores"]} == {stores}, hot


@pytest.mark.parametrize(
    ("line", "stages", "reason"),
    [
        ("n2 ci8 co5 i8x8 k3", (), "it takes at most 4 output channels, and there are 5"),
        ("n2 ci8 co2 i8x8 k3 g2", (), "it has no groups, and there are 2"),
        ("n2 ci8 co2 i8x8 k3 d2", (), "it has no dilation, and there is one of 2"),
        ("n2 ci8 co2 i8x8x8 k4 s4", (), "an anchor has 128 sums; a thread holds 64"),
        ("n2 ci8 co3 i8x8 k5 s4 fp64", (), "an anchor has 48 sums; a thread holds 32"),
        ("n2 ci8 co1 i8x8x8 k5", (), "an output meets 125 inputs of a channel; 64 are written out"),
        ("n2 ci8 co4 i8x8 k24 s4", (), "an input meets 2304 weights; 1024 are written out"),
        ("n2 ci8 co3 i8x8 k3", (max_pool(2),), "a window or a statistic follows the sums"),
        ("n2 ci8 co4 i8x8 k3", (group_norm(2),), "a window or a statistic follows the sums"),
    ],
)
def test_refusals(line: str, stages: tuple[Any, ...], reason: str) -> None:
    problem = Problem.parse(f"{line} cuda:sm90")
    (row,) = Triton().tiles(Chain(conv_transpose(problem.rank), *stages), problem)
    assert row.passed_over["few"] == reason


def test_stages_before_the_convolution() -> None:
    problem = Problem.parse("n2 ci8 co3 i8x8 k3 cuda:sm90")
    (row,) = Triton().tiles(Chain(square(), conv_transpose(2)), problem)
    assert row.passed_over["few"].startswith("stages before the convolution run where")


def test_long_sums_of_few_anchors_go_to_tensor_cores() -> None:
    """Channels are added one after another, by as many programs as anchors fill."""
    problem = Problem.parse("n1 ci2048 co3 i8x8 k4 s2 p1 fp16 cuda:sm90")
    (row,) = Triton().tiles(Chain(conv_transpose(2)), problem)
    reason = "it is expected to take {} of the time of tensor cores"
    share = row.passed_over["few"].split()[5]
    assert row.passed_over["few"] == reason.format(share)
    assert float(share) > 1


@pytest.mark.parametrize("rest", ["i256x256 k3 s2", "i48x48x48 k3 s2"])
def test_channels_innermost(rest: str) -> None:
    """Neighbouring threads would read lines of their own."""
    problem = Problem.parse(f"n8 ci8 co2 {rest} channels_last cuda:sm90")
    (row,) = Triton().tiles(Chain(conv_transpose(problem.rank)), problem)
    assert row.passed_over["few"] == "its input has channels innermost"
    assert few_tiling.expected(problem) is None
    assert few_tiling.expected(replace(problem, layout="contiguous")) is not None


def test_one_axis_has_no_form_with_channels_innermost() -> None:
    problem = Problem.parse("n16 ci32 co1 i8192 k7 p3 channels_last cuda:sm90")
    (row,) = Triton().tiles(Chain(conv_transpose(1)), problem)
    assert row.engine.startswith("few:")
    assert few_tiling.expected(problem) is not None


def test_explained() -> None:
    problem = Problem.parse("n16 ci56 co1 i256x256 k9 s4 p4 op3 fp32 tf32 cuda:sm90")
    (row,) = Triton().tiles(Chain(conv_transpose(2)), problem)
    assert row.engine == "few: tile of 512 anchors channels by 1"
    (only,) = Triton().plan(Chain(conv_transpose(2)), problem).passes
    assert "copy" not in only.does


def test_every_weight_is_met_once() -> None:
    """By one tap and one phase each."""
    tile = FewTile(128, 3, 1, (2, 3, 5), (1, 2, 4), (30, 15, 5, 1), (True,) * 3, True, 1)
    met = [at for tap in tile.factors for at in tap if at >= 0]
    assert sorted(met) == list(range(tile.weights))
    assert (len(tile.factors), *{len(tap) for tap in tile.factors}) == (len(tile.taps), tile.sums)
