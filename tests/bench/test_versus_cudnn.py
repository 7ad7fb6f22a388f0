"""The script that fits the choice between our kernels and cuDNN's, on times of known making."""

import json
import math
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from typing import Any

import pytest

from transfuse.backends.triton import versus_cudnn as model
from transfuse.cases import Case
from transfuse.drawn_layers import drawn_layer
from transfuse.problem import Problem

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "versus_cudnn.py"
COSTS = {
    "ours": {"calls": 15.0, "input": 0.6, "output": 0.5, "products": 2.5},
    "cudnn": {"calls": 8.0, "output": 0.9, "products": 3.0, "strided: output": 2.0},
}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = spec_from_file_location("versus_cudnn_script", SCRIPT)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses ask for it
    spec.loader.exec_module(module)
    return module


def layers(script: Any, seeds: range) -> list[Any]:
    """Layers that take what the costs say, give or take a tenth; one in twenty ten times that."""
    random, found = Random(0), []
    for seed in seeds:
        drawn, bias = drawn_layer(seed)
        problem = Case(drawn).on("fp16", "cuda:sm90").problem
        amounts = model.amounts(problem, bias)
        cudnn, ours = (
            1e-6 * model.microseconds(COSTS[who], amounts) * random.uniform(0.9, 1.1)
            for who in ("cudnn", "ours")
        )
        odd = 10 if random.random() < 0.05 else 1
        found.append(script.Layer(seed, str(problem), bias, cudnn, None, odd * ours))
    return found


def test_a_file_is_read_as_it_was_written(script: Any, tmp_path: Path) -> None:
    given = layers(script, range(3))
    script.write(tmp_path / "l.jsonl", {"torch": {"gpus": []}}, given)
    assert script.read(tmp_path / "l.jsonl") == ({"torch": {"gpus": []}}, given)


def test_a_layer_is_made_again_from_its_line(script: Any) -> None:
    line = "n1 ci2 co3 i5x4 k3 s1 p0 fp16 channels_last cpu"
    work = script.Layer(0, line, True, 1e-5, None).work
    assert str(work.problem) == line
    assert work.precision.name == "fp16"
    assert work.operands.keys() == {"bias"}
    assert not work.x.is_contiguous()


def test_one_seed_in_five_is_left_out(script: Any) -> None:
    fitted, others = script.apart(layers(script, range(20)))
    assert [each.seed for each in others] == [0, 5, 10, 15]
    assert len(fitted) == 16


def test_a_fit_finds_the_costs(script: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, others = script.apart(layers(script, range(300)))
    costs = script.fit(fitted)
    assert list(costs) == ["fp16 contiguous"]
    for who, expected in COSTS.items():
        found = costs["fp16 contiguous"][who]
        assert min(found.values()) >= 0
        errors = []
        for each in others:
            amounts = model.amounts(Problem.parse(each.problem), each.bias)
            sums = (model.microseconds(costs, amounts) for costs in (found, expected))
            errors.append(abs(math.log(next(sums) / next(sums))))
        assert sorted(errors)[len(errors) * 9 // 10] < 0.1
    monkeypatch.setattr(model, "_costs", lambda: costs)
    script.show(others, costs)
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith(f"{len(others)} layers, geomean ")


def test_layers_that_we_did_not_run_tell_of_cudnn_alone(script: Any) -> None:
    given = layers(script, range(40))
    untimed = [script.replace(each, ours=None, torch=1.0) for each in layers(script, range(40, 60))]
    [found], [alone] = (script.fit(each).values() for each in (given + untimed, given))
    assert found["ours"] == alone["ours"]
    assert found["cudnn"] != alone["cudnn"]


def test_fit_writes_what_the_model_reads(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "FILE", tmp_path / "kept.json")
    script.write(tmp_path / "l.jsonl", {"ours": {"gpus": ["one"]}}, layers(script, range(50)))
    monkeypatch.setattr(sys, "argv", ["versus_cudnn.py", "fit", str(tmp_path / "l.jsonl")])
    script.main()
    kept = json.loads(model.FILE.read_text(encoding="utf-8"))
    assert kept["measured"] == {"layers": 40, "ours": {"gpus": ["one"]}}
    assert kept["costs"].keys() == {"fp16 contiguous"}
