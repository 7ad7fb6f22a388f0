"""``explain`` takes modules: what a call of one would do, with nothing computed or counted."""

import pytest
import torch

import transfuse
from transfuse import nn

X = torch.randn(2, 4, 5, 6)


def fused() -> nn.FusedConvTranspose:
    return nn.FusedConvTranspose(4, 8, 3, stride=2, then=[torch.nn.BatchNorm2d(8), torch.nn.ReLU()])


def test_a_layer() -> None:
    layer = nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1)
    with torch.no_grad():
        found = transfuse.explain(layer, X)
        same = transfuse.explain(
            transfuse.conv_transpose2d, X, layer.weight, layer.bias, stride=2, padding=1
        )
    assert str(found) == str(same)


def test_a_chain_counts_no_batch() -> None:
    layer = fused()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    with torch.no_grad():
        found = transfuse.explain(layer, X)
    assert "batch_norm(batch, running_mean=batch_norm.running_mean" in str(found.chain)
    for name, tensor in layer.state_dict().items():
        assert tensor.equal(before[name])


@pytest.mark.parametrize("device", ["cpu", "cuda:sm90"])
def test_on_another_device(device: str) -> None:
    for layer in (fused(), nn.ConvTranspose3dMaxMaxSum(4, 8, 3)):
        x = torch.empty(2, 4, *(9,) * layer.rank, device="meta")
        with torch.no_grad():
            found = transfuse.explain(layer, x, device=device)
        assert found.problem.device == device
        assert not layer.weight.is_meta
