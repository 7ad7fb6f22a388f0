"""Statistics over more than a tile: the two norms and the softmax over space, by plain loops."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor
from transfuse.stages.whole import BatchApply, BatchStatistics, SpaceSoftmax, Whole

from transfuse.problem import Shape
from transfuse.stages import Kind, Stage, batch_norm, group_norm, softmax

SHAPES = [(3, 4, 5), (2, 4, 3, 5), (2, 4, 2, 3, 2), (1, 4, 7)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def values(*shape: int, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def normalised(cells: np.ndarray, eps: float) -> np.ndarray:
    """Cells minus their mean over the root of their biased variance, in exact sums."""
    flat = cells.ravel().tolist()
    mean = math.fsum(flat) / len(flat)
    variance = math.fsum((cell - mean) ** 2 for cell in flat) / len(flat)
    return (cells - mean) / math.sqrt(variance + eps)


def assert_close(got: Tensor, expected: np.ndarray, rtol: float = 1e-13) -> None:
    torch.testing.assert_close(got, torch.from_numpy(expected), rtol=rtol, atol=1e-14)


@each_shape
@pytest.mark.parametrize("eps", [1e-5, 0.5], ids="eps={}".format)
def test_batch_norm(shape: tuple[int, ...], eps: float) -> None:
    x, weight, bias = values(*shape) * 3 + 10, values(shape[1]), values(shape[1], seed=4)
    expected = np.empty(shape)
    for c in range(shape[1]):
        cells = normalised(x.numpy()[:, c], eps)
        expected[:, c] = cells * weight[c].item() + bias[c].item()
    env = {"w": weight, "b": bias.reshape(1, -1, 1)}
    assert_close(
        batch_norm(weight="w", bias="b", training=True, eps=eps).apply(x, env), expected, 1e-12
    )


@each_shape
@pytest.mark.parametrize("groups", [1, 2, 4], ids="g{}".format)
def test_group_norm(shape: tuple[int, ...], groups: int) -> None:
    x, weight, bias = values(*shape) * 3 + 10, values(shape[1]), values(shape[1], seed=4)
    expected, size = np.empty(shape), shape[1] // groups
    for n, g in product(range(shape[0]), range(groups)):
        part = slice(g * size, (g + 1) * size)
        expected[n, part] = normalised(x.numpy()[n, part], 1e-5)
    for c in range(shape[1]):
        expected[:, c] = expected[:, c] * weight[c].item() + bias[c].item()
    assert_close(group_norm(groups, "w", "b").apply(x, {"w": weight, "b": bias}), expected, 1e-12)


@pytest.mark.parametrize(
    ("bare", "full"),
    [
        (batch_norm(training=True), batch_norm(weight="one", bias="zero", training=True)),
        (group_norm(2), group_norm(2, "one", "zero")),
        (BatchApply("s"), BatchApply("s", "one", "zero")),
        (
            batch_norm(bias="two", training=True),
            batch_norm(weight="one", bias="two", training=True),
        ),
        (group_norm(2, "two"), group_norm(2, "two", "zero")),
        (BatchApply("s", bias="two"), BatchApply("s", "one", "two")),
    ],
    ids=str,
)
def test_without_weight_or_bias(bare: Stage, full: Stage) -> None:
    names = {"one": 1, "zero": 0, "two": 2, "s.mean": 3, "s.var": 4}
    env = {name: torch.full((4,), value, dtype=torch.float64) for name, value in names.items()}
    x = values(2, 4, 3)
    torch.testing.assert_close(bare.apply(x, env), full.apply(x, env), rtol=1e-14, atol=1e-15)


@each_shape
def test_the_two_halves_of_a_batch_norm(shape: tuple[int, ...]) -> None:
    x = values(*shape) * 3 + 10
    env = {"w": values(shape[1]), "b": values(shape[1], seed=4)}
    assert BatchStatistics("s").apply(x, env) is x
    for c in range(shape[1]):
        cells = x[:, c].flatten().tolist()
        mean = math.fsum(cells) / len(cells)
        variance = math.fsum((cell - mean) ** 2 for cell in cells) / len(cells)
        assert env["s.mean"][c].item() == pytest.approx(mean, rel=1e-14)
        assert env["s.var"][c].item() == pytest.approx(variance, rel=1e-13)
    torch.testing.assert_close(
        BatchApply("s", "w", "b", 0.1).apply(x, env),
        batch_norm(weight="w", bias="b", training=True, eps=0.1).apply(x, env),
        rtol=1e-12,
        atol=1e-13,
    )


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
    assert_close(SpaceSoftmax(bounded).apply(x, {}), expected)


def test_space_softmax_takes_off_the_maximum_first() -> None:
    y = softmax("space").apply(torch.tensor([[[1000.0, 1000.0, -1000.0]]]), {})
    assert y.tolist() == [[[0.5, 0.5, 0.0]]]


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0], ids="scale={}".format)
@pytest.mark.parametrize("bounded", [False, True], ids="bounded={}".format)
def test_space_softmax_adds_many_positions_well(scale: float, bounded: bool) -> None:
    """131,072 positions in float32 to 1e-6 of the largest."""
    # torch.softmax, which adds term after term, is off by 7e-6 and more on the clamped values.
    x = (values(1, 2, 32, 64, 64) * scale).float().clamp(0, 1)
    y = SpaceSoftmax(bounded).apply(x, {}).double().flatten(2)
    terms = x.double().flatten(2).exp()
    exact = terms / terms.sum(2, keepdim=True)
    assert ((y - exact).abs().amax() / exact.amax()).item() < 1e-6


@pytest.mark.parametrize(
    ("stage", "hit"),
    [
        # Which (sample, channel) a NaN in sample 1, channel 2 of (2, 4, …) reaches.
        (batch_norm(training=True), [(0, 2), (1, 2)]),
        (group_norm(2), [(1, 2), (1, 3)]),
        (softmax("space"), [(1, 2)]),
        (SpaceSoftmax(True), [(1, 2)]),
    ],
    ids=str,
)
def test_nan_reaches_all_its_statistic_covers(stage: Stage, hit: list[tuple[int, int]]) -> None:
    x = values(2, 4, 3, 5)
    x[1, 2, 0, 4] = torch.nan
    assert stage.apply(x, {}).isnan().all((2, 3)).nonzero().tolist() == [list(at) for at in hit]
    assert stage.apply(x, {}).isnan().sum() == 15 * len(hit)


@pytest.mark.parametrize(
    ("stage", "gathers", "applies", "scope"),
    [
        (batch_norm(training=True), True, True, 2 * 15),
        (BatchStatistics("s"), True, False, 2 * 15),
        (BatchApply("s"), False, True, 2 * 15),
        (group_norm(2), True, True, 2 * 15),
        (group_norm(4), True, True, 15),
        (softmax("space"), True, True, 15),
    ],
    ids=str,
)
def test_statements(stage: Whole, gathers: bool, applies: bool, scope: int) -> None:
    shape = Shape(2, 4, (3, 5))
    assert stage.kind is Kind.WHOLE
    assert not stage.exact
    assert (stage.gathers, stage.applies) == (gathers, applies)
    assert stage.scope(shape) == scope
    assert stage.shape(shape) == shape
    assert stage.need((1, 2), (3, 5)) == ((3, 5) if gathers else (1, 2))


@pytest.mark.parametrize(
    ("stage", "covers"),
    [
        (batch_norm(training=True), "all"),
        (group_norm(1), "all"),
        (softmax("space"), "all"),
        (BatchApply("s"), ""),
    ],
    ids=str,
)
def test_need_is_what_matters(stage: Stage, covers: str) -> None:
    """A change of the last element shows in the first outputs just where need says so."""
    x = values(1, 1, 8)
    env = {"s.mean": torch.zeros(1), "s.var": torch.ones(1)}
    before = stage.apply(x, env)[..., :2]
    x[..., -1] += 1
    assert torch.equal(before, stage.apply(x, env)[..., :2]) == (not covers)
    assert stage.need((2,), (8,)) == ((8,) if covers else (2,))


@pytest.mark.parametrize(
    ("stage", "shape", "error", "message"),
    [
        (group_norm(3), Shape(1, 4, (2,)), RuntimeError, "num_groups=3 does not divide the 4"),
        (group_norm(0), Shape(1, 4, (2,)), RuntimeError, "must be at least 1, but got 0"),
        (group_norm("g"), Shape(1, 4, (2,)), TypeError, "num_groups must be an integer, not str"),
        (group_norm(4), Shape(1, 4, (1,)), ValueError, r"more than 1 value .* of \[1, 4, 1\]"),
        (batch_norm(training=True), Shape(1, 4, (1, 1)), ValueError, r"1 value .* \[1, 4, 1, 1\]"),
        (BatchStatistics("s"), Shape(1, 4, (1,)), ValueError, "batch_norm: expected more than 1"),
    ],
    ids=str,
)  # fmt: skip
def test_illegal(stage: Stage, shape: Shape, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        stage.shape(shape)


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (batch_norm(training=True), "batch_norm(batch)"),
        (batch_norm(weight="w", bias="b", training=True), "batch_norm(batch, weight=w, bias=b)"),
        (batch_norm(bias="b", training=True), "batch_norm(batch, bias=b)"),
        (group_norm(8, "w", "b", 0.1), "group_norm(8, w, b, 0.1)"),
        (group_norm(8, eps=0.1), "group_norm(8, eps=0.1)"),
        (BatchStatistics("s"), "batch_statistics(s)"),
        (BatchApply("s", "w"), "batch_apply(s, w)"),
        (softmax("space"), "softmax(space)"),
        (SpaceSoftmax(bounded=True), "softmax(space, bounded)"),
    ],
)
def test_prints(stage: Stage, text: str) -> None:
    assert str(stage) == text


def test_names() -> None:
    norm = group_norm("groups", "w", "b")
    assert norm.operands == ("groups", "w", "b")
    assert norm.bind({"groups": 4}) == group_norm(4, "w", "b")
    weight, bias, env = torch.ones(2), torch.zeros(2), {}
    assert batch_norm(weight=weight, bias=bias, training=True).lift("n", env) == batch_norm(
        weight="n.weight", bias="n.bias", training=True
    )
    assert env == {"n.weight": weight, "n.bias": bias}
