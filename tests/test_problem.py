"""Problem: one line out, the same problem back; illegal values raise with their numbers."""

import re
from dataclasses import replace
from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transfuse.problem import (
    DTYPES,
    LAYOUTS,
    PRECISIONS,
    Problem,
    Shape,
    arithmetics,
    expect_in_torch,
)

LEGAL = Problem.parse("n2 ci4 co6 i5x7 k3x2 s2 p1 d1x2 op1x0 g2")


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Any legal problem, far beyond what a machine could hold."""
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 5))

    def per_axis(least: int) -> st.SearchStrategy[tuple[int, ...]]:
        return st.tuples(*[st.integers(least, 9) | st.integers(least, 10**6)] * rank)

    dtype = draw(st.sampled_from(DTYPES))
    device = draw(st.sampled_from(["cpu", "cuda:sm90", "cuda:sm120", "meta", "mps", "xpu"]))
    tf32 = dtype == "fp32" and device.startswith("cuda")
    return Problem(
        batch=draw(st.integers(0, 10**4)),
        in_channels=groups * draw(st.integers(1, 1000)),
        out_channels=groups * draw(st.integers(1, 1000)),
        spatial=draw(per_axis(1)),
        kernel=draw(per_axis(1)),
        stride=draw(per_axis(1)),
        padding=draw(per_axis(-9)),
        dilation=draw(per_axis(1)),
        output_padding=draw(per_axis(-9)),
        groups=groups,
        dtype=dtype,
        layout=draw(st.sampled_from(LAYOUTS)),
        device=device,
        precision=draw(st.sampled_from(PRECISIONS)) if tf32 else "ieee",
    )


@given(problems())
@settings(max_examples=300)
def test_prints_and_parses_back(problem: Problem) -> None:
    line = str(problem)
    assert Problem.parse(line) == problem
    assert hash(Problem.parse(line)) == hash(problem)
    assert Problem.parse(" ".join(reversed(line.split()))) == problem


@pytest.mark.parametrize(
    "line",
    [
        "n8 ci64 co64 i512x512 k3x7 s1 p0 fp32 cuda:sm90",
        "n8 ci64 co64 i512x512 k3x7 s1 p0 fp32 tf32 channels_last cuda:sm90",
        "n0 ci1 co1 i1 k1 s1 p0 fp64 cpu",
        "n3 ci15 co20 i7x11 k2x4 s3x1 p0x1 d1x3 op2x0 g5 bf16 channels_last meta",
        "n1 ci1 co1 i7x11 k2x4 s1 p-1x2 op-3x20 fp32 cpu",
    ],
)
def test_a_printed_line_reads_like_this(line: str) -> None:
    assert str(Problem.parse(line)) == line


def test_the_line_of_the_design() -> None:
    assert Problem.parse("n8 ci64 co64 i512x512 k3x7 s1 p0 fp32 cuda:sm90") == Problem(
        batch=8,
        in_channels=64,
        out_channels=64,
        spatial=(512, 512),
        kernel=(3, 7),
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
        output_padding=(0, 0),
        groups=1,
        dtype="fp32",
        layout="contiguous",
        device="cuda:sm90",
    )


def test_defaults_are_those_of_torch() -> None:
    full = "n1 ci2 co3 i4x5x6 k3 s1 p0 d1 op0 g1 fp32 contiguous cpu"
    assert Problem.parse("n1 ci2 co3 i4x5x6 k3") == Problem.parse(full)


MALFORMED = {
    "": "lacks n, ci, co, i, k",
    "n1 ci2 co3 i4": "lacks k",
    "n1 ci2 co3 i4 k3 z2": "unknown word 'z2'",
    "n1 ci2 co3 i4 k3y3": "unknown word 'k3y3'",
    "n1 ci2 co3 i4 k3 s-1": "unknown word 's-1'",
    "n1 ci2 co3 i4 k3 p--1": "unknown word 'p--1'",
    "n1 ci2 co3 i4 k3 s1.5": "unknown word 's1.5'",
    "n1 ci2 co3 i4 k3 fp8": "unknown word 'fp8'",
    "n1 ci2 co3 i4 k3 cuda:": "unknown word 'cuda:'",
    "n1 ci2 co3 i4 k3 CPU": "unknown word 'CPU'",
    "n1x2 ci2 co3 i4 k3": "n takes one number, not 'n1x2'",
    "n1 ci2 co3 i4 k3 g1x1": "g takes one number, not 'g1x1'",
    "n1 ci2 co3 i4x4x4x4 k3": "i needs 1 to 3 sizes, such as i64x64, but",
    "n1 ci2 co3 i4x4 k3x3x3": "k needs 1 or 2 values in",
    "n1 ci2 co3 i4x4 k3 op0x0x0": "op needs 1 or 2 values in",
    "n1 ci2 co3 i4 k3 n1": "n is given twice",
    "n1 ci2 co3 i4 k3 fp32 fp16": "dtype is given twice",
    "n1 ci2 co3 i4 k3 cpu cuda:sm90": "device is given twice",
    "n1 ci2 co3 i4 k3 strided strided": "layout is given twice",
    "n1 ci2 co3 i4 k3 cuda tf32 tf32": "precision is given twice",
    "n1 ci2 co3 i4 k3 tf32": "precision tf32 is for fp32 on cuda, not for fp32 on cpu",
    "n1 ci2 co3 i4 k3 bf16 tf32 cuda:sm90": "tf32 is for fp32 on cuda, not for bf16 on cuda:sm90",
}


@pytest.mark.parametrize("line", MALFORMED)
def test_malformed_line(line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(MALFORMED[line])):
        Problem.parse(line)


# Field, illegal value, what the message must say.
ILLEGAL = [
    ("batch", -1, "batch must be at least 0, but got batch=-1"),
    ("in_channels", 0, "in_channels must be at least 1, but got in_channels=0"),
    ("out_channels", 0, "out_channels must be at least 1, but got out_channels=0"),
    ("spatial", (5, 0), "spatial size must be at least 1, but got spatial size=[5, 0]"),
    ("kernel", (0, 2), "kernel must be at least 1, but got kernel=[0, 2]"),
    ("stride", (2, 0), "stride must be at least 1, but got stride=[2, 0]"),
    ("padding", (-(2**31), 0), "padding must be at least -2147483647, but got padding=[-2147483"),
    ("padding", (0, 2**31), "padding must be at most 2147483647, but got padding=[0, 2147483648]"),
    ("dilation", (1, -2), "dilation must be at least 1, but got dilation=[1, -2]"),
    ("output_padding", (0, -(2**34)), "output_padding must be at least -8589934592, but got"),
    ("output_padding", (2**34, 0), "output_padding must be at most 8589934592, but got"),
    ("groups", 0, "groups must be at least 1, but got groups=0"),
    ("groups", -2, "groups must be at least 1, but got groups=-2"),
    ("groups", 3, "groups=3 does not divide in_channels=4"),
    ("groups", 4, "groups=4 does not divide out_channels=6"),
    ("spatial", (), "spatial must have 1 to 3 sizes, but got spatial=[]"),
    ("spatial", (5, 5, 5, 5), "spatial must have 1 to 3 sizes, but got spatial=[5, 5, 5, 5]"),
    ("kernel", (3,), "kernel must have 2 values, but got [3]"),
    ("dilation", (1, 1, 1), "dilation must have 2 values, but got [1, 1, 1]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "message"), [pytest.param(*row, id=f"{row[0]}={row[1]}") for row in ILLEGAL]
)
def test_illegal_value(field: str, value: object, message: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(message)):
        replace(LEGAL, **{field: value})


@pytest.mark.parametrize("field", ["dtype", "layout", "precision"])
def test_unknown_name(field: str) -> None:
    known = {"dtype": DTYPES, "layout": LAYOUTS, "precision": PRECISIONS}[field]
    with pytest.raises(ValueError, match=f"unknown {field} 'int8'; known: {', '.join(known)}"):
        replace(LEGAL, **{field: "int8"})


@pytest.mark.parametrize(
    ("line", "most"),
    [
        ("n1 ci1 co1 i3 k2 s3", 2),
        ("n1 ci1 co1 i3 k2 s1 d4", 3),
        ("n1 ci1 co1 i3 k2 s2 d2", 1),
        ("n1 ci1 co1 i3 k2", 0),
    ],
)
def test_output_padding_of_torch_stays_below_stride_or_dilation(line: str, most: int) -> None:
    for op in range(most + 1):
        problem = Problem.parse(f"{line} op{op}")
        assert problem.in_torch
        expect_in_torch(problem)
    beyond = Problem.parse(f"{line} op{most + 1}")
    assert not beyond.in_torch
    with pytest.raises(RuntimeError, match=f"legal: 0 to {most}"):
        expect_in_torch(beyond)


# Field, value, what torch's rule says of it.
NOT_IN_TORCH = [
    ("padding", (-1, 0), "padding must be at least 0, but got padding=[-1, 0]"),
    ("output_padding", (0, -1), "must be at least 0, but got output_padding=[0, -1]"),
    ("output_padding", (2, 0), "height has output_padding=2, stride=2, dilation=1; legal: 0 to 1"),
    ("output_padding", (1, 2), "width has output_padding=2, stride=2, dilation=2; legal: 0 to 1"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "message"), NOT_IN_TORCH)
def test_a_problem_that_torch_does_not_take(field: str, value: object, message: str) -> None:
    problem = replace(LEGAL, **{field: value})
    assert not problem.in_torch
    with pytest.raises(RuntimeError, match=re.escape(message)):
        expect_in_torch(problem)


def test_shapes() -> None:
    assert LEGAL.rank == 2
    assert LEGAL.input == Shape(2, 4, (5, 7))
    assert LEGAL.weight == (4, 3, 3, 2)
    # Height (5-1)*2 - 2 + 2 + 1 + 1, width (7-1)*2 - 2 + 2 + 0 + 1.
    assert LEGAL.output() == Shape(2, 6, (10, 13))
    assert LEGAL.output().dims == (2, 6, 10, 13)
    assert LEGAL.output().positions == 130
    assert LEGAL.output().numel == 1560


@pytest.mark.parametrize(
    ("line", "most"), [("n1 ci1 co1 i2x2 k1 p1", 0), ("n1 ci1 co1 i9x2 k2x4 s1x3 p3x4", 3)]
)
def test_empty_output_names_the_most_padding(line: str, most: int) -> None:
    problem = Problem.parse(line)
    with pytest.raises(RuntimeError, match=rf"empty output: .* may be at most {most} here"):
        problem.output()
    fits = replace(problem, padding=(most, most))
    assert min(fits.output().spatial) >= 1
    with pytest.raises(RuntimeError, match="empty output"):
        replace(problem, padding=(most + 1, most + 1)).output()


def test_at_changes_the_size_alone() -> None:
    assert LEGAL.at((5, 7)) is LEGAL
    assert LEGAL.at((8, 9)) == replace(LEGAL, spatial=(8, 9))


def multiply_adds(problem: Problem, needed: tuple[int, ...]) -> int:
    """One for every sample, channel pair of a group, output, input and tap that meet."""
    landings = [
        sum(
            i * axis.stride == o + axis.padding - k * axis.dilation
            for o, i, k in product(range(extent), range(axis.n), range(axis.k))
        )
        for axis, extent in zip(problem.axes, needed, strict=True)
    ]
    channels = product(range(problem.in_channels), range(problem.out_channels))
    ci, co = problem.in_channels // problem.groups, problem.out_channels // problem.groups
    return problem.batch * prod(landings) * sum(i // ci == o // co for i, o in channels)


@pytest.mark.parametrize(
    "line",
    [
        "n2 ci3 co5 i7 k3 s2 p1",
        "n1 ci4 co6 i5 k2 s3 g2",
        "n3 ci2 co2 i4x6 k3x5 s1 p1x2",
        "n1 ci6 co9 i5x3 k4x2 s2x3 p1x0 d1x2 op1x2 g3",
        "n1 ci2 co3 i3x2x4 k2x3x1 s2x1x3 p0x1x0 op1x0x2",
        "n0 ci2 co2 i4 k3",
    ],
)
def test_flops_count_every_multiply_add_twice(line: str) -> None:
    problem = Problem.parse(line)
    full = problem.output().spatial
    assert problem.flops() == 2 * multiply_adds(problem, full)
    part = tuple((extent + 1) // 2 for extent in full)
    assert problem.flops(part) == 2 * multiply_adds(problem, part)


def test_tf32_is_an_arithmetic_of_cuda_alone() -> None:
    line = "n1 ci2 co3 i4 k3 fp32 {} cuda:sm90"
    assert Problem.parse(line.format("")).arithmetic == "fp32"
    assert Problem.parse(line.format("tf32")).arithmetic == "tf32"
    assert Problem.parse(line.format("tf32")).dtype == "fp32"
    assert arithmetics("cpu") == DTYPES
    assert arithmetics("cuda:sm90") == (*DTYPES, "tf32")
