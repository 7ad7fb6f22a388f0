"""The figure of real models: a bar for each and each machine, as long as its records say."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from xml.etree import ElementTree

import pytest

from tests.report.made import CPU, GPU, MODELS, ON_CPU, OURS
from transfuse.bench.record import append
from transfuse.report.figure import figure
from transfuse.report.model_figure import WIDTH


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A file of a CPU, and one of a GPU, where one of the models was not measured."""
    paths = [tmp_path / "cpu.jsonl", tmp_path / "gpu.jsonl"]
    append(paths[0], [CPU, *MODELS])
    gpu = [replace(row, run=GPU.id, device="cuda:sm90") for row in MODELS if row.name == "dcgan"]
    append(paths[1], [replace(GPU, environment={"gpus": [{"name": "H & co"}]}), *gpu])
    return paths


def test_bars_are_as_long_as_the_ratios(files: list[Path]) -> None:
    drawn = figure(files)
    ElementTree.fromstring(drawn)
    assert "H &amp; co, fp32" in drawn
    eager = {row.name: row.ratio.median for row in MODELS if row.variant == "torch eager"}
    assert eager.keys() == {"dcgan", "unet"}
    mean = geometric_mean(eager.values())
    expected = [eager["dcgan"], eager["unet"], mean, eager["dcgan"], eager["dcgan"]]
    widths = [float(each) for each in re.findall(r'class="fused" .*?width="(\S+)"', drawn)]
    ones = [float(each) for each in re.findall(r'class="one" x1="(\S+)"', drawn)]
    assert len(ones) == 2
    assert [w / one for w, one in zip(widths, [ones[0]] * 3 + [ones[1]] * 2, strict=True)] == (
        pytest.approx(expected, abs=0.01)
    )
    assert all(width < WIDTH for width in widths)
    assert "dcgan: 2.00x as fast as torch eager" in drawn


def test_models_without_torch_beside_them_make_no_figure(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    append(path, [CPU, *(row for row in MODELS if row.variant == OURS)])
    with pytest.raises(ValueError, match="no models beside 'torch eager'"):
        figure([path])


def test_operators_of_two_files_make_no_figure(files: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    append(path, [CPU, *ON_CPU[:3]])
    with pytest.raises(ValueError, match="shows one file of results, not 2"):
        figure([path, files[1]])
