"""``transfuse fuse FILE.py:Model``: in 80 columns, as JSON, and what is wrong in one line."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

MODELS = """
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 8, 4, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.hidden = nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1)

    def forward(self, x):
        return self.hidden(torch.relu(self.norm(self.up(x))))


class NeedsSizes(Decoder):
    def __init__(self, channels):
        super().__init__()


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x)


def make():
    return Decoder()


def lost():
    raise FileNotFoundError("weights.pt")


there = Decoder()
number = 3
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: Any) -> Any:
    """Run ``transfuse fuse`` beside a file of models; gives exit status, stdout, stderr."""
    (tmp_path / "models.py").write_text(MODELS, encoding="utf-8")
    (tmp_path / "broken.py").write_text("print(", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    return partial(command_line, "fuse")


@pytest.mark.parametrize("name", ["Decoder", "make", "there"])
def test_a_class_a_function_or_a_module(cli: Any, name: str) -> None:
    status, printed, error = cli(f"models.py:{name}")
    assert (status, error) == (0, "")
    assert "Decoder: 2 of 2 transposed convolutions fused" in printed
    assert all(len(line) <= 80 for line in printed.splitlines())


def test_inputs_are_measured(cli: Any) -> None:
    status, printed, error = cli("models.py:Decoder", "--input", "2x3x8x8", "--json")
    assert (status, error) == (0, "")
    found = json.loads(printed)
    assert [row["name"] for row in found["rows"]] == ["up", "hidden"]
    first = found["rows"][0]
    assert first["operations"] == ["conv_transpose2d", "batch_norm", "relu"]
    assert "batch_norm(running" in first["chain"]
    figures = first["figures"]
    assert figures["problem"].startswith("n2 ci3 co8 i8x8 k4 s2 p1 fp32")
    assert figures["milliseconds"] > 0
    assert figures["torch_milliseconds"] > 0
    assert figures["megabytes"] < figures["torch_megabytes"]
    assert 0 < figures["predicted"] < figures["torch_predicted"]
    status, printed, _ = cli("models.py:Decoder", "--input", "2x3x8x8", "--dtype", "bf16")
    assert status == 0
    assert "predicted" in printed
    assert all(len(line) <= 80 for line in printed.splitlines())


def test_training(cli: Any) -> None:
    found = json.loads(cli("models.py:Decoder", "--training", "--json")[1])
    assert "batch_norm(batch" in found["rows"][0]["chain"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere.py:Decoder",), "there is no file nowhere.py"),
        (("models.py:Encoder",), "models.py has no Encoder; it has Decoder"),
        (("models.py:number",), "number is a int, no model"),
        (("models.py",), "'models.py' names no model in a file; write FILE.py:Name"),
        (("broken.py:Decoder",), "broken.py cannot be imported: SyntaxError: '(' was never closed"),
        (("models.py:lost",), "lost() raises FileNotFoundError: weights.pt"),
        (("models.py:NeedsSizes",), "missing 1 required positional argument: 'channels'"),
        (("models.py:Plain",), "Plain has no transposed convolution; it has 1 Linear"),
        (("models.py:Decoder", "--input", "2,3"), "sizes are written as 1x3x64x64"),
        (("models.py:Decoder", "--dtype", "fp8"), "unknown element type 'fp8'; known: fp32"),
        (("models.py:Decoder", "--input", "1x4x8x8"), "does not take these example_inputs"),
    ],
)
def test_what_is_wrong_is_one_line(cli: Any, words: tuple[str, ...], says: str) -> None:
    status, printed, error = cli(*words)
    assert (status, printed) == (2, "")
    assert error.startswith("error: ")
    assert says in error
