"""Masks and integers beside floating point are converted, as torch's arithmetic converts them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse.maths import where
from transfuse.stages import Stage, add, cat, group_norm, maximum, pointwise, scale

X, W = (torch.randint(-3, 4, dims).float() for dims in ((2, 3, 5, 4), (3, 8, 3, 3)))
Y = F.conv_transpose2d(X, W)
MASK, COUNTS, PER_CHANNEL = Y > 0, torch.randint(-9, 9, Y.shape), torch.arange(8)
hidden = pointwise(lambda x, mask: where(mask != 0, x, -7))
CHAINS: dict[str, tuple[Stage, Tensor]] = {
    "mask": (scale(MASK), Y * MASK),
    "mask of positions": (scale(MASK[:1, :1]), Y * MASK[:1, :1]),
    "integers": (add(COUNTS), Y + COUNTS),
    "bytes": (maximum(COUNTS.to(torch.uint8)), torch.maximum(Y, COUNTS.to(torch.uint8))),
    "per channel": (add(PER_CHANNEL), Y + PER_CHANNEL.view(8, 1, 1)),
    "condition": (hidden(MASK), Y.where(MASK, -7)),
    "cat": (cat(MASK), torch.cat((Y, MASK), 1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["eager", "cpu"])
@pytest.mark.parametrize("name", CHAINS)
def test_as_in_torch(name: str, backend: str, dtype: torch.dtype) -> None:
    stage, expected = CHAINS[name]
    for _ in range(2):  # the second time the call is known
        y = transfuse.conv_transpose(X.to(dtype), W.to(dtype), then=[stage], backend=backend)
        assert y.equal(expected.to(dtype))


def test_gradient_beside_a_mask() -> None:
    x = X.clone().requires_grad_()
    transfuse.conv_transpose(x, W, then=[scale(MASK)]).sum().backward()
    theirs = X.clone().requires_grad_()
    (F.conv_transpose2d(theirs, W) * MASK).sum().backward()
    assert x.grad is not None
    assert theirs.grad is not None
    assert x.grad.equal(theirs.grad)


@pytest.mark.parametrize(
    ("bias", "then", "name"),
    [
        (PER_CHANNEL, [], "bias"),
        (None, [group_norm(2, PER_CHANNEL)], "group_norm.weight"),
        (None, [add(torch.ones(8).double())], "add.other"),
    ],
)
def test_what_torch_refuses(bias: Tensor | None, then: list[Stage], name: str) -> None:
    with pytest.raises(RuntimeError, match=f"input and {name} must have the same type"):
        transfuse.conv_transpose(X, W, bias, then=then)
