"""The script that measures how the CPU core scales with threads."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "threads.py"


@pytest.fixture
def script() -> Iterator[Any]:
    threads = torch.get_num_threads()
    yield runpy.run_path(str(SCRIPT))
    torch.set_num_threads(threads)


def test_counts_end_with_all_cores(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, counts in ((1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert script["counts"]() == counts


def test_scaling_of_one_operator(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scaling = script["scaling"]
    small = {"BATCH": 1, "ROUNDS": 2, "COLD": 0, "TIMED": 1, "counts": lambda: [1, 2]}
    for name, value in small.items():
        monkeypatch.setitem(scaling.__globals__, name, value)
    operator = script["OPERATORS"]["conv-transpose2d-batchnorm-tanh-maxpool-groupnorm"]
    found = scaling(operator)
    assert found["problem"].startswith("n1 ")
    assert found["ms"].keys() == {1, 2}
    assert found["efficiency"] == pytest.approx(found["ms"][1] / found["ms"][2] / 2, abs=2e-3)
    assert found["eager_over_ours"] > 0
