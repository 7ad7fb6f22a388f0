"""Norms: by plain loops, against torch's own functions, and what each states of itself."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem, Shape
from transfuse.reference import reference
from transfuse.stages import (
    Kind,
    Stage,
    batch_norm,
    conv_transpose,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)
from transfuse.stages.batch_halves import BatchApply, BatchStatistics

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


@pytest.mark.parametrize(
    ("stage", "hit"),
    [
        # Which (sample, channel) a NaN in sample 1, channel 2 of (2, 4, …) reaches.
        (batch_norm(training=True), [(0, 2), (1, 2)]),
        (group_norm(2), [(1, 2), (1, 3)]),
        (instance_norm(), [(1, 2)]),
        (layer_norm((4, 3, 5)), [(1, c) for c in range(4)]),
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
        (BatchApply("s"), False, True, 1),
        (group_norm(2), True, True, 2 * 15),
        (group_norm(4), True, True, 15),
        (instance_norm(), True, True, 15),
        (layer_norm((4, 3, 5)), True, True, 4 * 15),
    ],
    ids=str,
)
def test_statements(stage: Stage, gathers: bool, applies: bool, scope: int) -> None:
    shape = Shape(2, 4, (3, 5))
    assert stage.sees(2) is Kind.WHOLE
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
        (instance_norm(), "all"),
        (layer_norm(8), "all"),
        (rms_norm(8, eps=0.1), "all"),
        (layer_norm("channels"), ""),
        (instance_norm("m", "v", use_input_stats=False), ""),
        (BatchApply("s"), ""),
    ],
    ids=str,
)
def test_need_is_what_matters(stage: Stage, covers: str) -> None:
    """A change of the last element shows in the first outputs just where need says so."""
    x = values(1, 1, 8)
    env = {name: torch.ones(1) for name in ("s.mean", "s.var", "m", "v")}
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
        (instance_norm(), "instance_norm"),
        (instance_norm("m", "v", momentum=0.5), "instance_norm(m, v, momentum=0.5)"),
        (
            instance_norm("m", "v", "w", "b", False),
            "instance_norm(m, v, w, b, use_input_stats=False)",
        ),
        (layer_norm("channels", "w"), "layer_norm(channels, w)"),
        (layer_norm((4, 5), bias="b"), "layer_norm((4, 5), bias=b)"),
        (rms_norm(7), "rms_norm((7,))"),
        (rms_norm("channels", "w", 0.1), "rms_norm(channels, w, 0.1)"),
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


# ---- against torch ------------------------------------------------------------------------------


@each_shape
@pytest.mark.parametrize("affine", [False, True], ids="affine={}".format)
def test_instance_norm_is_torchs(shape: tuple[int, ...], affine: bool) -> None:
    x, env = values(*shape), {"w": values(4), "b": values(4, seed=4)} if affine else {}
    stage = instance_norm(weight="w", bias="b") if affine else instance_norm()
    expected = F.instance_norm(x, None, None, env.get("w"), env.get("b"))
    assert torch.equal(stage.apply(x, env), expected)


@each_shape
@pytest.mark.parametrize("own", [False, True], ids="use_input_stats={}".format)
def test_instance_norm_moves_running_statistics_as_torch_does(
    shape: tuple[int, ...], own: bool
) -> None:
    x, mean, var = values(*shape), values(4), values(4, seed=4).abs()
    env = {"m": mean.clone(), "v": var.clone()}
    stage = instance_norm("m", "v", use_input_stats=own, momentum=0.3)
    assert stage.updates == (("m", "v") if own else ())
    y = stage.apply(x, env)
    expected = F.instance_norm(x, mean, var, use_input_stats=own, momentum=0.3)
    assert torch.equal(y, expected)
    assert torch.equal(env["m"], mean)
    assert torch.equal(env["v"], var)


@each_shape
@pytest.mark.parametrize("axes", [1, 2, 3, 4], ids="last {}".format)
def test_norms_of_the_last_axes_are_torchs(shape: tuple[int, ...], axes: int) -> None:
    sizes = shape[1:][-axes:]
    x, env = values(*shape), {"w": values(*sizes), "b": values(*sizes, seed=4)}
    assert torch.equal(
        layer_norm(sizes, "w", "b", 0.1).apply(x, env),
        F.layer_norm(x, sizes, env["w"], env["b"], 0.1),
    )
    assert torch.equal(rms_norm(sizes, "w").apply(x, env), F.rms_norm(x, sizes, env["w"]))
    expected = [("w", sizes), ("b", sizes)]
    assert list(layer_norm(sizes, "w", "b").dims(Shape(shape[0], 4, shape[2:]))) == expected


@each_shape
def test_norms_over_channels_are_torchs_of_channels_last(shape: tuple[int, ...]) -> None:
    x, w, b = values(*shape), values(4), values(4, seed=4)
    last, env = x.movedim(1, -1), {"w": w, "b": b}
    layer = F.layer_norm(last, (4,), w, b, 0.1).movedim(-1, 1)
    assert torch.equal(layer_norm("channels", "w", "b", 0.1).apply(x, env), layer)
    rms = F.rms_norm(last, (4,), w, 0.1).movedim(-1, 1)
    assert torch.equal(rms_norm("channels", "w", 0.1).apply(x, env), rms)


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "fp16", "bf16"])
def test_rms_norm_adds_the_eps_of_the_arithmetic(dtype: str) -> None:
    """Also the oracle, in float64, adds that of the values' own type."""
    problem = Problem.parse(f"n1 ci1 co1 i8 k1 {dtype}")
    element = ELEMENTS[dtype]
    x = (values(1, 1, 8) * 1e-4).to(element.dtype)
    chain, one = Chain(conv_transpose(1), rms_norm(8)), torch.ones(1, 1, 1, dtype=element.dtype)
    square = x.double().square().mean() + torch.finfo(element.compute).eps
    expected = x.double() * square.rsqrt()
    torch.testing.assert_close(reference(chain, problem, x, one, {}), expected, rtol=1e-12, atol=0)
    y = transfuse.conv_transpose(x, one, then=[rms_norm(8)], backend="eager")
    torch.testing.assert_close(y, F.rms_norm(x, (8,)), rtol=4 * element.unit, atol=0)


