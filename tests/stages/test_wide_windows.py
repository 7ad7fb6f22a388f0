"""Windows that 32 bits do not hold, which torch takes along one axis."""

import pytest
import torch
from torch import Tensor

import transfuse
from transfuse.stages import group_norm, max_pool

X, W = torch.randn(2, 2, 4), torch.randn(2, 4, 3)


def pooled(values: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """By the definition: each window cut to the values there are."""
    n = values.shape[-1]
    firsts = range(-padding, n + padding - kernel + 1, stride)
    return torch.stack(
        [values[..., max(0, at) : min(n, at + kernel)].amax(-1) for at in firsts], -1
    )


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [
        (2**40, 1, 2**39),
        (2**40, 3, 2**39),
        (2**40, 2**35, 2**39),
        (2**40 + 1, 1, 2**39),
        (2**33, 2, 2**32),
        (3, 2**40, 1),
        (9, 2**31, 0),
    ],
)
def test_behind_a_norm(kernel: int, stride: int, padding: int) -> None:
    """Behind a norm the pool is a walk of its own."""
    stages = [group_norm(2), max_pool(kernel, stride, padding)]
    found = transfuse.conv_transpose(X, W, stride=2, then=stages, backend="cpu")
    normed = transfuse.conv_transpose(X, W, stride=2, then=stages[:1], backend="cpu")
    assert found.equal(pooled(normed, kernel, stride, padding))
