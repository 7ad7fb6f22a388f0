"""Pools with every option of torch's, bit for bit what torch's own functions give."""

from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse import conv_transpose
from transfuse.problem import Shape
from transfuse.stages import (
    Kind,
    Stage,
    adaptive_avg_pool,
    adaptive_max_pool,
    avg_pool,
    lp_pool,
    max_pool,
)

RANKS = [1, 2, 3]
CASES = [pytest.param(rank, seed, id=f"{rank}d-{seed}") for rank in RANKS for seed in range(40)]


def drawn(rank: int, seed: int) -> tuple[Tensor, Random]:
    generator = torch.Generator().manual_seed(seed)
    draw = Random(seed)
    sizes = [draw.randint(1, 9) for _ in range(rank)]
    return torch.randn(2, 3, *sizes, dtype=torch.float64, generator=generator), draw


def axes(draw: Random, rank: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(draw.randint(low, high) for _ in range(rank))


def agree(stage: Stage, x: Tensor, theirs: Any) -> bool:
    """The same result and shape, or the same type of error from both."""
    shape = Shape(*x.shape[:2], tuple(x.shape[2:]))
    try:
        expected = theirs()
    except RuntimeError:
        with pytest.raises(RuntimeError):
            stage.shape(shape)
        return False
    assert stage.shape(shape).dims == tuple(expected.shape), stage
    assert torch.equal(stage.apply(x, {}), expected), stage
    return True


@pytest.mark.parametrize(("rank", "seed"), CASES)
def test_max_pool_is_torchs(rank: int, seed: int) -> None:
    x, draw = drawn(rank, seed)
    for _ in range(10):
        kernel, stride = axes(draw, rank, 1, 4), axes(draw, rank, 1, 3)
        padding, dilation = axes(draw, rank, 0, 2), axes(draw, rank, 1, 3)
        options = (kernel, stride, padding, dilation, draw.random() < 0.5)
        theirs = getattr(F, f"max_pool{rank}d")
        agree(max_pool(*options), x, lambda f=theirs, o=options: f(x, *o))


@pytest.mark.parametrize(("rank", "seed"), CASES)
def test_avg_pool_is_torchs(rank: int, seed: int) -> None:
    x, draw = drawn(rank, seed)
    for _ in range(10):
        kernel, stride, padding = (axes(draw, rank, *limits) for limits in ((1, 4), (1, 3), (0, 2)))
        options = (kernel, stride, padding, draw.random() < 0.5, draw.random() < 0.5)
        if rank > 1:
            options += (draw.choice([None, 1, 5, -3]),)
        theirs = getattr(F, f"avg_pool{rank}d")
        agree(avg_pool(*options), x, lambda f=theirs, o=options: f(x, *o))


@pytest.mark.parametrize(("rank", "seed"), CASES)
def test_lp_pool_is_torchs(rank: int, seed: int) -> None:
    x, draw = drawn(rank, seed)
    for _ in range(5):
        kernel, stride = axes(draw, rank, 1, 4), axes(draw, rank, 1, 3)
        options = (draw.choice([1, 2, 2.5, 4]), kernel, stride, draw.random() < 0.5)
        norm, kernel, stride, ceil = options
        if rank == 1:
            kernel, stride = kernel[0], stride[0]
        theirs = getattr(F, f"lp_pool{rank}d")
        positive = x.abs()
        agree(
            lp_pool(*options),
            positive,
            lambda f=theirs, o=(norm, kernel, stride, ceil), v=positive: f(v, *o),
        )


@pytest.mark.parametrize(("rank", "seed"), CASES[::4])
def test_adaptive_pools_are_torchs(rank: int, seed: int) -> None:
    x, draw = drawn(rank, seed)
    for _ in range(5):
        sizes = tuple(draw.choice([None, draw.randint(1, n + 3)]) for n in x.shape[2:])
        plain = tuple(n if size is None else size for n, size in zip(x.shape[2:], sizes))  # noqa: B905
        for stage, name in ((adaptive_avg_pool(sizes), "avg"), (adaptive_max_pool(sizes), "max")):
            theirs = getattr(F, f"adaptive_{name}_pool{rank}d")
            assert agree(stage, x, lambda f=theirs, o=plain: f(x, o))
    every = adaptive_avg_pool(2)
    assert agree(every, x, lambda: getattr(F, f"adaptive_avg_pool{rank}d")(x, 2))


@pytest.mark.parametrize("rank", RANKS)
def test_most_cases_are_computed(rank: int) -> None:
    """Else what both refuse would be all that is compared."""
    computed = 0
    for seed in range(40):
        x, draw = drawn(rank, seed)
        options = axes(draw, rank, 1, 3), axes(draw, rank, 1, 3), 0, 1, True
        theirs = getattr(F, f"max_pool{rank}d")
        computed += agree(max_pool(*options), x, lambda f=theirs, o=options, v=x: f(v, *o))
    assert computed > 20


def test_a_divisor_along_one_axis_where_torch_has_none() -> None:
    x = torch.arange(6.0).reshape(1, 1, 6)
    assert avg_pool(2, divisor_override=4).apply(x, {}).tolist() == [[[0.25, 1.25, 2.25]]]


@pytest.mark.parametrize(
    ("stage", "divisor"),
    [
        (avg_pool(3), 9),
        (avg_pool((2, 3), 1, 1), 6),
        (avg_pool(3, padding=1, count_include_pad=False), None),
        (avg_pool(3, count_include_pad=False), 9),
        (avg_pool(3, ceil_mode=True), None),
        (avg_pool(3, 1, 1, True, False, 5), 5),
    ],
    ids=str,
)
def test_what_all_windows_are_divided_by(stage: Any, divisor: int | None) -> None:
    assert stage.divisor(2) == divisor


@pytest.mark.parametrize(
    ("stage", "simple"),
    [
        (max_pool(3, 1, 1), True),
        (max_pool(3, ceil_mode=True), False),
        (max_pool(3, dilation=2), False),
        (max_pool(3, dilation=(1, 1)), True),
        (avg_pool(3, 1, 1), True),
        (avg_pool(3, 1, 1, count_include_pad=False), False),
        (avg_pool(3, divisor_override=2), True),
        (lp_pool(2, 3), False),
    ],
    ids=str,
)
def test_what_an_engine_is_asked_for(stage: Any, simple: bool) -> None:
    assert stage.simple(2) is simple
    assert stage.sees(2) is Kind.WINDOW


def test_need_of_gaps_and_parts_of_windows() -> None:
    assert max_pool(3, 2, dilation=2).need((2,), (99,)) == (7,)
    assert max_pool(3, 2, 1, dilation=2).need((2,), (99,)) == (6,)
    assert max_pool(3, 3, ceil_mode=True).need((3,), (8,)) == (8,)
    assert adaptive_avg_pool(2).need((1,), (8,)) == (8,)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: max_pool(2, dilation=1.5), TypeError, "max_pool dilation must be an integer"),
        (lambda: max_pool(2, ceil_mode=1), TypeError, "max_pool: ceil_mode must be bool, not int"),
        (lambda: avg_pool(2, divisor_override=2.0), TypeError, "divisor_override must be an int"),
        (lambda: lp_pool("p", 2), TypeError, "lp_pool: norm_type must be float, not str"),
        (lambda: adaptive_avg_pool(2.0), TypeError, "adaptive_avg_pool output_size must be an int"),
        (lambda: adaptive_max_pool((1, 2.0)), TypeError, "adaptive_max_pool output_size must be"),
    ],
)
def test_illegal_arguments(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("backend", ["eager", "cpu"])
@pytest.mark.parametrize("norm", [float("inf"), -float("inf")])
def test_lp_pool_of_an_infinite_norm_is_its_limit(norm: float, backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(2, 2, 5, 6, generator=generator) for _ in range(2))
    sign = 1.0 if norm > 0 else -1.0
    y = conv_transpose(x, weight, then=[lp_pool(norm, 3, 2, True)], backend=backend)
    plain = conv_transpose(x, weight, backend=backend)
    assert torch.equal(y, sign * F.max_pool2d(sign * plain.abs(), 3, 2, ceil_mode=True))
