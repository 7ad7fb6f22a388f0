"""Traces of calls on CUDA tensors, which no GPU is needed for: whole, with the class in them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import transfuse
from transfuse.stages import group_norm, max_pool, sigmoid


class Plain(nn.Module):
    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return transfuse.conv_transpose2d(x, w, stride=2)


class Stages(nn.Module):
    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        then = [sigmoid(), group_norm(2), max_pool(2)]
        return transfuse.conv_transpose(x, w, stride=2, then=then)


@pytest.mark.parametrize("make", [Plain, Stages])
@pytest.mark.parametrize(
    ("dtype", "tf32", "precision"),
    [
        (torch.float32, True, "tf32"),
        (torch.float32, False, "ieee"),
        (torch.float16, True, "ieee"),
    ],
)
def test_one_operation(
    make: Callable[[], nn.Module],
    dtype: torch.dtype,
    tf32: bool,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch cannot trace how it reads its own setting of tf32, nor has ``meta`` any."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    with FakeTensorMode():
        x = torch.empty(2, 8, 5, 6, device="cuda", dtype=dtype)
        w = torch.empty(8, 4, 3, 3, device="cuda", dtype=dtype)
        graph = torch.export.export(make(), (x, w), strict=True).graph
    calls: list[Any] = [node for node in graph.nodes if node.op == "call_function"]
    assert [str(node.target) for node in calls] == ["transfuse.chain.default"]
    assert precision in calls[0].args
    assert calls[0].meta["val"].device.type == "cuda"
