"""Calls with gradients: by the dispatcher where torch looks, a shorter way where it does not."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import transfuse
from tests.test_host_cost import counted
from transfuse import dispatch, front
from transfuse.backends.eager import Eager
from transfuse.errors import Declined
from transfuse.stages import batch_norm, relu

X, W, B = (torch.randn(dims).double() for dims in ((2, 3, 5, 4), (3, 4, 3, 3), (4,)))


def leaves() -> tuple[Tensor, Tensor, Tensor]:
    x, w, b = (each.clone().requires_grad_() for each in (X, W, B))
    return x, w, b


def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return transfuse.conv_transpose2d(x, w, b, stride=2)


def gradients(function: Callable[..., Tensor]) -> list[Tensor]:
    given = leaves()
    y = function(*given)
    return list(torch.autograd.grad(y, given, torch.cos(y.detach())))


def operations(step: Callable[[], object]) -> set[str]:
    """Those of this package that the profiler names."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    return {each.key for each in seen.key_averages() if each.key.startswith("transfuse::")}


def test_the_profiler_sees_operations() -> None:
    assert operations(lambda: gradients(ours)) == {"transfuse::chain", "transfuse::chain_backward"}


def test_a_forward_call_that_the_profiler_missed() -> None:
    given = leaves()
    y = ours(*given)
    found = operations(lambda: torch.autograd.grad(y.sum(), given))
    assert found == {"transfuse::chain_backward"}


def test_a_small_step_enters_few_functions() -> None:
    """What the dispatcher's operations read their arguments by is not among them."""
    given = leaves()
    for _ in range(3):
        torch.autograd.grad(ours(*given).sum(), given)
    found = counted(lambda: ours(*given))
    assert found.total() <= 40, found
    y, one = ours(*given), torch.ones((2, 4, 11, 9)).double()
    torch.autograd.set_multithreading_enabled(False)
    try:
        back = counted(lambda: torch.autograd.grad(y, given, one))
    finally:
        torch.autograd.set_multithreading_enabled(True)
    assert back.total() <= 130, back
    assert not {name for name in found | back if name.startswith("Options.")}


@pytest.mark.parametrize("innermost", [False, True])
def test_gradients_lie_as_their_tensors_do(innermost: bool) -> None:
    form = torch.channels_last if innermost else torch.contiguous_format
    x, w, b = leaves()
    given = x.detach().to(memory_format=form).requires_grad_(), w, b
    found = torch.autograd.grad(ours(*given).square().sum(), given)
    right = torch.autograd.grad(F.conv_transpose2d(x, w, b, stride=2).square().sum(), (x, w, b))
    for gradient, tensor, expected in zip(found, given, right, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)
        assert gradient.stride() == tensor.stride()


def test_statistics_that_move_before_gradients_are_asked_for() -> None:
    mean, var = torch.zeros(4).double(), torch.ones(4).double()

    def normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        stages = [batch_norm(mean, var, training=True), relu()]
        return transfuse.conv_transpose(x, w, b, stride=2, then=stages)

    def in_torch(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = F.conv_transpose2d(x, w, b, stride=2)
        return F.relu(F.batch_norm(y, mean.clone(), var.clone(), training=True))

    def twice(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = normed(x, w, b)
        normed(x, w, b)
        return y

    for found, right in zip(gradients(twice), gradients(in_torch), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


class Declining:
    """A backend that finds out when it is about to run that it cannot."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.declined = inner, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def verdict(self, *given: Any) -> Any:
        return Eager().verdict(*given) if not self.declined else dispatch.Verdict(False, "declined")

    def prepare(self, *given: Any) -> Any:
        def run(x: Tensor, w: Tensor, operands: Mapping[str, Tensor], out: Any = None) -> Tensor:
            self.declined = True
            raise Declined("not after all")

        return run


def test_a_backend_that_declines_has_no_part_in_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = next(each for each in dispatch.BACKENDS if each.name == "cpu")
    declining = Declining(cpu)
    monkeypatch.setattr(dispatch, "BACKENDS", (declining, *dispatch.BACKENDS))
    front._checked.clear()
    found = gradients(ours)
    assert declining.declined
    expected = gradients(lambda *given: F.conv_transpose2d(*given, stride=2))
    for each, right in zip(found, expected, strict=True):
        torch.testing.assert_close(each, right, rtol=1e-12, atol=1e-12)
