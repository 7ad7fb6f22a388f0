"""Stages over axes: by plain loops over channels and positions, then any axes against torch."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from transfuse.problem import Shape
from transfuse.stages import (
    Kind,
    Stage,
    amax,
    amin,
    log_softmax,
    logsumexp,
    mean,
    softmax,
    sum,
)
from transfuse.stages.reduce import Softmax

SHAPES = [(3, 4, 5), (2, 4, 3, 5), (2, 4, 2, 3, 2), (1, 4, 7)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def values(*shape: int, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def assert_close(got: Tensor, expected: np.ndarray, rtol: float = 1e-13) -> None:
    torch.testing.assert_close(got, torch.from_numpy(expected), rtol=rtol, atol=1e-14)


def along_channels(f, x: torch.Tensor) -> torch.Tensor:
    """``f`` on the list of channels at each position."""
    columns = x.movedim(1, -1)
    flat = [f(column) for column in columns.reshape(-1, x.shape[1]).tolist()]
    return torch.tensor(flat, dtype=x.dtype).reshape(*columns.shape[:-1], -1).movedim(-1, 1)


def plain_softmax(values: list[float]) -> list[float]:
    top = max(values)
    terms = [math.exp(value - top) for value in values]
    return [term / math.fsum(terms) for term in terms]


@pytest.fixture(params=[(2, 5, 7), (3, 1, 2, 4), (1, 8, 2, 3, 2)], ids=str)
def x(request: pytest.FixtureRequest) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(request.param, dtype=torch.float64, generator=generator) * 5


def test_sum(x: torch.Tensor) -> None:
    got = sum("channels", True).apply(x, {})
    expected = along_channels(lambda column: [math.fsum(column)], x)
    # One rounding of each partial sum; the terms may cancel, so it is the largest that counts.
    torch.testing.assert_close(got, expected, rtol=0, atol=float(x.abs().sum(1).max()) * 1e-15)


def test_sum_of_integers_is_exact() -> None:
    x = torch.arange(-30, 30, dtype=torch.float32).reshape(2, 5, 6)
    expected = along_channels(lambda column: [math.fsum(column)], x)
    assert torch.equal(sum("channels", True).apply(x, {}), expected)


def test_softmax(x: torch.Tensor) -> None:
    expected = along_channels(plain_softmax, x)
    torch.testing.assert_close(softmax("channels").apply(x, {}), expected, rtol=1e-14, atol=0)


def test_softmax_takes_off_the_maximum_first() -> None:
    x = torch.tensor([1000.0, 999.0, -1000.0]).reshape(1, 3, 1)
    torch.testing.assert_close(
        softmax("channels").apply(x, {}), along_channels(plain_softmax, x), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("stage", [sum("channels", True), softmax("channels")], ids=str)
def test_nan_stays_in_its_position(stage: Stage) -> None:
    x = torch.zeros(2, 3, 4)
    x[1, 2, 3] = torch.nan
    assert stage.apply(x, {}).isnan().any(1).nonzero().tolist() == [[1, 3]]


@each_shape
@pytest.mark.parametrize("bounded", [False, True], ids="bounded={}".format)
def test_space_softmax(shape: tuple[int, ...], bounded: bool) -> None:
    x = values(*shape) * 4
    expected = np.empty(shape)
    for n, c in product(*map(range, shape[:2])):
        cells = x.numpy()[n, c]
        top = max(cells.ravel().tolist())
        terms = np.vectorize(lambda cell, top=top: math.exp(cell - top))(cells)
        expected[n, c] = terms / math.fsum(terms.ravel().tolist())
    assert_close(Softmax("space", bounded=bounded).apply(x, {}), expected)


def test_space_softmax_takes_off_the_maximum_first() -> None:
    y = softmax("space").apply(torch.tensor([[[1000.0, 1000.0, -1000.0]]]), {})
    assert y.tolist() == [[[0.5, 0.5, 0.0]]]


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0], ids="scale={}".format)
@pytest.mark.parametrize("bounded", [False, True], ids="bounded={}".format)
def test_space_softmax_adds_many_positions_well(scale: float, bounded: bool) -> None:
    """131,072 positions in float32 to 1e-6 of the largest."""
    # torch.softmax, which adds term after term, is off by 7e-6 and more on the clamped values.
    x = (values(1, 2, 32, 64, 64) * scale).float().clamp(0, 1)
    y = Softmax("space", bounded=bounded).apply(x, {}).double().flatten(2)
    terms = x.double().flatten(2).exp()
    exact = terms / terms.sum(2, keepdim=True)
    assert ((y - exact).abs().amax() / exact.amax()).item() < 1e-6


def test_statements() -> None:
    shape = Shape(2, 5, (3, 4))
    assert sum("channels").shape(shape) == Shape(2, 1, (3, 4))
    assert sum((1, 3)).shape(shape) == Shape(2, 1, (3, 1))
    assert softmax("channels").shape(shape) == shape
    assert sum("channels").operands == softmax("channels").operands == ()
    assert sum("channels").exact
    assert amax("all").exact
    assert not mean("channels").exact
    assert not softmax("channels").exact


# ---- any axes, against torch ---------------------------------------------------------------------

DIMS = ["channels", "space", "all", 1, -1, (1, 2), (-1, 1), (2,)]
REDUCTIONS = [sum, mean, amax, amin, logsumexp]


def torchs(dim: Any, rank: int) -> tuple[int, ...]:
    words = {"channels": (1,), "space": range(2, rank + 2), "all": range(1, rank + 2)}
    return tuple(words[dim]) if isinstance(dim, str) else dim if isinstance(dim, tuple) else (dim,)


@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("keepdim", [False, True], ids="keepdim={}".format)
@pytest.mark.parametrize("make", REDUCTIONS, ids=lambda make: make.__name__)
def test_reductions_are_torchs(make: Any, dim: Any, keepdim: bool, x: Tensor) -> None:
    stage, rank = make(dim, keepdim), x.dim() - 2
    expected = getattr(torch, make.__name__)(x, torchs(dim, rank), keepdim=keepdim)
    got = stage.apply(x, {})
    assert torch.equal(got, expected)
    shape = stage.shape(Shape(*x.shape[:2], tuple(x.shape[2:])))
    assert stage.form(shape.dims) == tuple(expected.shape)
    assert stage.reshapes is not keepdim


@pytest.mark.parametrize("dim", [1, -1, 2], ids=str)
def test_softmax_over_one_axis_is_torchs(dim: int, x: Tensor) -> None:
    for stage, theirs in ((softmax(dim), torch.softmax), (log_softmax(dim), torch.log_softmax)):
        torch.testing.assert_close(stage.apply(x, {}), theirs(x, dim), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dim", DIMS, ids=str)
def test_softmax_over_several_axes_is_torchs_over_them_as_one(dim: Any, x: Tensor) -> None:
    axes = sorted(axis % x.dim() for axis in torchs(dim, x.dim() - 2))
    last = [axis for axis in range(x.dim()) if axis not in axes]
    moved = x.permute(*last, *axes)
    flat = moved.flatten(len(last))
    order = [(*last, *axes).index(axis) for axis in range(x.dim())]
    for stage, theirs in ((softmax(dim), torch.softmax), (log_softmax(dim), torch.log_softmax)):
        expected = theirs(flat, -1).reshape(moved.shape).permute(order)
        torch.testing.assert_close(stage.apply(x, {}), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dim", ["channels", "space", (1, 2)], ids=str)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan], ids=str)
def test_special_values_are_torchs(dim: Any, value: float) -> None:
    x = torch.randn(1, 3, 4)
    for at in (slice(0, 1), slice(None)):
        x[..., at] = value
        axes = torchs(dim, 1)
        for stage, theirs in ((softmax(dim), torch.softmax), (log_softmax(dim), torch.log_softmax)):
            flat = x.flatten(1) if len(axes) == 2 else x
            expected = theirs(flat, axes[0]).reshape(x.shape)
            torch.testing.assert_close(stage.apply(x, {}), expected, equal_nan=True)


@pytest.mark.parametrize(
    ("stage", "rank", "sees"),
    [
        (sum("channels"), 2, Kind.CHANNEL),
        (sum(1), 3, Kind.CHANNEL),
        (sum(-3), 2, Kind.CHANNEL),
        (sum("space"), 2, Kind.AXES),
        (softmax(1), 1, Kind.CHANNEL),
        (softmax("space"), 3, Kind.WHOLE),
        (softmax((2, 3)), 2, Kind.WHOLE),
        (softmax((2, 3)), 3, Kind.AXES),
        (softmax(-1), 1, Kind.WHOLE),
        (softmax("all"), 1, Kind.AXES),
        (log_softmax("channels"), 1, Kind.AXES),
    ],
    ids=str,
)
def test_what_it_sees_depends_on_the_axes_there_are(stage: Stage, rank: int, sees: Kind) -> None:
    assert stage.sees(rank) is sees


def test_need() -> None:
    assert sum("channels").need((1, 2), (3, 4)) == (1, 2)
    assert softmax(2).need((1, 2), (3, 4)) == (3, 2)
    assert mean("all").need((1, 1), (3, 4)) == (3, 4)


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (sum("channels"), "sum(channels)"),
        (sum("channels", keepdim=True), "sum(channels, keepdim=True)"),
        (amax((2, -1)), "amax((2, -1))"),
        (logsumexp(-1, True), "logsumexp(-1, keepdim=True)"),
        (softmax("channels"), "softmax(channels)"),
        (softmax((2, 3)), "softmax((2, 3))"),
        (log_softmax("all"), "log_softmax(all)"),
        (Softmax("space", bounded=True), "softmax(space, bounded)"),
    ],
)
def test_prints(stage: Stage, text: str) -> None:
    assert str(stage) == text


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: softmax("batch"), ValueError, "softmax goes over 'channels', 'space', 'all' or"),
        (lambda: sum(0), ValueError, r"sum: dim=0 holds the samples' axis \(0\)"),
        (lambda: mean((1, 0)), ValueError, r"mean: dim=\(1, 0\) holds the samples' axis"),
        (lambda: sum(()), ValueError, "sum: dim is empty"),
        (lambda: sum(1.0), TypeError, "sum dim must be an integer, not float"),
        (lambda: sum((1, 2.0)), TypeError, "sum dim must be an integer, not float"),
        (lambda: sum(1, 1), TypeError, "sum: keepdim must be bool, not int"),
    ],
)
def test_only_what_exists_can_be_asked_for(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("dim", "error", "message"),
    [
        (3, IndexError, r"in range of \[-3, 2\], but got 3"),
        (-3, ValueError, r"dim=-3 holds the samples' axis"),
        ((1, -2), RuntimeError, "dim 1 appears multiple times"),
    ],
)
def test_axes_that_are_not_there(dim: Any, error: type[Exception], message: str) -> None:
    for stage in (sum(dim), softmax(dim)):
        with pytest.raises(error, match=message):
            stage.shape(Shape(1, 2, (3,)))
