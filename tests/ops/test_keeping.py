"""What a step of training keeps of its forward call, and that it changes no result."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

from tests.gradients.autograd import by_autograd
from tests.ops.calls import CASES, arguments, learning, learnt, tensors
from transfuse import front
from transfuse import stages as s
from transfuse.backends.keeping import Keeping
from transfuse.chain import Chain
from transfuse.fills import real
from transfuse.gradients import gradients, keeping, plan_backward
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.stages import Stage

OPS = torch.ops.transfuse
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
PROBLEM = "n2 ci64 co8 i9x10 k5 s1 p1"
CHAIN = Chain(
    s.conv_transpose(2, "b"),
    s.batch_norm(weight="w", bias="v", training=True),
    s.tanh(),
    s.max_pool(2),
    s.group_norm(2, "w", "v"),
)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep whatever gradients read, at any price."""
    keeping.cache_clear()
    monkeypatch.setattr(Keeping, "cheaper", True)
    yield
    keeping.cache_clear()


def kept(chain: Chain, problem: Problem) -> list[Tensor]:
    given = arguments(chain, problem, real(chain, problem, 0))
    found: list[Tensor] = OPS.chain_keeping(*given, "cpu")[1]
    return found


def test_the_operation_carries_it() -> None:
    problem = Problem.parse(PROBLEM)
    assert kept(CHAIN, problem)[0].shape == problem.output().dims
    given = arguments(CHAIN, problem, real(CHAIN, problem, 0))
    torch.testing.assert_close(OPS.chain_keeping(*given, "cpu")[0], OPS.chain(*given))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name.startswith("conv-t") else pytest.mark.long)
        for name in CASES
    ],
)
@pytest.mark.usefixtures("always")
def test_torchs_examination(name: str) -> None:
    chain, problem = CASES[name]
    given = arguments(chain, problem, tensors(name))
    opcheck(OPS.chain_keeping, (*given, "cpu"), test_utils=CHECKS)
    opcheck(OPS.chain_keeping, (*learning(chain, given), "cpu"), test_utils=CHECKS)
    y, held = OPS.chain_keeping(*given, "cpu")
    wanted = [True, True, *learnt(chain)]
    opcheck(OPS.chain_backward, (torch.randn_like(y), *given[:-1], wanted, held), test_utils=CHECKS)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("slug", OPERATORS)
@pytest.mark.usefixtures("always")
def test_gradients_are_right(slug: str, layout: str) -> None:
    case = OPERATORS[slug].case(f"ragged fp64 {layout}")
    chain, problem = OPERATORS[slug].chain.bind(case.scalars), case.problem
    x, weight, operands = real(chain, problem, 1)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(chain.result(problem), generator=generator, dtype=torch.float64)
    expected = by_autograd(chain, problem, grad, x, weight, operands)
    leaves = [each.requires_grad_() for each in (x, weight, *operands.values())]
    y = front.run(chain, problem, x, weight, operands)
    largest = max(float(each.abs().max()) for each in expected.values())
    for each, right in zip(torch.autograd.grad(y, leaves, grad), expected.values(), strict=True):
        torch.testing.assert_close(each, right, rtol=1e-9, atol=1e-9 * largest)


@pytest.mark.parametrize("norm", [s.batch_norm, s.instance_norm])
@pytest.mark.usefixtures("always")
def test_running_statistics_move(norm: Callable[..., Stage]) -> None:
    """Once a call, by the statistics that are kept; and the gradients are those of the batch's."""
    moving = {"training": True} if norm is s.batch_norm else {"use_input_stats": True}
    chain = Chain(s.conv_transpose(2, "b"), norm("mean", "var", "w", "v", **moving), s.relu())
    problem = Problem.parse("n3 ci4 co6 i5x4 k3 s2 fp64")
    x, weight, operands = real(chain, problem, 0)
    operands["var"].abs_()
    learnt = {k: t for k, t in operands.items() if k not in chain.updates}
    leaves = [each.requires_grad_() for each in (x, weight, *learnt.values())]
    expected = {name: operands[name].clone() for name in chain.updates}
    assert keeping(chain, problem, None) is not None
    y = front.run(chain, problem, x, weight, operands)
    into = F.conv_transpose2d(x, weight, learnt["b"], stride=2)
    given = (expected["mean"], expected["var"], learnt["w"], learnt["v"])
    torchs = F.batch_norm if norm is s.batch_norm else F.instance_norm
    right = torchs(into, *given, True).relu()
    grad = torch.randn_like(y)
    every = zip(
        (y, operands["mean"], operands["var"], *torch.autograd.grad(y, leaves, grad)),
        (right, *expected.values(), *torch.autograd.grad(right, leaves, grad)),
        strict=True,
    )
    for found, wanted in every:
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_what_the_result_tells_is_not_kept() -> None:
    chain, problem = Chain(s.conv_transpose(2, "b"), s.leaky_relu(0.2)), Problem.parse(PROBLEM)
    assert keeping(chain, problem, None) is not None
    assert plan_backward(chain, problem).note.startswith("the result tells the derivative")
    x, weight, operands = real(chain, problem, 0)
    y = front.run(chain, problem, x, weight.requires_grad_(), operands)
    assert y.grad_fn is not None
    assert len(y.grad_fn.saved_tensors) == 3  # type: ignore[attr-defined]


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        return None


