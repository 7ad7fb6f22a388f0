"""bench --model through the command line: ways, files of results, errors, 80 columns."""

import json
import sys
from io import StringIO

import pytest
import torch
from rich.console import Console
from torch import nn

from transfuse.bench import session as session_module
from transfuse.bench import ways as ways_module
from transfuse.bench import whole
from transfuse.bench.models import MODELS
from transfuse.bench.precision import PRECISIONS
from transfuse.bench.record import Row, Spread, read
from transfuse.bench.ways import WAYS, ways
from transfuse.bench.whole import models
from transfuse.cli import main
from transfuse.cli.results import results
from transfuse.report import build

SMALL = ("--model", "vq-vae", "--input", "1x64x2x3")
QUICK = ("--rounds", "5", "--peer", "torch eager", "--peer", "channels_last")


@pytest.fixture
def bench(monkeypatch, capsys, quick_ceilings):
    """Run ``transfuse bench``; gives exit status, stdout, stderr."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["transfuse", "bench", *map(str, words)])
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_rows_of_a_model_are_rows_like_all_others(bench, tmp_path, training):
    path = tmp_path / "r.jsonl"
    more = ["--training"] if training else []
    status, printed, said = bench(*SMALL, *QUICK, *more, "-o", path)
    assert status == 0, said
    [run], rows = read(path)
    assert [row.variant for row in rows] == ["transfuse", "torch eager", "channels_last"]
    for row in rows:
        assert (row.slug, row.name, row.training) == ("model", "vq-vae", training)
        assert row.case == "vq-vae 1x64x2x3 fp32 cpu"
        assert row.status == "ok", row.reason
        assert len(row.samples) == 5
        assert 0 < row.error <= 1
        assert row.flops > 0 < row.bytes
    assert rows[0].ratio is None
    assert rows[1].ratio.median > 0
    assert "vq-vae" in printed
    assert "vq-vae" in build([path], run.command)


def test_a_model_in_a_file(bench, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "class Mine(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.up = nn.ConvTranspose1d(2, 3, 4, 2, 1)\n"
        "    def forward(self, x, gain):\n"
        "        return self.up(x).relu() * gain\n"
        "ready = Mine()\n"
        "def make():\n"
        "    return Mine()\n"
        "number = 3\n"
        "def nothing():\n"
        "    return 3\n"
    )
    for name in ("Mine", "ready", "make"):
        path = tmp_path / f"{name}.jsonl"
        given = ("--input", "2x2x5", "--input", "2x3x10")
        status, _, said = bench("--model", f"{file}:{name}", *given, *QUICK, "-o", path)
        assert status == 0, said
        rows = read(path)[1]
        assert [row.status for row in rows] == ["ok", "ok", "missing"]
        assert {row.name for row in rows} == {f"mine.py:{name}"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--model", "dcgna"], "unknown model 'dcgna'; known: dcgan, wgan-gp, "),
        (["--model", "none.py:Model", "--input", "1x2"], "there is no file none.py"),
        (["--model", "FILE:Model", "--input", "1x2"], "has no Model; it has Mine, ready"),
        (["--model", "FILE:Mine"], "needs the shape of each of its inputs: --input"),
        (["--model", "FILE:number", "--input", "1x2"], "number is a int, no model"),
        (["--model", "FILE:nothing", "--input", "1x2"], "nothing() gives a int, no model"),
        (["--model", "FILE:", "--input", "1x2"], "names no model in a file; write FILE.py:Name"),
        (["--model", "dcgan", "--input", "1x0x2"], "--input '1x0x2' is no shape"),
        (["--model", "dcgan", "--model", "vae", "--input", "1x2"], "for one --model, not for 2"),
        (["--input", "1x2"], "for one --model, not for 0"),
        (["--model", "dcgan", "--set", "cpu"], "models are measured by themselves"),
        (["--set", "models", "--set", "cpu"], "models are measured by themselves"),
        (["--model", "dcgan", "--peer", "jax"], "unknown way 'jax'; known: transfuse, torch eager"),
        (["--model", "dcgan", "--input", "1x7x1x1"], "expected input[1, 7, 1, 1] to have 100"),
    ],
)
def test_bad_arguments_are_one_exact_line(bench, tmp_path, words, why):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "class Mine(nn.ConvTranspose1d):\n"
        "    def __init__(self):\n"
        "        super().__init__(2, 3, 4)\n"
        "ready = Mine()\n"
        "number = 3\n"
        "def nothing():\n"
        "    return 3\n"
    )
    words = [word.replace("FILE", str(file)) for word in words]
    path = tmp_path / "r.jsonl"
    status, _, said = bench(*words, "-o", path)
    assert status == 2
    assert why in said
    assert not path.exists() or not read(path)[1]


def test_a_wrong_model_gets_no_time(bench, tmp_path, monkeypatch):
    def wrong(work):
        return lambda *x: work.model(*x) + 1e-3, work.model

    known = [ways_module.Way("transfuse", wrong), *WAYS[1:]]
    monkeypatch.setattr(ways_module, "WAYS", tuple(known))
    path = tmp_path / "r.jsonl"
    status, _, _ = bench(*SMALL, *QUICK, "-o", path)
    assert status == 1
    ours, eager, _ = read(path)[1]
    assert (ours.status, ours.time) == ("wrong", None)
    assert "times its budget" in ours.reason
    assert eager.status == "ok"
    assert eager.ratio is None


def test_a_model_without_transposed_convolutions_says_so(bench, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\ndef make():\n    return nn.Conv1d(2, 3, 1)\n")
    path = tmp_path / "r.jsonl"
    status, _, _ = bench("--model", f"{file}:make", "--input", "1x2x5", *QUICK, "-o", path)
    assert status == 1
    ours = read(path)[1][0]
    assert ours.status == "failed"
    assert "has no transposed convolution" in ours.reason


def test_interrupted_and_resumed(bench, tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    real = session_module.measure

    def interrupted(*arguments):
        if arguments[2].name == "fp64":
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(session_module, "measure", interrupted)
    both = ("--precision", "fp32", "--precision", "fp64")
    status, _, said = bench(*SMALL, *both, *QUICK, "-o", path)
    assert status == 130
    assert "3 rows kept" in said
    monkeypatch.setattr(session_module, "measure", real)
    status, printed, _ = bench(*SMALL, *both, *QUICK, "--resume", path)
    assert status == 0
    assert "1 cases were in the file already" in printed
    assert [row.precision for row in read(path)[1]] == ["fp32"] * 3 + ["fp64"] * 3


def test_json(bench, tmp_path):
    status, printed, _ = bench(*SMALL, *QUICK, "-o", tmp_path / "r.jsonl", "--json")
    assert status == 0
    assert [row["slug"] for row in json.loads(printed)["rows"]] == ["model"] * 3


def test_the_set_is_all_models_at_the_sizes_of_the_device():
    for device, place in (("cpu", "cpu"), ("cuda:sm90", "gpu")):
        found = models([], [], device)
        assert [each.name for each in found] == list(MODELS)
        assert [each.shapes for each in found] == [getattr(m, place) for m in MODELS.values()]


def test_the_fused_model_is_always_among_the_ways():
    assert list(ways(["torch.compile"])) == ["transfuse", "torch.compile"]
    assert list(ways(None)) == [way.name for way in WAYS]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits(width):
    time = Spread(1.23456, 1.1, 1.3)
    rows = [
        Row("r", "model", name, name, "fp32", "cpu", way.name, "ok", time=time, ratio=time)
        for name in MODELS
        for way in WAYS
    ]
    rows.append(Row("r", "model", "m", "m", "fp32", "cpu", "x", "failed", reason="word " * 60))
    printed = StringIO()
    console = Console(width=width, file=printed)
    for part in results(rows, width):
        console.print(part)
    text = printed.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for way in WAYS:
        assert way.name in text
    for name in MODELS:
        assert name in text
    assert text.count("word") == 60


@pytest.mark.long
def test_every_way_runs_and_is_right(bench, tmp_path):
    path = tmp_path / "r.jsonl"
    for more in ([], ["--training"]):
        resumed = "--resume" if path.exists() else "-o"
        status, _, said = bench(*SMALL, "--rounds", "5", *more, resumed, path)
        assert status == 0, said
    rows = read(path)[1]
    assert [row.variant for row in rows] == [way.name for way in WAYS] * 2
    assert {row.status for row in rows} == {"ok"}, [(r.variant, r.reason) for r in rows]


def test_channels_last_lies_there():
    """The way's own model has its kernels so; the one it shares with the others stays."""
    [subject] = models(["vq-vae"], ["1x64x2x3"], "cpu")
    with torch.no_grad():
        work, _ = whole.work(subject, PRECISIONS["fp32"], "cpu", 0, False)
        _, owner = {way.name: way for way in WAYS}["channels_last"].prepare(work)
    kernel = owner.up1.weight
    assert isinstance(owner.up1, nn.ConvTranspose2d)
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert not work.model.up1.weight.is_contiguous(memory_format=torch.channels_last)
