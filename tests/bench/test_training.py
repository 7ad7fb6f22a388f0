"""Steps of training in the bench: no time without right gradients, rows apart from forward ones."""

import json
from dataclasses import dataclass

import pytest
import torch
from typer.testing import CliRunner

from tests.bench.decreed import FakeCeilings
from transfuse.accuracy import StepOracle
from transfuse.bench.measure import Ours, measure
from transfuse.bench.peers import Missing, Work, in_torch, peers
from transfuse.bench.peers.jax_xla import jitted
from transfuse.bench.peers.torch_eager import as_written
from transfuse.bench.precision import PRECISIONS
from transfuse.bench.record import Run, read
from transfuse.bench.subjects import subjects
from transfuse.cli import app
from transfuse.fills import real
from transfuse.operators import OPERATORS
from transfuse.plan import fused

FP32 = PRECISIONS["fp32"]
MAX = "conv-transpose3d-max-max-sum"
SIGMOID = "conv-transpose2d-softmax-biasadd-scaling-sigmoid"
BATCH = "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm"


def rows(slug, variants, case="small", precision=FP32, ceilings=None):
    run = Run("r", "", "", "cpu", 0, None, {}, [], {})
    [subject] = subjects([slug], [case], [], "cpu")
    found = measure(run, subject, precision, variants, ceilings or FakeCeilings(), 5, 60, True)
    return {row.variant: row for row in found}


@dataclass(frozen=True)
class Changed:
    """torch eager with another result, whose gradients are others, too."""

    change: object
    name: str = "changed"
    trains: bool = True

    def build(self, work):
        right = as_written(work)
        return in_torch(work, lambda x: self.change(right(x)))


@pytest.mark.parametrize("slug", OPERATORS)
def test_every_operator_in_torch_and_ours(slug):
    chosen = {name: peers()[name] for name in ("torch eager", "torch other layout")}
    found = rows(slug, {"transfuse": Ours(), **chosen})
    assert [row.status for row in found.values()] == ["ok"] * 3, found
    assert all(row.training and row.setting == "fp32, training" for row in found.values())
    assert all(len(row.samples) == 5 for row in found.values())


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_other_types(precision):
    found = rows(BATCH, {"transfuse": Ours()}, precision=PRECISIONS[precision])
    assert found["transfuse"].status == "ok", found


def test_gradients_come_after_the_call():
    """Its special functions do not hide their bytes."""
    ceilings = FakeCeilings(copy=1.0, matmul=1e30, special=0.25)
    [subject] = subjects([SIGMOID], ["small"], [], "cpu")
    plan = fused(subject.chain, subject.case.problem)
    assert 4 * plan.special > plan.least
    row = rows(SIGMOID, {"transfuse": Ours()}, ceilings=ceilings)["transfuse"]
    assert row.floor == 4 * plan.special + (row.bytes - plan.least)
    assert row.floor_of_definition == row.bytes


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda y: y * 1.01, "times its budget"),
        (lambda y: y.detach() + y.sum() * 0, "times its budget"),
        (lambda y: y * torch.nan, "NaN in the wrong places"),
    ],
    ids=["off by 1 %", "none", "NaN"],
)
def test_wrong_gradients_get_no_time(change, why):
    row = rows(MAX, {"changed": Changed(change)})["changed"]
    assert row.status == "wrong"
    assert why in row.reason
    assert row.samples == []


@pytest.mark.long
def test_compiled():
    row = rows(BATCH, {"torch.compile": peers()["torch.compile"]})["torch.compile"]
    assert row.status == "ok", row.reason


def test_libraries_without_gradients_say_so():
    found = rows(MAX, {name: peers()[name] for name in ("onnxruntime", "OpenVINO")})
    assert {row.reason for row in found.values()} == {"it computes no gradients"}
    assert {row.status for row in found.values()} == {"missing"}


@pytest.mark.parametrize("slug", OPERATORS)
def test_jax(slug):
    [subject] = subjects([slug], ["small"], [], "cpu")
    chain, problem = subject.chain, subject.case.problem
    x, weight, operands = real(chain, problem, 0)
    cotangent = torch.randn(chain.result(problem))
    try:
        runner = jitted(Work(chain, problem, FP32, x, weight, operands, cotangent))
    except Missing as missing:
        pytest.skip(str(missing))
    found = runner.collect(runner.run(runner.adapt(x)))
    given = (chain, problem, x, weight, operands, cotangent, list(operands), FP32.ulp)
    assert not StepOracle(*given).judge(found).fault


@pytest.mark.usefixtures("quick_ceilings")
def test_a_file_holds_forward_and_training_apart(tmp_path):
    path = tmp_path / "r.jsonl"
    wanted = ["bench", MAX, "--set", "small", "--peer", "torch eager", "--rounds", "1"]
    for more in (["-o", path], ["--training", "--resume", path], ["--training", "--resume", path]):
        done = CliRunner().invoke(app, [*wanted, *map(str, more), "--json"])
        assert done.exit_code == 0, done.output
    assert json.loads(done.output)["rows"] == []  # the third time all is there already
    assert [row.training for row in read(path)[1]] == [False, False, True, True]
    assert len({row.key for row in read(path)[1]}) == 2


def test_costs_of_a_step():
    """Three convolutions; what is read and written twice, and the gradients of two tensors."""
    run = Run("r", "", "", "cpu", 0, None, {}, [], {})
    [subject] = subjects([MAX], ["small"], [], "cpu")
    forward, step = (
        measure(run, subject, FP32, {"transfuse": Ours()}, FakeCeilings(), 1, 60, training)[0]
        for training in (False, True)
    )
    problem = subject.case.problem
    held = problem.input.numel + torch.Size(problem.weight).numel()
    assert step.flops == 3 * forward.flops
    assert step.bytes == 2 * forward.bytes + 4 * held
