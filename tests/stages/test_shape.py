"""Stages that move values: against torch, shapes, and what may stand behind another form."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import transfuse
from transfuse.chain import Chain
from transfuse.problem import Problem, Shape
from transfuse.stages import (
    Stage,
    add,
    amax,
    batch_norm,
    cat,
    conv_transpose,
    flatten,
    max_pool,
    mean,
    pixel_shuffle,
    relu,
    scale,
    softmax,
    squeeze,
    sum,
)

X = torch.randn(2, 8, 3, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "dims", [(), (1,), (2,), (1, 2), (-3, -2), (3, 3)], ids=lambda d: f"flatten{d}"
)
def test_flatten_is_torchs(dims: tuple[int, ...]) -> None:
    stage = flatten(*dims)
    expected = X.flatten(*(dims or (1,)))
    assert torch.equal(stage.apply(X, {}), expected)
    assert stage.form(tuple(X.shape)) == tuple(expected.shape)
    assert stage.shape(Shape(2, 8, (3, 4))) == Shape(2, 8, (3, 4))


@pytest.mark.parametrize("dim", [1, -1, (1, 3), (2, 3), (1, 2, 3)], ids=str)
def test_squeeze_is_torchs(dim: Any) -> None:
    for dims in ((2, 1, 3, 1), (1, 1, 1, 1), (2, 8, 3, 4)):
        x = torch.zeros(dims)
        expected = x.squeeze(dim)
        assert squeeze(dim).apply(x, {}).shape == expected.shape
        assert squeeze(dim).form(dims) == tuple(expected.shape)


@pytest.mark.parametrize("factor", [1, 2], ids="r{}".format)
def test_pixel_shuffle_is_torchs(factor: int) -> None:
    stage, expected = pixel_shuffle(factor), F.pixel_shuffle(X, factor)
    assert torch.equal(stage.apply(X, {}), expected)
    assert stage.shape(Shape(2, 8, (3, 4))).dims == tuple(expected.shape)


def test_pixel_shuffle_along_one_and_three_axes() -> None:
    x = torch.arange(6.0).reshape(1, 2, 3)
    assert pixel_shuffle(2).apply(x, {}).tolist() == [[[0, 3, 1, 4, 2, 5]]]
    x = torch.arange(16.0).reshape(1, 8, 2, 1, 1)
    y = pixel_shuffle(2).apply(x, {})
    # (depth, height, width) of a block, the last one fastest, as in two dimensions.
    assert y[0, 0, :2].flatten().tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert y[0, 0, 2:].flatten().tolist() == [1, 3, 5, 7, 9, 11, 13, 15]


def test_cat_is_torchs() -> None:
    skip = torch.randn(2, 3, 3, 4)
    for first in (False, True):
        expected = torch.cat((skip, X) if first else (X, skip), 1)
        stage = cat("skip", first).fitted({"skip": (2, 3, 3, 4)}, 2)
        assert torch.equal(stage.apply(X, {"skip": skip}), expected)
        assert stage.shape(Shape(2, 8, (3, 4))).dims == tuple(expected.shape)
        assert list(stage.dims(Shape(2, 8, (3, 4)))) == [("skip", (2, 3, 3, 4))]


def test_cat_knows_its_channels_by_the_tensor_or_is_told() -> None:
    shape = Shape(2, 8, (3, 4))
    assert cat(torch.zeros(2, 5, 3, 4)).shape(shape).c == 13
    assert cat("skip", channels=5).shape(shape).c == 13
    assert cat("skip", channels=5).fitted({"skip": (2, 5, 3, 4)}, 2).channels == 5
    with pytest.raises(RuntimeError, match="not known how many channels skip has; give channels="):
        cat("skip").shape(shape)


def test_statements() -> None:
    for stage in (flatten(), squeeze(1), pixel_shuffle(2), cat("s")):
        assert stage.exact
    assert pixel_shuffle(2).need((5, 4), (9, 9)) == (3, 2)
    assert cat("s").operands == ("s",)


# ---- the form of the result ----------------------------------------------------------------------

PROBLEM = Problem.parse("n2 ci3 co8 i3x4 k1")
FORMS: list[tuple[list[Stage], tuple[int, ...]]] = [
    ([], (2, 8, 3, 4)),
    ([sum("channels")], (2, 3, 4)),
    ([sum("channels", keepdim=True)], (2, 1, 3, 4)),
    ([sum("channels"), squeeze(1)], (2, 3, 4)),
    ([sum("channels"), flatten()], (2, 12)),
    ([mean("space"), relu(), scale(2)], (2, 8)),
    ([amax("all")], (2,)),
    ([flatten(2), scale(2), flatten()], (2, 96)),
    ([mean("space", keepdim=True), squeeze((2, 3))], (2, 8)),
    ([max_pool(3), squeeze(2), squeeze(-1)], (2, 8)),
    ([mean(-1), flatten(1, 2)], (2, 24)),
]


@pytest.mark.parametrize(
    ("stages", "dims"), FORMS, ids=[" -> ".join(map(str, stages)) for stages, _ in FORMS]
)
def test_result_of_a_chain(stages: list[Stage], dims: tuple[int, ...]) -> None:
    chain = Chain(conv_transpose(2), *stages)
    assert chain.result(PROBLEM) == dims
    assert len(chain.shapes(PROBLEM)[-1].dims) == 4, "between stages nothing is left out"


ONLY = "only stages of single elements with numbers, flatten and squeeze can follow"
REFUSED: list[tuple[list[Stage], type[Exception], str]] = [
    ([sum("channels"), max_pool(2)], ValueError, r"max_pool\(2\) stands behind sum\(channels\)"),
    ([sum("channels"), softmax("space")], ValueError, r"\(keepdim=True keeps them\): " + ONLY),
    ([flatten(), sum("channels")], ValueError, "stands behind flatten, after .* others: " + ONLY),
    ([flatten(), add(torch.ones(8))], ValueError, r"add\(tensor\[8\]\) stands behind flatten"),
    ([flatten(), batch_norm("m", "v")], RuntimeError, "batch_norm.* stands behind flatten"),
    ([flatten(), add("term")], RuntimeError, r"add\(term\) stands behind flatten"),
    ([mean("space"), cat("s", channels=1)], ValueError, r"cat\(s, channels=1\) stands behind"),
]


@pytest.mark.parametrize(("stages", "error", "message"), REFUSED, ids=lambda x: str(x)[:40])
def test_what_sees_axes_does_not_stand_behind_another_form(
    stages: list[Stage], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Chain(conv_transpose(2), *stages).shapes(PROBLEM)
    with pytest.raises(ValueError, match=r"conv_transpose2d stands behind flatten"):
        Chain(flatten(), conv_transpose(2))


def test_a_name_behind_another_form_may_be_a_number() -> None:
    chain = Chain(conv_transpose(2), flatten(), scale("factor"))
    assert chain.bind({"factor": 2}).result(PROBLEM) == (2, 96)


@pytest.mark.parametrize("backend", ["eager", "cpu"])
def test_cat_with_a_skip_without_samples_where_the_input_has_none(backend: str) -> None:
    x, weight, skip = X[0], torch.ones(8, 2, 1, 1), X[1].clone().requires_grad_()
    for _ in range(2):
        y = transfuse.conv_transpose(x, weight, then=[relu(), cat(skip)], backend=backend)
        plain = transfuse.conv_transpose(x, weight, then=[relu()], backend=backend)
        assert y.equal(torch.cat((plain, skip)))
    y.sum().backward()
    assert skip.grad is not None
    assert skip.grad.equal(torch.ones_like(skip))
    with pytest.raises(RuntimeError, match=r"expected cat\.skip of 4 axes"):
        transfuse.conv_transpose(X, weight, then=[cat(skip)], backend=backend)


def test_stages_before_the_convolution_keep_the_channels() -> None:
    with pytest.raises(RuntimeError, match="stages before the convolution keep the channels"):
        transfuse.conv_transpose(X[:, :4], torch.ones(8, 2, 1, 1), before=[cat(X[:, 4:])])
