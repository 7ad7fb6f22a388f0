"""The plan of gradients: its passes, and where it is shown."""

import json

import pytest
import torch
from typer.testing import CliRunner

import transfuse
from transfuse import stages as s
from transfuse.chain import Chain
from transfuse.cli import app
from transfuse.gradients import plan_backward
from transfuse.operators import OPERATORS
from transfuse.problem import Problem


def test_passes_of_a_linear_chain() -> None:
    problem = Problem.parse("n2 ci4 co6 i5x6 k3 s2 p1")
    plan = plan_backward(Chain(s.conv_transpose(2, "b"), s.scale(2.0)), problem)
    g, x, w = 2 * 6 * 9 * 11 * 4, 2 * 4 * 5 * 6 * 4, 4 * 6 * 9 * 4
    assert [(p.flops, p.reads, p.writes) for p in plan.passes] == [
        (0, g, g),
        (0, g, 6 * 4),
        (problem.flops(), g + w, x),
        (problem.flops(), g + x, w),
    ]
    assert plan.work == 2 * problem.flops()
    assert "again" not in plan.note


@pytest.mark.parametrize("device", ["cpu", "cuda:sm90"])
@pytest.mark.parametrize("slug", OPERATORS)
def test_the_operators_have_one(slug: str, device: str) -> None:
    case = OPERATORS[slug].case(f"small {device}")
    chain = OPERATORS[slug].chain.bind(case.scalars)
    plan = plan_backward(chain, case.problem)
    kept, again = "the forward call keeps" in plan.note, "is computed again, not kept" in plan.note
    assert (kept or again) is (len(chain.stages) > 1)
    assert not (kept and again)
    if "have a gradient" in plan.note:  # of the winners of windows alone
        assert plan.flops < chain.core(case.problem).flops()
    else:
        assert plan.flops == chain.core(case.problem).flops() * (3 if again else 2)


@pytest.mark.parametrize("behind", [[], [s.relu()], [s.silu()], [s.clamp(-1.0, 1.0), s.tanh()]])
def test_sums_are_shared(behind: list[s.Stage]) -> None:
    """A norm's four gradients take two sums over the values, whatever stands behind it."""
    problem = Problem.parse("n2 ci4 co8 i9x9 k3 s2 p1")
    for norm in (s.group_norm(2, "w", "b"), s.batch_norm(weight="w", bias="b", training=True)):
        plan = plan_backward(Chain(s.conv_transpose(2), norm, *behind), problem)
        values = problem.output().numel * 4
        sums = [p for p in plan.passes if p.writes < values / 4 and p.reads >= values]
        assert len([p for p in sums if "back" in p.does]) == 2, plan


def test_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFUSE_BACKEND", "eager")
    problem = Problem.parse("n2 ci4 co6 i5x6 k3 s2 p1")
    plan = plan_backward(Chain(s.conv_transpose(2), s.tanh()), problem)
    assert [p.does for p in plan.passes] == [
        "back through tanh · in torch",
        "back through conv_transpose2d · in torch",
    ]


def test_where_it_is_shown() -> None:
    x, w = torch.empty(2, 4, 5, 6), torch.empty(4, 6, 3, 3)
    told = transfuse.explain(transfuse.conv_transpose, x, w, then=[s.tanh()], backward=True)
    assert told.backward is not None
    assert "what gradients by all tensors will run" in str(told)
    assert told.as_dict()["backward"]["passes"]
    silent = transfuse.explain(transfuse.conv_transpose, x, w, then=[s.tanh()])
    assert silent.backward is None
    assert "backward" not in silent.as_dict()
    line = ["explain", "conv_transpose2d -> tanh", "n2 ci4 co6 i5x6 k3", "--backward", "--json"]
    found = CliRunner().invoke(app, line)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["backward"]["flops"] > 0


def test_element_stages_are_the_convolutions_own_epilogue() -> None:
    """One kernel convolves again and gives the gradient by its output; nothing else is stored."""
    problem = Problem.parse("n2 ci4 co6 i5x6 k3 s2 p1")
    chain = Chain(s.conv_transpose(2, "b"), s.add("t"), s.relu(), s.silu())
    plan = plan_backward(chain.fitted({"t": (2, 6, 9, 11)}), problem)
    assert [p.flops > 0 for p in plan.passes].index(True) == 0
    assert len([p for p in plan.passes if p.flops]) == 3
    assert plan.scratch == problem.output().numel * 4


def test_values_that_windows_saw_are_read_again() -> None:
    """The gradient through what made them is told by them, in their place."""
    problem = Problem.parse("n2 ci4 co8 i9x9 k3 s2 p1")
    norm = s.batch_norm(weight="w", bias="b", training=True)
    plan = plan_backward(Chain(s.conv_transpose(2), norm, s.tanh(), s.max_pool(2)), problem)
    values = problem.output().numel * 4
    (common,) = [p for p in plan.passes if "in common" in p.does]
    assert (common.reads, common.writes) == (2 * values, values)  # no statistics among them
