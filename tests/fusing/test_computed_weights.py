"""Weights that are new at every call: nothing of it is checked, chosen or packed again."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import transfuse
from transfuse import front
from transfuse.backends.cpu import library, weights

built = pytest.mark.skipif(library.load() is None, reason="the compiled core is not installed")


class Expanded(nn.Module):
    """One kernel for all channels, as low-pass filters are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filter", torch.randn(1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.filter.expand(x.shape[1], -1, -1)
        return F.conv_transpose1d(x, kernel, stride=2, groups=x.shape[1]) * 2


MODELS = {
    "weight_norm": lambda: weight_norm(nn.ConvTranspose1d(8, 4, 4, stride=2, bias=False)),
    "expanded": Expanded,
}


@built
@pytest.mark.parametrize("name", MODELS)
def test_a_call_goes_straight_to_its_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = MODELS[name]().eval(), torch.randn(1, 8, 40)
    with torch.no_grad():
        expected = model(x)
        fused = transfuse.fuse(model, x)
        for _ in range(3):
            fused(x)

        def never(*args: Any, **kwargs: Any) -> Any:
            pytest.fail("checked or packed again")

        monkeypatch.setattr(front, "_compute", never)
        monkeypatch.setattr(weights, "_pack", never)
        for factor in (1, 2):
            torch.testing.assert_close(fused(factor * x), factor * expected, atol=1e-5, rtol=1e-5)


@built
def test_other_weights_are_seen() -> None:
    model, x = weight_norm(nn.ConvTranspose1d(8, 4, 4, stride=2)).eval(), torch.randn(1, 8, 40)
    fused = transfuse.fuse(model, x)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(
                fused(x), F.conv_transpose1d(x, model.weight, model.bias, stride=2)
            )
            model.parametrizations.weight.original1.mul_(1.5)
