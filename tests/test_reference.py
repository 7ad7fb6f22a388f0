"""The oracle: torch's convolution against the definition, bit for bit on small integers."""

from collections.abc import Iterator
from itertools import product
from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.reference import convolve, evaluate, reference, scatter
from transfuse.stages import conv_transpose, sigmoid, sum

TORCH = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def integers(problem: Problem, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Input, weights and bias of small integers: every sum of products is exact in float32."""
    generator = torch.Generator().manual_seed(seed)
    shapes = problem.input.dims, problem.weight, (problem.out_channels,)
    x, w, b = (torch.randint(-4, 5, shape, generator=generator).double() for shape in shapes)
    return x, w, b


def options(problem: Problem) -> dict[str, object]:
    names = ("stride", "padding", "output_padding", "dilation", "groups")
    return {name: getattr(problem, name) for name in names}


def one_by_one(problem: Problem, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The definition in plain Python, one multiplication at a time."""
    y = b.reshape(1, -1, *[1] * problem.rank).expand(problem.output().dims).clone()
    ci, co = (c // problem.groups for c in (problem.in_channels, problem.out_channels))
    for n, i, o in product(*map(range, (problem.batch, problem.in_channels, co))):
        out = i // ci * co + o
        for at in product(*map(range, problem.spatial)):
            for tap in product(*map(range, problem.kernel)):
                to = [
                    a * axis.stride - axis.padding + t * axis.dilation
                    for a, t, axis in zip(at, tap, problem.axes, strict=True)
                ]
                if all(
                    0 <= place < axis.size for place, axis in zip(to, problem.axes, strict=True)
                ):
                    y[(n, out, *to)] += x[(n, i, *at)] * w[(i, o, *tap)]
    return y


@pytest.mark.parametrize(
    "line",
    [
        "n1 ci1 co1 i1 k1",
        "n2 ci3 co2 i4 k3 s2 p1 op1",
        "n1 ci4 co6 i3 k2 s4 d3 op3 g2",
        "n2 ci2 co3 i3x4 k3x2 s2x3 p1x0 op0x2",
        "n1 ci6 co3 i2x5 k2x3 s1x2 d3x1 p2x1 op2x1 g3",
        "n1 ci2 co2 i2x3x2 k2x1x3 s3x1x2 p0x0x1 op1x0x1",
        "n1 ci2 co4 i2x2x3 k2 s1 d1x2x1 p1 op0x1x0 g2",
    ],
)
def test_scatter_is_the_definition(line: str) -> None:
    problem = Problem.parse(line)
    x, w, b = integers(problem)
    assert torch.equal(scatter(problem, x, w, b), one_by_one(problem, x, w, b))


def assert_exact(problem: Problem) -> None:
    """torch, in both types and through the public function, gives the definition's bits."""
    x, w, b = integers(problem)
    expected = scatter(problem, x, w, b)
    for dtype in (torch.float64, torch.float32):
        tensors = x.to(dtype), w.to(dtype), b.to(dtype)
        for y in (
            convolve(problem, *tensors),
            transfuse.conv_transpose(*tensors, **options(problem)),
        ):
            assert y.dtype == dtype
            assert torch.equal(y.double(), expected), f"{problem} in {dtype}"


@pytest.mark.long
@pytest.mark.parametrize("g", [1, 2], ids="g{}".format)
@pytest.mark.parametrize("s", range(1, 5), ids="s{}".format)
@pytest.mark.parametrize("k", range(1, 6), ids="k{}".format)
def test_every_small_geometry_of_one_axis(k: int, s: int, g: int) -> None:
    for n, d, p in product(range(1, 5), range(1, 4), range(3)):
        for op in range(max(s, d)):
            problem = Problem(2, 2, 4, (n,), (k,), (s,), (p,), (d,), (op,), g)
            if problem.axes[0].size >= 1:
                assert_exact(problem)


def geometries(
    seed: int, rank: int, count: int, *, kernel: int = 4, dilation: int = 3, channels: int = 2
) -> Iterator[Problem]:
    """Random legal problems, each once; every option of every axis is drawn on its own."""
    random, seen = Random(seed), set()
    while len(seen) < count:

        def axes(low: int, high: int) -> tuple[int, ...]:
            return tuple(random.randint(low, high) for _ in range(rank))

        groups = random.choice([1, 1, 2, 3])
        strides, dilations = axes(1, 4), axes(1, dilation)
        problem = Problem(
            batch=random.randint(1, 3),
            in_channels=groups * random.randint(1, channels),
            out_channels=groups * random.randint(1, channels),
            spatial=axes(1, 5 - rank // 2),
            kernel=axes(1, kernel),
            stride=strides,
            padding=axes(0, 2),
            dilation=dilations,
            output_padding=tuple(
                random.randrange(max(sd)) for sd in zip(strides, dilations, strict=True)
            ),
            groups=groups,
        )
        if problem not in seen and min(axis.size for axis in problem.axes) >= 1:
            seen.add(problem)
            yield problem


SAMPLE = [problem for rank in (2, 3) for problem in geometries(rank, rank, 400)]


@pytest.mark.parametrize("problem", SAMPLE, ids=str)
def test_sampled_geometry_of_more_axes(problem: Problem) -> None:
    assert_exact(problem)


@pytest.mark.parametrize("rank", [2, 3])
def test_the_sample_has_every_feature_on_every_axis(rank: int) -> None:
    for axis in range(rank):
        column = [problem.axes[axis] for problem in SAMPLE if problem.rank == rank]
        paddings = {(a.stride, a.dilation, a.output_padding) for a in column}
        assert paddings == {
            (s, d, op) for s, d in product(range(1, 5), range(1, 4)) for op in range(max(s, d))
        }
        assert any(a.k < a.stride for a in column)
        assert any(phase.taps == () for a in column for phase in a.phases())
    assert {problem.groups for problem in SAMPLE if problem.rank == rank} == {1, 2, 3}


def poisoned(count: int) -> Iterator[tuple[Problem, str, float]]:
    """Geometries, half of them with one non-finite value in the input, half in the weights."""
    random = Random(7)
    for rank, dilation in product((1, 2, 3), (1, 3)):
        sample = geometries(rank, rank, count, kernel=6, dilation=dilation, channels=4)
        for i, problem in enumerate(sample):
            yield problem, "xw"[i % 2], random.choice([torch.nan, torch.inf, -torch.inf])


POISONED = list(poisoned(120))


def poison(problem: Problem, where: str, value: float) -> tuple[Tensor, Tensor]:
    x, w = (tensor.float() for tensor in integers(problem)[:2])
    target = {"x": x, "w": w}[where].view(-1)
    target[Random(str(problem)).randrange(target.numel())] = value
    return x, w


def pattern(y: Tensor) -> Tensor:
    """Where the NaN, the +Inf and the -Inf are."""
    return torch.stack([y.isnan(), y.isposinf(), y.isneginf()])


@pytest.mark.parametrize(
    ("problem", "where", "value"),
    [pytest.param(*row, id="{} {}={}".format(*row)) for row in POISONED],
)
def test_nan_and_inf_reach_what_they_touch(problem: Problem, where: str, value: float) -> None:
    x, w = poison(problem, where, value)
    expected = scatter(problem, x, w)
    for y in (convolve(problem, x, w, None), transfuse.conv_transpose(x, w, **options(problem))):
        assert torch.equal(pattern(y), pattern(expected))
        assert torch.equal(y[expected.isfinite()], expected[expected.isfinite()])


def test_plain_torch_would_fail_the_test_above() -> None:
    leaks = []
    for problem, where, value in POISONED:
        x, w = poison(problem, where, value)
        y = TORCH[problem.rank](x, w, **options(problem))
        if not torch.equal(pattern(y), pattern(scatter(problem, x, w))):
            leaks.append(f"{problem} {where}={value}")
    if not leaks:
        pytest.skip(f"torch {torch.__version__} keeps NaN and Inf in place here")
    assert all(" w=" in leak for leak in leaks), "the guard looks at the weights alone"


def test_evaluate_keeps_the_type_and_reference_widens() -> None:
    problem = Problem.parse("n2 ci3 co4 i5x4 k3 s2 p1")
    chain = Chain(conv_transpose(2, "b"), sigmoid(), sum("channels", keepdim=True))
    x, w, b = (tensor.float() / 7 for tensor in integers(problem))
    expected = scatter(problem, x.double(), w.double(), b.double()).sigmoid().sum(1, keepdim=True)
    assert evaluate(chain, problem, x, w, {"b": b}).dtype == torch.float32
    wide = reference(chain, problem, x, w, {"b": b})
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide, expected, rtol=1e-14, atol=0)


def test_evaluate_scales_the_weights_and_leaves_its_operands_alone() -> None:
    problem = Problem.parse("n1 ci2 co2 i4 k3")
    x, w, b = integers(problem)
    operands = {"b": b}
    scaled = evaluate(Chain(conv_transpose(1, "b", weight_scale=0.25)), problem, x, w, operands)
    assert torch.equal(scaled, scatter(problem, x, w / 4, b))
    assert list(operands) == ["b"]
