"""The engine of matrix products: kernels that strides divide, against their definition.

Small integers: every sum is exact and rounded once, so results are compared bit for bit.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.triton import Triton
from transfuse.backends.triton.engines.gemm.gemm_geometry import Anchors, in_place
from transfuse.backends.triton.engines.served import Explained
from transfuse.backends.triton.gpu import SHARED
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.geometry import Axis
from transfuse.problem import Problem
from transfuse.reference import scatter
from transfuse.stages import add, conv_transpose, leaky_relu, pointwise, relu, sigmoid, square

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
    "n2 ci8 co4 i16 k6 s2 p5",
    "n2 ci8 co4 i16 k2 s2 op1",
    # several taps along more axes than one
    "n2 ci8 co5 i4x5 k4 s2 p1",
    "n2 ci5 co3 i3x4 k4x1 s2x1 p1x0 op1x0",
    "n2 ci3 co4 i5x3 k2x4 s2x2 p0x3",
    "n1 ci4 co3 i2x3x3 k4 s2 p1",
    "n2 ci3 co2 i3x2x4 k4x1x4 s2x1x4 p1x0x0",
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
    """The result of this engine; its layout is the input's.

    Some layers have few channels, whose engine is asked before.
    """
    chain = Chain(conv_transpose(problem.rank))
    form = LAST[x.dim()] if last else torch.contiguous_format
    strides = torch.empty(chain.result(problem), device="meta", memory_format=form).stride()
    answer = interpreter(chain, problem, x, weight, {}, strides=strides, without=("few",))
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


@pytest.mark.parametrize("line", ["n2 ci8 co64 i2x4 k2 s2 fp16", "n1 ci8 co256 i2x2 k2 s2 bf16"])
def test_weights_with_their_channels_innermost(line: str, interpreter: Interpreter) -> None:
    """Where all tensors have them so, nothing is packed."""
    problem, x, weight = filled(line)
    form = torch.channels_last
    x, weight = x.to(memory_format=form), weight.to(memory_format=form)
    chain = Chain(conv_transpose(2))
    strides = torch.empty(chain.result(problem), device="meta", memory_format=form).stride()
    answer = interpreter(chain, problem, x, weight, {}, strides=strides)
    assert [each["kernel"] for each in answer["launches"]] == ["multiply"]
    torch.testing.assert_close(answer["results"][0], defined(problem, x, weight), rtol=0, atol=0)


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


def test_stages_before_the_convolution(interpreter: Interpreter) -> None:
    """They run where the input is copied: none of it is read in place."""
    chain = Chain(square(), conv_transpose(2), relu())
    launches = interpreter.right(chain, Problem.parse("n2 ci8 co5 i8x8 k2 s2 fp16"))
    assert [each["kernel"] for each in launches] == ["pack", "pack_phases", "multiply"]


@pytest.mark.parametrize("line", ["n2 ci8 co5 i8x8 k2 s2 fp16", "n2 ci8 co6 i3x4 k4 s2 p1 bf16"])
def test_an_operand_for_every_element(line: str, interpreter: Interpreter) -> None:
    """A residual is read where results lie, phases and anchors shuffled likewise."""
    problem = Problem.parse(line)
    result = Chain(conv_transpose(2)).result(problem)
    chain = Chain(conv_transpose(2), add("skip"), relu()).fitted({"skip": tuple(result)})
    launches = interpreter.right(chain, problem)
    assert "multiply" in [each["kernel"] for each in launches]


@pytest.mark.parametrize(
    ("line", "stores"),
    [
        ("n8 ci128 co64 i64x64 k2 s2 fp16", ("v4", "32")),
        ("n8 ci128 co64 i64x64 k2 s2 cuda:sm90 tf32", ("v4", "32")),
        ("n4 ci256 co128 i256 k16 s8 p4 bf16", ("v2", "32")),
    ],
)
def test_hopper(line: str, stores: tuple[str, str], compiler: Child) -> None:
    """Tensor cores read both factors from shared memory, and neighbours are stored together."""
    problem = Problem.parse(line)
    found = compiler(
        stages=Chain(conv_transpose(problem.rank)).stages, problem=problem, capability=90
    )
    (hot,) = (each for each in found if each["kernel"] == "multiply")
    assert hot["wgmma"] > 0 == hot["mma"], hot
    assert hot["tma"] > 0 == hot["spilled"], hot
    assert hot["left_in_registers"] == 0, hot
    assert {*hot["stores"]} == {stores}, hot
    assert hot["shared"] <= SHARED[90], hot


@pytest.mark.long
@pytest.mark.parametrize(
    "line", ["n8 ci128 co64 i64x64 k2 s2 fp16", "n4 ci64 co64 i16x16 k4 s2 p1 cuda:sm90 tf32"]
)
def test_ampere(line: str, compiler: Child) -> None:
    """No copy engine, no warpgroups: the same kernel by other instructions."""
    problem = Problem.parse(line)
    found = compiler(stages=Chain(conv_transpose(2)).stages, problem=problem, capability=80)
    (hot,) = (each for each in found if each["kernel"] == "multiply")
    assert hot["mma"] > 0 == hot["wgmma"] == hot["tma"], hot
    assert hot["shared"] <= SHARED[80], hot


def shown(line: str) -> Explained:
    """What ``explain`` shows of a convolution alone."""
    problem = Problem.parse(line)
    (row,) = Triton().tiles(Chain(conv_transpose(problem.rank)), problem)
    return row


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("n8 ci512 co256 i64x64 k2 s2 fp16 cuda:sm90", "input in place"),
        ("n8 ci512 co256 i64x64 k2 s2 fp16 channels_last cuda:sm90", "input in place"),
        ("n16 ci512 co256 i256 k16 s8 p4 bf16 cuda:sm90", "input copied"),
    ],
)
def test_explained(line: str, words: str) -> None:
    row = shown(line)
    assert row.engine.startswith("gemm: tile ")
    assert row.engine.endswith(words)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("n2 ci8 co8 i8x8 k3 s2 fp16 cuda:sm90", "stride 2 does not divide kernel 3"),
        ("n2 ci8 co8 i8x8 k3 fp16 cuda:sm90", "stride 1 has one phase, and kernel 3 more taps"),
        ("n2 ci8 co8 i8x8 k3 s3 fp16 cuda:sm90", "stride 3 is no power of two"),
        ("n2 ci8 co8 i8x8 k2 s2 g2 fp16 cuda:sm90", "it has no groups, and there are 2"),
        ("n2 ci8 co8 i8x8 k4 s2 d3 fp16 cuda:sm90", "it has no dilation, and there is one of 3"),
        ("n2 ci8 co8 i8x8 k2 s2 cuda:sm90", "it multiplies tf32, fp16 and bf16, not fp32"),
        ("n2 ci8 co8 i8 k128 s128 fp16 cuda:sm90", "128 phases of two channels do not fit a tile"),
        (
            "n4 ci256 co128 i128x128 k4 s2 p1 fp16 cuda:sm90",
            "strips are faster from 6 tiles of a multiprocessor on",
        ),
    ],
)
def test_refusals(line: str, reason: str) -> None:
    assert shown(line).passed_over["gemm"] == reason


@pytest.mark.parametrize(
    "axis", [Axis(n, k, s, p, 1, op) for n in (1, 4, 5) for s in (1, 2, 4) for k in (s, 3 * s)
             for p in (-3, 0, 1, s, 2 * s) for op in (0, 1, 5)]
)  # fmt: skip
def test_anchors(axis: Axis) -> None:
    """Every result is one phase of one anchor; what taps read is an input, or a copy's zero."""
    if axis.size < 1:
        return
    width = Anchors.of((axis,), (axis.size,)).width
    found = sorted(
        width.stride * a + r - width.back for a in range(width.anchors) for r in range(axis.stride)
    )
    assert [o for o in found if 0 <= o < axis.size] == list(range(axis.size))
    for a in range(width.anchors):
        for j in range(width.taps):
            at = width.first + a - j
            assert 0 <= at < axis.n or axis.n <= at % width.extent
            assert -width.extent <= at < width.extent
            for r in range(axis.stride):
                o = width.stride * a + r - width.back
                assert o + axis.padding - (axis.stride * j + r) == axis.stride * at


