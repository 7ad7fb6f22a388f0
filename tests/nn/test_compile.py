"""Modules inside ``torch.compile``: one graph, in training too, and none anew without need."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import Module
from torch.nn.utils.parametrizations import spectral_norm

from tests.nn.beside import near, stepped
from transfuse import nn, stages

MODULES: dict[str, Callable[[], Module]] = {
    "layer": lambda: nn.ConvTranspose2d(4, 8, 3, stride=2),
    "fused": lambda: nn.FusedConvTranspose(
        4, 8, 3, stride=2, before=[torch.nn.LeakyReLU(0.2)],
        then=[torch.nn.BatchNorm2d(8), stages.scale(torch.nn.Parameter(torch.ones(8)))],
    ),
    "operator": lambda: nn.ConvTranspose2dSoftmaxBiasaddScalingSigmoid(
        4, 8, 3, scaling_factor=2.0, stride=2
    ),
    "spectral norm": lambda: spectral_norm(nn.ConvTranspose2d(4, 8, 3)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.long
@pytest.mark.parametrize("name", MODULES)
def test_one_graph(name: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]().double()
    other = copy.deepcopy(module)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
        assert near(stepped(module, x, compiled), stepped(other, x))
    for key, tensor in other.state_dict().items():
        assert (module.state_dict()[key] - tensor).abs().max() <= 1e-12
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    if name == "fused":
        module.eval(), other.eval()
        assert near(stepped(module, x, compiled), stepped(other, x))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
