"""``explain`` of a fused model: what became of each convolution, in 80 columns."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transfuse
from tests.fusing import models
from tests.fusing.alike import drawn, made


def test_rows_tell_what_became_of_what() -> None:
    found = transfuse.fuse(made(models.decoder, training=False)).explain()
    assert found.model == "Sequential"
    first, second = found.rows
    assert (first.name, second.name) == ("1", "4.0")
    assert first.operations == ("conv_transpose2d", "batch_norm", "relu_")
    assert second.chain == "conv_transpose2d(+ bias) -> tanh"
    assert repr(found) == "<Sequential: 2 of 2 transposed convolutions fused>"
    text = str(found)
    assert "from conv_transpose2d, tanh" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_mode_is_the_present_one() -> None:
    fused = transfuse.fuse(made(models.decoder))
    assert "batch_norm(batch" in fused.explain().rows[0].chain
    assert "batch_norm(running" in fused.eval().explain().rows[0].chain


def test_sizes_are_asked_for_at_the_first_call() -> None:
    fused = transfuse.fuse(made(models.UNet))
    for row in fused.explain().rows:
        assert row.pending
        assert not row.fused
        assert "models.py:" in row.why
    fused(drawn(1, 2, 8, 8))
    assert all(row.fused for row in fused.explain().rows)


def test_measuring_changes_nothing() -> None:
    model = made(models.decoder)
    before = copy.deepcopy(model.state_dict())
    found = transfuse.fuse(model).explain(drawn(2, 3, 4, 4))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    for row in found.rows:
        assert row.figures.milliseconds > 0
        assert row.figures.torch_megabytes > 0
        assert row.figures.problem.startswith("n2 ")
    assert all(len(line) <= 80 for line in str(found).splitlines())
    assert found.as_dict()["rows"][0]["figures"]["backend"] == row.figures.backend


def test_tensors_that_all_norms_have_are_not_named() -> None:
    make = nn.Sequential(nn.ConvTranspose1d(2, 4, 2), nn.GroupNorm(2, 4), nn.BatchNorm1d(4))
    (row,) = transfuse.fuse(make.eval()).explain().rows
    assert row.chain == "conv_transpose1d(+ bias) -> group_norm(2) -> batch_norm(running)"


def test_own_explain_is_kept() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose1d(2, 2, 2, stride=2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.up(x))

        def explain(self) -> str:
            return "mine"

    fused = transfuse.fuse(made(Own))
    assert fused.explain() == "mine"
    assert [row.fused for row in transfuse.fusing.explain(fused).rows] == [True]


def test_models_that_are_not_fused() -> None:
    rows = transfuse.fusing.explain(made(models.decoder)).rows
    assert [row.why for row in rows] == ["is no part of a fused forward"] * 2
    with pytest.raises(TypeError, match=r"explain takes a torch.nn.Module, not str"):
        transfuse.fusing.explain("model")  # type: ignore[arg-type]


def test_nothing_can_be_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one is listed with its reason, and the model is left alone."""

    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose1d(2, 2, 2, stride=2, dtype=torch.complex64)

        def forward(self, x: Any) -> Tensor:
            return self.up(x)

    model = Complex()
    x = torch.randn(1, 2, 3, dtype=torch.complex64)
    wanted = model(x)
    with pytest.raises(
        ValueError, match=r"no transposed convolution of Complex can be fused:\n  up"
    ):
        transfuse.fuse(model, x, inplace=True)
    assert "forward" not in vars(model)
    assert torch.equal(model(x), wanted)