def test_where_the_input_can_be_read() -> None:
    """Pieces of 16 bytes: 8 elements."""
    lies = in_place(2, 16, (1, 8, 8), (1024, 64, 64, 8, 1), 8, crosses=True)
    assert lies is not None
    assert (lies.channels_last, lies.sizes, lies.strides) == (False, (2, 16, 64), (1024, 64, 1))
    last = in_place(2, 16, (1, 8, 8), (1024, 1, 1024, 128, 16), 8, crosses=True)
    assert last is not None
    assert (last.crosses, last.sizes, last.strides) == (True, (1, 128, 16), (2048, 16, 1))
    apart = in_place(2, 16, (1, 8, 8), (4096, 1, 1024, 128, 16), 8, crosses=True)
    assert apart is not None
    assert (apart.crosses, apart.sizes, apart.strides) == (False, (2, 64, 16), (4096, 16, 1))
    assert in_place(2, 16, (1, 8, 7), (1024, 64, 64, 8, 1), 8, crosses=True) is None  # a crop
    assert in_place(2, 16, (1, 5, 5), (400, 25, 25, 5, 1), 8, crosses=True) is None  # 50 bytes
    assert in_place(2, 12, (1, 8, 8), (768, 1, 768, 96, 12), 8, crosses=True) is None  # 24 bytes
