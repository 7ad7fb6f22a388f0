"""batch_norm says which statistics it uses; plain torch computes it as F.batch_norm does."""

from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse import Chain, Problem
from transfuse.plan import fused
from transfuse.reference import evaluate, reference
from transfuse.rewrite import rewritten
from transfuse.stages import (
    Kind,
    Stage,
    add,
    batch_norm,
    conv_transpose,
    group_norm,
    max_pool,
    scale,
    tanh,
)
from transfuse.stages.batch_halves import BatchStatistics

Z = torch.randn(2, 3, 4, 4)
MEAN, VAR = torch.zeros(3), torch.ones(3)


def test_the_mode_decides_what_a_stage_sees() -> None:
    assert batch_norm("m", "v").sees(2) is Kind.POINTWISE
    assert batch_norm("m", "v", training=True).sees(2) is Kind.WHOLE
    assert batch_norm("m", "v").updates == ()
    assert batch_norm("m", "v", training=True).updates == ("m", "v")
    assert batch_norm(training=True).updates == ()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, RuntimeError, "running_mean and running_var are missing; pass .* or training=True"),
        ({"weight": MEAN, "bias": VAR}, RuntimeError, "running_mean and running_var are missing"),
        ({"running_mean": MEAN}, RuntimeError, "and running_var is missing"),
        ({"running_var": VAR}, RuntimeError, "and running_mean is missing"),
        ({"running_mean": MEAN, "training": True}, ValueError, "running_var is missing"),
        ({"running_var": VAR, "training": True}, ValueError, "running_mean is missing"),
        ({"training": 1}, TypeError, "training must be bool, not int"),
        ({"training": None}, TypeError, "training must be bool, not NoneType"),
        ({"training": True, "momentum": None}, TypeError, "momentum must be float, not NoneType"),
        ({"training": True, "momentum": "a"}, TypeError, "momentum must be float, not str"),
        ({"training": True, "eps": None}, TypeError, "eps must be float, not NoneType"),
        ({"training": True, "eps": 0.0}, ValueError, "eps must be positive in training"),
        ({"running_mean": MEAN, "running_var": VAR, "eps": -1.0}, ValueError, "non-negative"),
    ],
)
def test_what_is_missing_or_wrong_is_said_at_once(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        batch_norm(**arguments)
    theirs = {"running_mean": None, "running_var": None} | arguments
    if theirs.get("eps", 1) is None or theirs.get("eps", 1) <= 0:
        return  # not the same in every version of torch
    with pytest.raises(error):
        F.batch_norm(Z, **theirs)


def test_an_array_is_no_tensor() -> None:
    with pytest.raises(TypeError, match="running_mean must be one of Tensor, str, not ndarray"):
        batch_norm(np.zeros(3), VAR)  # type: ignore[arg-type]


def test_places_are_those_of_torch() -> None:
    x, w = torch.randn(2, 2, 5, 4), torch.randn(2, 3, 3, 3)
    mean, var, weight, bias = torch.randn(3), torch.rand(3), torch.randn(3), torch.randn(3)
    for training in (False, True):
        ours, theirs = [mean.clone(), var.clone()], [mean.clone(), var.clone()]
        given = (weight, bias, training, 0.3, 0.5)
        y = transfuse.conv_transpose(x, w, then=[batch_norm(*ours, *given)])
        expected = F.batch_norm(F.conv_transpose2d(x, w), *theirs, *given)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(ours, theirs)
        assert training == (not ours[0].equal(mean))


@pytest.mark.parametrize("training", [False, True])
def test_a_module_in_its_mode(training: bool) -> None:
    module = torch.nn.BatchNorm2d(3).train(training)
    module.running_mean.uniform_()  # type: ignore[union-attr]
    bn = (module.running_mean, module.running_var, module.weight, module.bias, module.training)
    x, w = torch.randn(2, 2, 5, 4), torch.randn(2, 3, 3, 3)
    mean, var = bn[0].clone(), bn[1].clone()  # type: ignore[union-attr]
    with torch.no_grad():
        y = transfuse.conv_transpose(x, w, then=[batch_norm(*bn, module.momentum, module.eps)])
    found = [bn[0].clone(), bn[1].clone()]  # type: ignore[union-attr]
    module.running_mean.copy_(mean), module.running_var.copy_(var)  # type: ignore[union-attr]
    torch.testing.assert_close(y, module(F.conv_transpose2d(x, w)))
    torch.testing.assert_close(found, [module.running_mean, module.running_var])


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (batch_norm("m", "v"), "batch_norm(running, running_mean=m, running_var=v)"),
        (batch_norm("m", "v", bias="b", eps=0.5), "running_var=v, bias=b, eps=0.5)"),
        (batch_norm(weight="w", training=True), "batch_norm(batch, weight=w)"),
        (batch_norm("m", "v", training=True, momentum=0.5), "running_var=v, momentum=0.5)"),
    ],
)
def test_it_prints_which_statistics(stage: Stage, text: str) -> None:
    assert str(stage).startswith("batch_norm(")
    assert str(stage).endswith(text)


