"""Norms that models write by hand become the stages that they are; others stay what they are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transfuse
from tests.fusing.captured import fused, never_unfused, same


def layer_norm_2d(y: Tensor) -> Tensor:
    """As in SAM's mask decoder and ConvNeXt."""
    u = y.mean(1, keepdim=True)
    s = (y - u).pow(2).mean(1, keepdim=True)
    return (y - u) / torch.sqrt(s + 1e-6)


def by_square(y: Tensor) -> Tensor:
    centred = y - torch.mean(y, dim=(1,), keepdim=True)
    return centred * torch.rsqrt(1e-3 + centred.square().mean(dim=[-3], keepdim=True))


def instance_norm(y: Tensor) -> Tensor:
    d = y - y.mean((2, 3), keepdim=True)
    return d * (1 / torch.sqrt((d * d).mean((2, 3), keepdim=True) + 1e-5))


def over_a_sample(y: Tensor) -> Tensor:
    d = y - y.mean((1, 2, 3), True)
    return d / ((d**2).mean((1, 2, 3), True) + 1e-5).sqrt()


def pixel_norm(y: Tensor) -> Tensor:
    """As in progressively grown GANs."""
    return y / torch.sqrt(torch.mean(y**2, dim=1, keepdim=True) + 1e-8)


NORMS = {
    layer_norm_2d: "layer_norm(channels, eps=1e-06)",
    by_square: "layer_norm(channels, eps=0.001)",
    instance_norm: "instance_norm",
    over_a_sample: "group_norm(1)",
    pixel_norm: "rms_norm(channels, eps=1e-08)",
}


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.__name__)
def test_a_norm_by_hand_is_the_stage(norm: Callable[[Tensor], Tensor]) -> None:
    def decoder(x: Tensor, w: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = norm(F.conv_transpose2d(x, w, None, 2))
        return F.gelu(weight[:, None, None] * y + bias[:, None, None])

    before, after, (site,) = fused(decoder)
    assert site.chain is not None
    assert str(site.chain.epilogue[0]) == NORMS[norm]
    assert site.why == "its result is returned"
    never_unfused(after, site)
    drawn = torch.Generator().manual_seed(2)
    sizes: list[Any] = [(2, 3, 4, 4), (3, 6, 2, 2), (6,), (6,)]
    given = [torch.randn(each, dtype=torch.float64, generator=drawn) for each in sizes]
    same(before, after, given)


def other_mean(y: Tensor) -> Tensor:
    """The deviation is from 0, the values are from their mean."""
    return (y - y.mean(1, True)) / torch.sqrt(y.square().mean(1, True) + 1e-6)


def mean_of_another(y: Tensor) -> Tensor:
    u = F.relu(y).mean(1, keepdim=True)
    return (y - u) / torch.sqrt((y - u).square().mean(1, True) + 1e-6)


def other_axes(y: Tensor) -> Tensor:
    u = y.mean(1, keepdim=True)
    return (y - u) / torch.sqrt((y - u).square().mean((2, 3), True) + 1e-6)


def without_root(y: Tensor) -> Tensor:
    u = y.mean(1, keepdim=True)
    return (y - u) / ((y - u).square().mean(1, True) + 1e-6)


def excited(y: Tensor) -> Tensor:
    return y * torch.sigmoid(y.mean((2, 3), True))


@pytest.mark.parametrize(
    "function", [other_mean, mean_of_another, other_axes, without_root, excited]
)
def test_what_is_no_norm_stays(function: Callable[[Tensor], Tensor]) -> None:
    def decoder(x: Tensor, w: Tensor) -> Tensor:
        return function(F.conv_transpose2d(x, w, None, 2))

    before, after, (site,) = fused(decoder)
    assert site.operations == ("conv_transpose2d",)
    assert "chains that share a convolution's result are out of scope" in site.why
    same(before, after, [torch.randn(2, 3, 4, 4).double(), torch.randn(3, 6, 2, 2).double()])


class LayerNorm2d(nn.Module):
    """As SAM and ConvNeXt have it: a module, whose tensors are given axes when they are read."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.randn(channels)) for _ in range(2))

    def forward(self, y: Tensor) -> Tensor:
        return self.weight[:, None, None] * layer_norm_2d(y) + self.bias[:, None, None]


def test_a_module_that_is_a_norm_by_hand_is_no_obstacle() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 2), LayerNorm2d(4), nn.GELU()).double()
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    quick = transfuse.fuse(model, x)
    (row,) = quick.explain().rows
    assert row.chain is not None
    assert "layer_norm(channels, eps=1e-06)" in row.chain
    assert row.chain.endswith("gelu_erf")
    torch.testing.assert_close(quick(x), model(x))
    found = []
    for each in (model, quick):  # of the same parameters
        each.zero_grad()
        each(x).square().sum().backward()
        found.append([parameter.grad for parameter in each.parameters()])
    torch.testing.assert_close(*found)
