"""Gradients behind max windows on a GPU: exact on integers, the same bits again, also captured."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse.gradients import plan_backward
from transfuse.operators import OPERATORS
from transfuse.problem import Problem

SLUG = "conv-transpose3d-max-max-sum"


def tensors(cuda: torch.device, dtype: torch.dtype, seed: int) -> list[Tensor]:
    made = torch.Generator(device=cuda).manual_seed(seed)
    sizes = (2, 32, 12, 13, 14), (32, 24, 5, 5, 5), (24,), (2, 1, 3, 4, 4)
    return [torch.randint(-2, 3, each, generator=made, device=cuda).to(dtype) for each in sizes]


def step(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    leaves = [each.detach().requires_grad_() for each in (x, weight, bias)]
    y = transfuse.conv_transpose3d_max_max_sum(*leaves, stride=2, padding=2)
    return torch.autograd.grad(y, leaves, grad)


def expected(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    leaves = [each.double().requires_grad_() for each in (x, weight, bias)]
    y = F.conv_transpose3d(*leaves, stride=2, padding=2)
    y = F.max_pool3d(F.max_pool3d(y, 2), 3).sum(1, keepdim=True)
    return torch.autograd.grad(y, leaves, grad.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True])
def test_step(
    dtype: torch.dtype, last: bool, cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    given = tensors(cuda, dtype, 0)
    if last:
        given[0] = given[0].contiguous(memory_format=torch.channels_last_3d)
    first, second = step(*given), step(*given)
    for found, again, right in zip(first, second, expected(*given), strict=True):
        assert torch.equal(found, again)
        assert torch.equal(found, right.to(dtype))


def test_it_is_by_winners() -> None:
    chain = OPERATORS[SLUG].chain
    for each in ("fp32 tf32", "bf16"):
        problem = Problem.parse(f"n2 ci32 co24 i12x13x14 k5 s2 p2 {each} cuda:sm90")
        assert "have a gradient" in plan_backward(chain, problem).note


def test_captured(cuda: torch.device) -> None:
    """A graph cannot ask whether values are finite: its gradients are dense, of any values."""
    given = tensors(cuda, torch.float32, 0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(*given)
    for seed in (1, 2):
        for tensor, value in zip(given, tensors(cuda, torch.float32, seed), strict=True):
            tensor.copy_(value)
        graph.replay()
        for each, right in zip(found, expected(*given), strict=True):
            torch.testing.assert_close(each.double(), right, rtol=1e-5, atol=1e-3)
