"""Few output channels over short rows: the core multiplies each input with all taps at once."""

import ctypes
from itertools import product
from typing import Any

import pytest
import torch

from tests.backends.test_cpu_short_rows import definition, integers
from transfuse import conv_transpose
from transfuse.backends.cpu.executables import Core
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import Stage, add, max_pool, relu, sigmoid, softmax
from transfuse.stages import conv_transpose as convolution

EXTRA = 3
"""Elements that packed weights of columns have beyond those of whole lines."""
LINES = (
    "n2 ci48 co4 i7x7 k3 s1 p1",
    "n2 ci48 co4 i7x7 k3 s3 p0",
    "n3 ci64 co2 i5x6 k4 s2 p1 op1",
    "n1 ci40 co3 i4x5x3 k3x2x3 s2x1x2 p1x0x1",
    "n2 ci96 co2 i6 k5 s2 p2",
    "n2 ci64 co3 i5x4 k3 s2 p2 d3",
)


def by_columns(core: ctypes.CDLL, line: str) -> bool:
    problem = Problem.parse(line)
    program = Core(Chain(convolution(problem.rank)), problem).ready._program
    size = 8 if problem.dtype == "fp64" else 4
    elements = core.transfuse_packed_bytes(ctypes.byref(program)) // size
    return bool(elements % problem.in_channels == EXTRA)


def test_outputs_that_meet_no_input_do_not_count(core: ctypes.CDLL, isa: str) -> None:
    """With twice the stride and dilation, three of four of them."""
    for co, ci, n in product((2, 3), (16, 48, 96, 128), (10, 24)):
        line = f"n2 ci{ci} co{co} i{n}x{n} k3"
        assert by_columns(core, f"{line} s1 p2 d2") == by_columns(core, f"{line} s2 p4 d4")


def given(problem: Problem) -> dict[str, Any]:
    names = ("stride", "padding", "dilation", "output_padding", "groups")
    return {name: getattr(problem, name) for name in names}


def test_most_such_layers_are_computed_by_columns(core: ctypes.CDLL, isa: str) -> None:
    """What is narrow goes by the vectors of an instruction set."""
    assert sum(by_columns(core, line) for line in LINES) >= 4


@pytest.mark.parametrize(
    "line",
    [
        "n2 ci64 co64 i16x16 k3 s1 p1",  # channels fill vectors
        "n2 ci64 co4 i300x300 k3 s1 p1",  # columns that no cache holds
        "n2 ci4 co4 i7x7 k3 s1 p1",  # few products beside what it takes to gather them
        "n2 ci64 co4 i7x7 k1 s1",  # one tap
        "n2 ci64 co64 i7x7 k3 s1 p1 g16",
    ],
)
def test_other_layers_are_not(core: ctypes.CDLL, isa: str, line: str) -> None:
    assert not by_columns(core, line)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("biased", [False, True])
def test_small_integers(isa: str, line: str, last: bool, biased: bool) -> None:
    problem = Problem.parse(line)
    x = integers(problem.batch, problem.in_channels, *problem.spatial)
    if last:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    weight = integers(problem.in_channels, problem.out_channels, *problem.kernel, seed=1)
    bias = integers(problem.out_channels, seed=2) if biased else None
    y = conv_transpose(x, weight, bias, backend="cpu", **given(problem))
    expected = definition(x, weight, **given(problem))
    if bias is not None:
        expected = expected + bias.view(-1, *(1,) * problem.rank)
    assert torch.equal(y.double(), expected)


def test_outputs_beyond_all_taps(isa: str) -> None:
    x, weight = integers(2, 64, 5, 4), integers(64, 3, 3, 3, seed=1)
    y = conv_transpose(x, weight, stride=2, padding=((-1, -1), (-2, -2)), backend="cpu")
    expected = torch.nn.functional.pad(definition(x, weight, stride=2), (2, 2, 1, 1))
    assert torch.equal(y.double(), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_types_and_layouts_of_inputs(isa: str, dtype: torch.dtype) -> None:
    x = integers(2, 48, 14, 9)[:, :, ::2, 1:8].to(dtype)
    weight = integers(48, 3, 3, 3, seed=1).to(dtype)
    for each in (x, x.contiguous(), x.transpose(2, 3)):
        y = conv_transpose(each, weight, stride=2, padding=1, backend="cpu")
        assert torch.equal(y, definition(each, weight, stride=2, padding=1).to(dtype))


def test_weights_that_lie_in_another_way(isa: str) -> None:
    x, weight = integers(2, 48, 7, 7), integers(3, 3, 48, 4, seed=1).permute(2, 3, 1, 0)
    y = conv_transpose(x, weight, padding=1, backend="cpu")
    assert torch.equal(y.double(), definition(x, weight, padding=1))


@pytest.mark.parametrize(
    "then", [(relu(),), (max_pool(2),), (softmax("channels"), add(1.0)), (sigmoid(),)], ids=str
)
def test_stages_behind_them(isa: str, then: tuple[Stage, ...]) -> None:
    x, weight = integers(3, 64, 9, 8), integers(64, 3, 3, 3, seed=1) / 8
    y = conv_transpose(x, weight, padding=1, then=then, backend="cpu")
    expected = definition(x, weight, padding=1)
    for stage in then:
        expected = stage.apply(expected, {})
    assert torch.allclose(y.double(), expected, rtol=0, atol=1e-6)


def test_the_same_weights_over_short_rows_and_long_ones(isa: str) -> None:
    """They are packed in another order for each."""
    weight = integers(64, 4, 3, 3, seed=1)
    for size in (6, 300, 6):
        x = integers(1, 64, size, size, seed=size)
        y = conv_transpose(x, weight, padding=1, backend="cpu")
        assert torch.equal(y.double(), definition(x, weight, padding=1))


def test_tiles_that_meet_the_same_inputs(isa: str) -> None:
    x, weight = integers(1, 32, 40, 40), integers(32, 2, 3, 3, seed=1)
    options: dict[str, Any] = {"stride": 3, "padding": 1, "dilation": 2}
    y = conv_transpose(x, weight, backend="cpu", **options)
    assert torch.equal(y.double(), definition(x, weight, **options))


def test_values_that_are_not_finite_reach_only_what_they_meet(isa: str) -> None:
    x, weight = integers(2, 48, 5, 6) + 3, integers(48, 4, 3, 3, seed=1)
    x[1, 0, 0, 0], x[0, 1, 2, 1] = torch.inf, torch.nan
    weight[0, 0, 0, 0], weight[-1, -1, 2, 2] = torch.inf, torch.nan
    y = conv_transpose(x, weight, stride=2, backend="cpu")
    expected = definition(x, weight, stride=2)
    assert torch.equal(y.double().nan_to_num(77), expected.nan_to_num(77))
    assert y.isfinite().any()
    assert not y.isfinite().all()