@pytest.mark.parametrize(
    ("stage", "sees"),
    [
        (batch_norm("m", "v"), Kind.POINTWISE),
        (instance_norm("m", "v", use_input_stats=False), Kind.POINTWISE),
        (instance_norm("m", "v"), Kind.AXES),  # an engine gathers it, but does not tell
        (layer_norm((4, 3, 5), "w"), Kind.AXES),
        (layer_norm((3, 5)), Kind.AXES),
        (layer_norm("channels"), Kind.AXES),
        (rms_norm((4, 3, 5)), Kind.AXES),
    ],
    ids=str,
)
def test_what_an_engine_is_not_asked_to_gather(stage: Stage, sees: Kind) -> None:
    assert stage.sees(2) is sees


def test_layer_norm_of_all_of_a_sample_is_one_group() -> None:
    x = values(2, 4, 3, 5)
    torch.testing.assert_close(
        layer_norm((4, 3, 5)).apply(x, {}), group_norm(1).apply(x, {}), rtol=1e-13, atol=1e-14
    )


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: layer_norm("space"), ValueError, "last axes or 'channels', not 'space'"),
        (lambda: layer_norm(2.0), TypeError, "layer_norm normalized_shape must be an integer"),
        (lambda: layer_norm(()), RuntimeError, "normalized_shape to hold at least one size"),
        (lambda: rms_norm(4, eps="e"), TypeError, "rms_norm: eps must be float, not str"),
        (lambda: instance_norm("m"), ValueError, "both or neither, and running_var is missing"),
        (lambda: instance_norm(eps="e"), TypeError, "instance_norm: eps must be float, not str"),
        (
            lambda: instance_norm(use_input_stats=1),
            TypeError,
            "use_input_stats must be bool, not int",
        ),
        (
            lambda: instance_norm("m", use_input_stats=False),
            RuntimeError,
            "without use_input_stats .* running_var is missing",
        ),
    ],
)
def test_illegal_arguments(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
