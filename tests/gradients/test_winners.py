"""Gradients behind max windows: from the few outputs that have one, as from all."""

from itertools import pairwise

import pytest
import torch

from tests.gradients.autograd import by_autograd, compare, wanted
from transfuse import gradients as subject
from transfuse import stages as s
from transfuse.backends.backward import Backward
from transfuse.backends.cpu import Cpu
from transfuse.chain import Chain
from transfuse.fills import integers, real
from transfuse.gradients import plan_backward
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.reverse import winners
from transfuse.stages import Stage

PROBLEMS = {
    "one axis": "n2 ci3 co4 i40 k5 s2 p1",
    "two axes": "n3 ci17 co4 i9x12 k3 s2 p1 op1",
    "three axes": "n2 ci5 co3 i4x5x6 k3x2x4 s2x1x3 p1x0x1",
    "groups": "n2 ci12 co6 i9x10 k4 s2 p1 g3",
    "dilated": "n1 ci33 co4 i8x9 k3 s1 p2 d2",
    "cropped": "n2 ci3 co4 i9x9 k3 s3 p-1 op2",
    "channels last": "n2 ci20 co4 i9x10 k3 s2 p1 channels_last",
}
POOLS: dict[str, tuple[Stage, ...]] = {
    "tiles": (s.max_pool(2), s.max_pool(3)),
    "overlapping": (s.max_pool(3, 2), s.max_pool(3, 2, 1)),
    "padded": (s.max_pool(3, 2, 1), s.max_pool(2)),
    "dilated": (s.max_pool(2, 2, 0, 2), s.max_pool(2)),
    "ceil": (s.max_pool(3, 3, 0, 1, True), s.max_pool(2)),
    "elements between": (s.max_pool(2), s.tanh(), s.scale("t"), s.max_pool(3), s.sum("channels")),
    "global": (s.adaptive_max_pool(1),),
}
EVERY = frozenset(["input", "weight", "b"])