def test_running_statistics_need_no_pass() -> None:
    problem = Problem.parse("n2 ci3 co4 i9x9 k3")
    one = fused(Chain(conv_transpose(2), batch_norm("m", "v", "w"), tanh()), problem)
    two = fused(Chain(conv_transpose(2), batch_norm(weight="w", training=True), tanh()), problem)
    assert (len(one.passes), len(two.passes)) == (1, 2)


def test_a_bias_stays_where_a_running_mean_is_kept() -> None:
    plain = Chain(conv_transpose(2, "b"), batch_norm(training=True))
    kept = Chain(conv_transpose(2, "b"), batch_norm("m", "v", training=True))
    known = Chain(conv_transpose(2, "b"), batch_norm("m", "v"))
    assert rewritten(plain).conv.bias is None
    assert rewritten(kept).conv.bias == rewritten(known).conv.bias == "b"


def test_pooling_first_gathers_for_the_running_statistics() -> None:
    norm = batch_norm("m", "v", "w", training=True, momentum=0.5)
    chain = rewritten(Chain(conv_transpose(1), norm, max_pool(2)))
    assert BatchStatistics("statistics1", "m", "v", 0.5) in chain.stages
    assert chain.updates == ("m", "v")


def test_no_pool_moves_before_running_statistics() -> None:
    """A weight of 0 makes NaN of an Inf that a maximum of the values would have dropped."""
    chain = Chain(conv_transpose(1), batch_norm("m", "v", "w"), max_pool(2), tanh())
    assert rewritten(chain) == chain
    x = torch.tensor([[[-inf, 1.0, 2.0, 3.0]]])
    env = {"m": torch.zeros(1), "v": torch.ones(1), "w": torch.zeros(1)}
    problem = Problem.parse("n1 ci1 co1 i4 k1")
    y = transfuse.front.run(chain, problem, x, torch.ones(1, 1, 1), env)
    assert y.isnan().tolist() == [[[True, False]]]


@pytest.mark.parametrize("split", [False, True], ids=["one stage", "its two halves"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_evaluating_a_chain_writes_to_nothing(split: bool, dtype: torch.dtype) -> None:
    problem = Problem.parse("n2 ci3 co4 i5x4 k3 " + ("fp64" if dtype is torch.float64 else ""))
    norm = batch_norm("m", "v", "w", "b", training=True, momentum=0.25)
    chain = Chain(conv_transpose(2), norm, max_pool(2))
    chain = rewritten(chain) if split else chain
    x, w = torch.randn(2, 3, 5, 4, dtype=dtype), torch.randn(3, 4, 3, 3, dtype=dtype)
    env = {name: torch.rand(4, dtype=dtype) for name in "mvwb"}
    before = {name: tensor.clone() for name, tensor in env.items()}
    updated: dict[str, Tensor] = {}
    y = evaluate(chain, problem, x, w, env, updated=updated)
    reference(chain, problem, x, w, env)
    assert all(env[name].equal(before[name]) for name in env)
    assert all(tensor._version == 0 for tensor in env.values())
    z = F.conv_transpose2d(x, w)
    expected = F.batch_norm(z, before["m"], before["v"], env["w"], env["b"], True, 0.25)
    torch.testing.assert_close(y, F.max_pool2d(expected, 2))
    torch.testing.assert_close(updated, {"m": before["m"], "v": before["v"]})


@pytest.mark.parametrize("bad", [inf, -inf, nan, 0.0, -1e-5])
@pytest.mark.parametrize("operand", ["m", "v", "w", "b"])
def test_values_are_those_of_the_definition(operand: str, bad: float) -> None:
    x = torch.tensor([-inf, -1.0, 0.0, 1.0, 2.0, inf, nan]).reshape(1, 1, 7).repeat(1, 2, 1)
    env = {name: torch.tensor([1.0, 2.0]) for name in "mvwb"}
    env[operand][0] = bad
    y = batch_norm("m", "v", "w", "b").apply(x, env)
    m, v, w, b = (env[name].reshape(1, 2, 1) for name in "mvwb")
    expected = (x - m) * (v + 1e-5).rsqrt() * w + b
    torch.testing.assert_close(y, expected, equal_nan=True)


def test_names_and_tensors() -> None:
    env: dict[str, Tensor] = {}
    tensors = [torch.rand(3) for _ in range(4)]
    for training in (False, True):
        lifted = batch_norm(*tensors, training).lift("n", env)
        names = ("n.running_mean", "n.running_var", "n.weight", "n.bias")
        assert lifted == batch_norm(*names, training)
        assert lifted.operands == names
        assert [env[name] for name in names] == tensors


def test_which_tensors_may_be_wider() -> None:
    norm = batch_norm("m", "v", "w", "b")
    chain = Chain(conv_transpose(2, "c"), norm, add("a"), scale("w"), group_norm(2, "g"))
    assert chain.mixes == {"m", "v", "b", "g"}
