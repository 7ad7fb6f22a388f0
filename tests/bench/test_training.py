"""Steps of training in the bench: judged by float64, beside torch's autograd."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from transfuse.bench import training
from transfuse.bench.peers import Work
from transfuse.bench.precision import PRECISIONS
from transfuse.cli import app
from transfuse.fills import real
from transfuse.operators import OPERATORS


def work(slug: str) -> Work:
    case = OPERATORS[slug].case("small")
    chain = OPERATORS[slug].bound(case)
    return Work(chain, case.problem, PRECISIONS["fp32"], *real(chain, case.problem, 0))


@pytest.mark.parametrize("slug", OPERATORS)
def test_steps_are_right(slug: str) -> None:
    given = work(slug)
    oracle = training.GradientOracle(given, PRECISIONS["fp32"].ulp)
    for name, step in training.steps().items():
        if "compile" not in name:
            runner = step.build(given)
            with torch.no_grad():
                found = runner.collect(runner.run(given.x))
            assert oracle.judge(found).ok, (name, oracle.judge(found))
            wrong = found.clone()
            wrong[0] += 1
            assert not oracle.judge(wrong).ok
            assert not oracle.judge(wrong[1:]).ok


def test_from_the_command_line(tmp_path: Path, monkeypatch: Any) -> None:
    file = tmp_path / "found.jsonl"
    slug = "conv-transpose2d-softmax-biasadd-scaling-sigmoid"
    line = ["bench", slug, "--set", "small", "--training", "--rounds", "1", "-o", str(file)]
    done = CliRunner().invoke(app, [*line, "--peer", "torch eager", "--json"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(each) for each in file.read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "row"]
    assert [row["variant"] for row in rows] == ["transfuse", "torch eager"]
    assert {row["status"] for row in rows} == {"ok"}
    assert all(row["case"].endswith("training") for row in rows)