def backward(
    monkeypatch: pytest.MonkeyPatch, chain: Chain, problem: Problem, looks: bool
) -> Backward:
    """The gradients from the winners, whatever they cost; ``looks``: found in memory."""
    monkeypatch.setattr(winners, "SLOWER", 1e-6 if not looks else 1)
    monkeypatch.setattr(winners, "LARGE", 1e-9 if looks else 1)
    found = Backward(Cpu(), chain, problem, EVERY | {*dict(chain.dims(problem))})
    assert found.winners is not None
    assert found.winners.looks is looks
    return found


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("line", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("pools", POOLS.values(), ids=POOLS)
def test_integers_with_ties_are_exact(
    monkeypatch: pytest.MonkeyPatch, pools: tuple[Stage, ...], line: str, looks: bool
) -> None:
    """Small integers have many ties: of equals the first has the gradient."""
    problem = Problem.parse(line)
    if any(stage.name == "tanh" for stage in pools):
        pools = tuple(s.relu() if stage.name == "tanh" else stage for stage in pools)
    chain = Chain(s.conv_transpose(problem.rank, "b"), *pools)
    x, weight, operands = integers(chain, problem, 5)
    grad = torch.randint(-3, 4, chain.result(problem), dtype=torch.float32)
    got = backward(monkeypatch, chain, problem, looks)(grad, x, weight, operands)
    for name, each in by_autograd(chain, problem, grad, x, weight, operands).items():
        assert torch.equal(got[name].double(), each), name


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
def test_types(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    problem = Problem.parse(f"n2 ci9 co4 i9x10 k3 s2 p1 {dtype}")
    chain = Chain(s.conv_transpose(2, "b"), s.max_pool(2), s.max_pool(3))
    tensors = real(chain, problem, 1)
    unit = torch.finfo(tensors[0].dtype).eps
    compare(chain, problem, tensors, relative=max(unit, 1e-9 if dtype == "fp64" else 1e-5))
    plan = plan_backward(chain, problem)
    assert "have a gradient" in plan.note


def test_the_plan_of_many_zeros() -> None:
    """One output in 216: neither gradient is a dense convolution, and nothing is of its size."""
    case = OPERATORS["conv-transpose3d-max-max-sum"].case("cpu")
    chain = OPERATORS["conv-transpose3d-max-max-sum"].chain.bind(case.scalars)
    inner, plan = chain.core(case.problem), plan_backward(chain, case.problem)
    values = inner.output().numel
    assert "64000 of 16003008 have a gradient" in plan.note
    assert plan.flops < inner.flops() / 8
    assert all(each.writes < values for each in plan.passes)
    assert plan.scratch < values


@pytest.mark.parametrize("arithmetic", ["tf32", "fp16", "bf16", "fp32"])
def test_the_plan_on_a_gpu(arithmetic: str) -> None:
    """Less than a quarter of the convolution's output is in memory at once, of what it stores."""
    pytest.importorskip("triton", reason="Triton is not installed")
    operator = OPERATORS["conv-transpose3d-max-max-sum"]
    case = operator.case("benchmark").on(arithmetic, "cuda:sm90")
    chain = operator.chain.bind(case.scalars)
    plan, values = plan_backward(chain, case.problem), chain.core(case.problem).output().numel
    assert "1024000 of 256048128 have a gradient" in plan.note
    assert all(each.writes < values for each in plan.passes)
    assert plan.scratch < values


@pytest.mark.parametrize(
    "stages",
    [
        (s.max_pool(2),),
        (s.relu(), s.max_pool(2), s.max_pool(3)),
        (s.max_pool(2), s.softmax("channels"), s.max_pool(3)),
        (s.max_pool(2), s.batch_norm(weight="w", training=True), s.max_pool(3)),
        (s.avg_pool(2), s.max_pool(3)),
        (s.adaptive_max_pool(4), s.max_pool(4)),
    ],
    ids=lambda stages: "-".join(each.name for each in stages),
)
def test_dense_gradients_stay_dense(stages: tuple[Stage, ...]) -> None:
    problem = Problem.parse("n2 ci4 co4 i9x10 k3 s2 p1")
    chain = Chain(s.conv_transpose(2, "b"), *stages)
    names = frozenset(wanted(chain, dict.fromkeys(dict(chain.dims(problem)))))  # type: ignore[arg-type]
    found = subject._backward(chain, problem, names, None)
    assert found is not None
    assert found.winners is None


@pytest.mark.parametrize("spoilt", ["input", "weight"])
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_zeros_that_meet_what_is_not_finite(spoilt: str, value: float) -> None:
    """Dense convolutions multiply the zeros, too: NaNs come out where theirs are."""
    problem = Problem.parse("n1 ci2 co3 i6x7 k3 s1 p1 fp64")
    chain = Chain(s.conv_transpose(2), s.max_pool(2), s.max_pool(3))
    x, weight, _ = real(chain, problem, 0)
    {"input": x, "weight": weight}[spoilt].view(-1)[7] = value
    grad = torch.ones(chain.result(problem), dtype=torch.float64)
    got = subject.gradients(chain, problem, grad, x, weight, {}, ["input", "weight"])
    dense = Backward(Cpu(), chain, problem, frozenset(got), dense=True)(grad, x, weight, {})
    assert any(each.isnan().any() for each in dense.values())
    for name, each in dense.items():
        torch.testing.assert_close(got[name], each, equal_nan=True)


def test_of_nans_the_last() -> None:
    problem = Problem.parse("n1 ci1 co1 i8x8 k1 s1 fp64")
    chain = Chain(s.conv_transpose(2, "b"), s.max_pool(2), s.max_pool(2))
    x, weight = torch.randn(1, 1, 8, 8).double(), torch.ones(1, 1, 1, 1).double()
    operands = {"b": torch.full((1,), torch.nan).double()}
    grad = torch.randn(chain.result(problem)).double()
    got = subject.gradients(chain, problem, grad, x, weight, operands, ["input", "weight"])
    expected = by_autograd(chain, problem, grad, x, weight, operands)
    for name in ("input", "weight"):
        torch.testing.assert_close(got[name], expected[name])


@pytest.mark.parametrize("looks", [False, True])
def test_the_same_bits_for_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    problem = Problem.parse("n2 ci19 co16 i17x19 k3 s2 p1")
    chain = Chain(s.conv_transpose(2, "b"), s.max_pool(2), s.max_pool(3))
    x, weight, operands = real(chain, problem, 0)
    grad = torch.randn(chain.result(problem), generator=torch.Generator().manual_seed(0))
    run, before, found = backward(monkeypatch, chain, problem, looks), torch.get_num_threads(), []
    for threads in (1, 2, 3, 1):
        torch.set_num_threads(threads)
        found.append(run(grad, x, weight, operands))
    torch.set_num_threads(before)
    for one, other in pairwise(found):
        assert all(torch.equal(one[name], other[name]) for name in EVERY)


def test_only_what_is_wanted() -> None:
    problem = Problem.parse("n2 ci4 co4 i9x10 k3 s2 p1")
    chain = Chain(s.conv_transpose(2, "b"), s.max_pool(2), s.max_pool(3))
    tensors = real(chain, problem, 0)
    grad = torch.ones(chain.result(problem))
    every = subject.gradients(chain, problem, grad, *tensors, ["input", "weight", "b"])
    for name, each in every.items():
        alone = subject.gradients(chain, problem, grad, *tensors, [name])
        torch.testing.assert_close(alone[name], each)
