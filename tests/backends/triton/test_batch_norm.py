"""batch_norm in both of its modes on the GPU's kernels, interpreted, with what it keeps."""

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from transfuse.backends.triton import Triton, lower
from transfuse.chain import Chain
from transfuse.plan import fused
from transfuse.problem import DTYPES, Problem
from transfuse.stages import batch_norm, conv_transpose, max_pool, tanh

PROBLEMS = ("n3 ci3 co5 i7 k3 s2 p1", "n2 ci4 co6 i3x4 k3x2 s2x1 g2", "n2 ci3 co4 i2x3x3 k2 s2")
KINDS = (*DTYPES, "fp16 mixed", "bf16 mixed")
THEN: tuple[Any, ...] = ((), (max_pool(2),), (tanh(), max_pool(2)))


def assert_right(given: Any, interpreter: Any, **options: Any) -> list[dict[str, Any]]:
    """The result against the oracle, what is kept against F.batch_norm; what was launched."""
    ulp = Triton().ulp(given.problem)
    oracle, expected = given.oracle(ulp), given.moved()
    answer = interpreter(
        given.chain, given.problem, given.x, given.weight, given.operands, **options
    )
    assert "refusal" not in answer, answer["refusal"]
    accuracy = oracle.judge(answer["results"][0])
    assert accuracy.ok, f"{accuracy.fault}\n  {given.problem}\n  {given.chain}"
    before, given.operands = given.operands, answer["operands"]
    given.assert_moved(expected, 2.0**-52 if given.problem.dtype == "fp64" else 2.0**-23)
    pairs = {name: (before[name], given.operands[name]) for name in before}
    changed = {name for name, (a, b) in pairs.items() if not ((a == b) | a.isnan()).all()}
    assert changed <= ({"mean", "var"} if given.training else set())
    launches: list[dict[str, Any]] = answer["launches"]
    return launches


@pytest.mark.parametrize("training", [False, True], ids=["running", "batch"])
@pytest.mark.parametrize("line", PROBLEMS)
@pytest.mark.parametrize("kind", KINDS)
def test_as_torch(kind: str, line: str, training: bool, norm_call: Any, interpreter: Any) -> None:
    dtype, _, mixed = kind.partition(" ")
    then = THEN[(KINDS.index(kind) + PROBLEMS.index(line)) % len(THEN)]
    given = norm_call(f"{line} {dtype}", training, then, bool(mixed))
    launches = assert_right(given, interpreter)
    merges = [each for each in launches if each["kernel"] == "merge"]
    assert len(merges) == training  # running statistics are applied where the values are


@pytest.mark.parametrize("machine", ["store", "recompute"])
def test_moved_once_whatever_is_done_twice(machine: str, norm_call: Any, interpreter: Any) -> None:
    for then in ((tanh(),), (max_pool(2),)):
        assert_right(norm_call("n2 ci3 co4 i5x4 k3 s2", True, then), interpreter, machine=machine)


@pytest.mark.parametrize("where", ["x", "weight", "conv_bias", "mean", "var", "bias"])
@pytest.mark.parametrize("training", [False, True], ids=["running", "batch"])
def test_nan_and_inf(where: str, training: bool, norm_call: Any, interpreter: Any) -> None:
    for bad in (nan, inf):
        given = norm_call("n2 ci2 co4 i3x4 k2 s2", training, (max_pool(2),))
        tensor = {"x": given.x, "weight": given.weight}.get(where)
        (given.operands[where] if tensor is None else tensor).view(-1)[3] = bad
        assert_right(given, interpreter)


def strided(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor - 9], 1)[:, 0]


def test_statistics_that_lie_apart(norm_call: Any, interpreter: Any) -> None:
    given = norm_call("n2 ci2 co4 i3x4 k2 s2", True)
    for name in ("mean", "var"):
        given.operands[name] = strided(given.operands[name])
    assert_right(given, interpreter)
    assert given.operands["mean"].stride() == (2,)


def test_several_calls(norm_call: Any, interpreter: Any) -> None:
    given = norm_call("n2 ci2 co4 i5 k2 s2", True)
    for _ in range(2):
        assert_right(given, interpreter)


def test_before_the_convolution(interpreter: Any) -> None:
    """Where nothing is gathered, the copy of the input applies it on the way."""
    problem = Problem.parse("n2 ci3 co4 i5x6 k3")
    norms = (batch_norm("m", "v"), max_pool(2), batch_norm("p", "q", "w", "b"))
    interpreter.right(Chain(*norms, conv_transpose(2)), problem)


def test_one_pass_and_its_steps() -> None:
    problem = Problem.parse("n2 ci3 co4 i5x6 k3 cuda:sm90")
    chain = Chain(conv_transpose(2, "c"), batch_norm("m", "v", "w", "b", eps=0.5), tanh())
    (only,) = lower.lowered(chain, fused(chain, problem)).segments
    assert [step.op for step in only.after] == ["add", "running_apply", "scale", "add", "tanh"]
    assert only.after[1].tensors == ("m", "v")
    assert only.after[1].numbers == (0.5,)


def test_a_kept_mean_keeps_the_bias() -> None:
    problem = Problem.parse("n2 ci3 co4 i5x6 k3 cuda:sm90")
    chain = Chain(conv_transpose(2, "c"), batch_norm("m", "v", training=True))
    lowered = lower.lowered(chain, fused(chain, problem))
    assert [step.op for step in lowered.segments[0].after] == ["add"]
    (statistic,) = lowered.statistics
    assert statistic.running is not None
    assert statistic.running.names == ("m", "v")