def test_no_zeros_are_filled_for_what_is_kept() -> None:
    problem = Problem.parse(PROBLEM)
    given = arguments(CHAIN, problem, real(CHAIN, problem, 0))
    given[1].requires_grad_()
    y = OPS.chain_keeping(*given, "cpu")[0]
    with torch.profiler.profile(record_shapes=True) as profile:
        torch.autograd.grad(y, given[1], torch.ones_like(y))
    filled = [each.input_shapes[0] for each in profile.events() if each.name == "aten::zero_"]
    assert list(problem.output().dims) not in filled
    Nothing.apply(OPS.chain_keeping(*given, "cpu")[0]).sum().backward()  # type: ignore[no-untyped-call]
    assert given[1].grad is None


def step(problem: Problem, wrapped: bool) -> tuple[Tensor, ...]:
    x, weight, operands = real(CHAIN, problem, 0)
    leaves = [each.requires_grad_() for each in (x, weight, *operands.values())]

    def call(x: Tensor, weight: Tensor) -> Tensor:
        return front.run(CHAIN, problem, x, weight, operands)

    y = checkpoint(call, x, weight, use_reentrant=False) if wrapped else call(x, weight)
    return torch.autograd.grad(y.square().sum(), leaves)


def test_checkpointing() -> None:
    problem = Problem.parse(PROBLEM)
    assert keeping(CHAIN, problem, None) is not None
    assert all(map(torch.equal, step(problem, False), step(problem, True)))


def test_a_graph_that_is_gone_over_twice() -> None:
    """What is kept is read, never written to."""
    problem = Problem.parse(PROBLEM)
    x, weight, operands = real(CHAIN, problem, 0)
    leaves = [each.requires_grad_() for each in (x, weight, *operands.values())]
    y = front.run(CHAIN, problem, x, weight, operands)
    first = torch.autograd.grad(y, leaves, torch.ones_like(y), retain_graph=True)
    some = torch.autograd.grad(y, leaves[1:2], torch.ones_like(y), retain_graph=True)
    again = torch.autograd.grad(y, leaves, torch.ones_like(y))
    assert all(map(torch.equal, first, again))
    torch.testing.assert_close(some[0], first[1])


@pytest.mark.parametrize("after", [s.relu(), s.sum("channels")], ids=str)
@pytest.mark.usefixtures("always")
def test_a_result_may_be_written_to(after: Stage) -> None:
    """As that of any call: it is no view."""
    chain = Chain(s.conv_transpose(2, "b"), s.group_norm(2, "w", "v"), s.silu(), after)
    problem = Problem.parse("n2 ci4 co6 i5x4 k3 s2 fp64")
    x, weight, operands = real(chain, problem, 0)
    y = front.run(chain, problem, x, weight.requires_grad_(), operands)
    (right,) = torch.autograd.grad(y.clone().mul_(3.0).sum(), weight, retain_graph=True)
    (found,) = torch.autograd.grad(y.mul_(3.0).sum(), weight)
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)


def test_only_what_is_wanted() -> None:
    problem = Problem.parse(PROBLEM)
    x, weight, operands = real(CHAIN, problem, 0)
    held = kept(CHAIN, problem)
    before = copy.deepcopy(held)
    generator = torch.Generator().manual_seed(1)
    grad, names = torch.randn(CHAIN.result(problem), generator=generator), ["input", "weight", "w"]
    every = gradients(CHAIN, problem, grad, x, weight, operands, names, held)
    for name in names:
        alone = gradients(CHAIN, problem, grad, x, weight, operands, [name], held)
        torch.testing.assert_close(alone[name], every[name])
    assert all(map(torch.equal, held, before))


def test_what_the_plan_says() -> None:
    problem = Problem.parse(PROBLEM)
    plan = plan_backward(CHAIN, problem)
    assert "the forward call keeps" in plan.note
    assert plan.flops == 2 * problem.flops()
    few = Problem.parse("n2 ci1 co8 i9x10 k1 s1")  # a product for each value: cheaper than memory
    chain = Chain(s.conv_transpose(2, "b"), s.silu())
    assert keeping(chain, few, None) is None
    assert "is computed again, not kept" in plan_backward(chain, few).note


def test_nothing_is_kept_of_linear_chains() -> None:
    chain = Chain(s.conv_transpose(2, "b"), s.add("t"), s.avg_pool(2))
    assert keeping(chain, Problem.parse(PROBLEM), None) is None
    assert kept(chain, Problem.parse(PROBLEM)) == []


def test_not_where_a_trace_is_made() -> None:
    """A trace holds for other sizes, too: it has the operation that keeps its tensors alone."""
    problem = Problem.parse(PROBLEM + " fp64")
    given = learning(CHAIN, arguments(CHAIN, problem, real(CHAIN, problem, 0)))
    opcheck(OPS.chain, given, test_utils="test_aot_dispatch_dynamic")
