"""weight_norm, spectral_norm, pruning: the weight is computed anew for each call, and trains."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn as theirs
from torch.nn import Module
from torch.nn.utils import parametrize, prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from tests.nn.beside import near, stepped
from transfuse import nn

PARAMETRIZATIONS: dict[str, Callable[[Module], Module]] = {
    "weight_norm": weight_norm,
    "weight_norm by output": lambda module: weight_norm(module, dim=1),
    "spectral_norm": spectral_norm,
    "both": lambda module: spectral_norm(weight_norm(module)),
    "pruned": lambda module: prune.l1_unstructured(module, "weight", 0.5),
}


class Double(Module):
    def forward(self, bias: Any) -> Any:
        return 2 * bias


PARAMETRIZATIONS["bias"] = lambda module: parametrize.register_parametrization(
    module, "bias", Double()
)


def pair(fused: bool) -> tuple[Module, Module]:
    options = {"stride": 2, "padding": 1, "dtype": torch.float64}
    torch.manual_seed(1)
    one = (
        nn.FusedConvTranspose(4, 8, (3, 3), then=[theirs.ReLU(), theirs.AvgPool2d(2)], **options)
        if fused
        else nn.ConvTranspose2d(4, 8, 3, **options)
    )
    other = theirs.ConvTranspose2d(4, 8, 3, **options)
    other.load_state_dict(one.state_dict())
    return one, other


@pytest.mark.parametrize("fused", [False, True], ids=["layer", "fused"])
@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_trains_as_torchs(name: str, fused: bool) -> None:
    """spectral_norm knows by the class which axis has the outputs, and begins at random."""
    modules = []
    for each in pair(fused):
        torch.manual_seed(4)
        modules.append(PARAMETRIZATIONS[name](each))
    ours, plain = modules
    after = theirs.Sequential(plain, theirs.ReLU(), theirs.AvgPool2d(2)) if fused else plain
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (ours, after)]
    for _ in range(3):
        x = torch.randn(3, 4, 5, 4, dtype=torch.float64)
        assert near(stepped(ours, x), stepped(after, x))
        for each in optimizers:
            each.step()
    assert list(ours.state_dict()) == list(plain.state_dict())
    for name, tensor in plain.state_dict().items():
        assert (ours.state_dict()[name] - tensor).abs().max() <= 1e-11
    with torch.no_grad():
        assert (ours.eval()(x) - after.eval()(x)).abs().max() <= 1e-11


@pytest.mark.parametrize("fused", [False, True], ids=["layer", "fused"])
def test_removed_it_is_a_layer_again(fused: bool) -> None:
    ours, _ = pair(fused)
    kind = type(ours)
    weight_norm(ours)
    x = torch.randn(3, 4, 5, 4, dtype=torch.float64)
    right = ours(x)
    assert type(ours) is not kind
    parametrize.remove_parametrizations(ours, "weight")
    assert type(ours) is kind
    assert (ours(x) - right).abs().max() <= 1e-12
    with parametrize.cached():
        assert ours(x).equal(ours(x))
