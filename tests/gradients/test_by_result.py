"""Gradients that the result tells: the convolution is not computed again."""

import pytest
import torch

import transfuse
from transfuse import recorded
from transfuse import stages as s
from transfuse.chain import Chain
from transfuse.gradients import plan_backward, told
from transfuse.maths.expr import X, parse
from transfuse.maths.expr import name as symbol
from transfuse.maths.primitives import InTorch, derivative
from transfuse.problem import Problem
from transfuse.reverse.by_result import by_result

PROBLEM = Problem.parse("n2 ci4 co6 i5x6 k3 s2 p1 fp32 cpu")
TOLD = {
    "relu": "where(x + b <= 0, 0, x + b)",
    "leaky": "where(0 < x + b, x + b, 0.2 * (x + b))",
    "mirrored": "where(x < 0, x, x * 3.0)",
    "tanh": "tanh(x + b)",
    "exp": "exp(x)",
}
NOT_TOLD = {
    "slope of another sign": "where(0 < x, x, -0.2 * x)",
    "slope unknown": "where(0 < x, x, b * x)",
    "may become 0 where it is not": "where(x < 0, 0.5 * x, x)",
    "another threshold": "where(x <= 1, 0, x)",
    "another part": "where(x + b <= 0, 0, x)",
    "behind": "tanh(x) * 2.0",
    "sigmoid": "x * sigmoid(x)",
}


@pytest.mark.parametrize("text", TOLD.values(), ids=TOLD)
def test_what_the_result_tells(text: str) -> None:
    whole, values = parse(text), torch.tensor([-3.0, -1e-45, -0.0, 0.0, 1e-45, 2.0, torch.nan])
    change = derivative(whole, "x")
    found = by_result(change, whole, symbol("y"))
    assert X not in found.walk()
    given = {"x": values, "b": 0.0}
    y = InTorch(whole)(given, values)
    expected, got = InTorch(change)(given, values), InTorch(found)({"y": y}, values)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("text", NOT_TOLD.values(), ids=NOT_TOLD)
def test_what_it_does_not(text: str) -> None:
    whole = parse(text)
    assert X in by_result(derivative(whole, "x"), whole, symbol("y")).walk()


def test_which_chains() -> None:
    conv = s.conv_transpose(2, "c")
    for stage in (s.relu(), s.leaky_relu(0.2), s.tanh()):
        chain = Chain(conv, s.add("b"), stage)
        assert told(chain, PROBLEM, None)
        plan = plan_backward(chain, PROBLEM)
        assert plan.flops == 2 * PROBLEM.flops()
        assert "nothing is computed again" in plan.note
    # Nothing to tell, values before it are read, it was rounded.
    assert not told(Chain(conv, s.add("b")), PROBLEM, None)
    assert not told(Chain(conv, s.scale("b"), s.relu()), PROBLEM, None)
    for stage in (s.sigmoid(), s.softsign(), s.silu()):  # the result says a part of it
        assert not told(Chain(conv, stage), PROBLEM, None)
    rounded = Problem.parse("n2 ci4 co6 i5x6 k3 s2 p1 bf16 cpu")
    assert not told(Chain(conv, s.relu()), rounded, None)


def step(change: str = "") -> tuple[list[torch.Tensor], list[bool]]:
    """The gradients of a call, and of each pass back whether it was by the result."""
    generator = torch.Generator().manual_seed(0)
    x, w, b = (
        torch.randn(dims, generator=generator).requires_grad_()
        for dims in ((2, 4, 5, 6), (4, 6, 3, 3), (6,))
    )
    seen = []
    of = recorded.Learned.backward

    def backward(self, wanted, result, *rest):  # type: ignore[no-untyped-def]
        seen.append(result is not None)
        return of(self, wanted, result, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded.Learned, "backward", backward)
        y = transfuse.conv_transpose(x, w, b, stride=2, then=[s.leaky_relu(0.2)])
        grad = torch.randn(y.shape, generator=generator)
        if change == "written to":
            with torch.no_grad():
                y.neg_()
        if change == "twice":
            torch.autograd.grad(y, [x, w, b], grad, retain_graph=True)
        return list(torch.autograd.grad(y, [x, w, b], grad)), seen


def test_a_result_that_is_written_to_is_not_read() -> None:
    (expected, plain), (found, changed), (again, twice) = step(), step("written to"), step("twice")
    assert (plain, changed, twice) == ([True], [False], [True, False])
    for each in zip(expected, found, again, strict=True):
        torch.testing.assert_close(each[1], each[0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(each[2], each[0], rtol=1e-6, atol=1e-6)


def test_hooks_for_saved_tensors_see_all_that_is_kept() -> None:
    with torch.autograd.graph.save_on_cpu():
        found, seen = step()
    assert seen == [False]
    for one, other in zip(found, step()[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
