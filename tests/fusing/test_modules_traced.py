"""Every module of torch's that means a stage, traced through: its function joins the chain."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import Module

from tests.fusing.captured import never_unfused, same
from tests.nn.test_torch_modules import CHANNELS, ROWS_TRIED
from transfuse.fusing.rewriting import fuse_graph
from transfuse.nn.torch_modules import RANKS

TRIED = [make for make in ROWS_TRIED if getattr(make(), "momentum", 0.1) is not None]
"""All but a batch norm whose momentum is a value that each call computes anew."""


class Through(fx.Tracer):
    """Traces through torch's own modules, which ask values for their number of axes."""

    proxy_buffer_attributes = True

    def __init__(self, axes: int) -> None:
        super().__init__()
        self.axes = axes

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        return False

    def to_bool(self, obj: fx.Proxy) -> bool:
        return False  # an instance norm asks whether there are others than its channels

    def proxy(self, node: fx.Node) -> fx.Proxy:
        axes = self.axes

        class Value(fx.Proxy):
            def dim(self) -> int:
                return axes

        return Value(node, self)


def after_a_layer(module: Module) -> tuple[fx.GraphModule, list[Any]]:
    rank = RANKS.get(type(module), 2)
    up = getattr(nn, f"ConvTranspose{rank}d")(3, CHANNELS, 3, stride=2)
    sizes = {1: (4,), 2: (4, 3), 3: (3, 3, 3)}[rank]
    model = nn.Sequential(up, module).double()
    tracer = Through(rank + 2)
    graph = tracer.trace(model)
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, 3, *sizes, dtype=torch.float64, generator=generator)
    return fx.GraphModule(tracer.root, graph), [x]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", TRIED, ids=lambda make: str(make()))
def test_a_module_traced_through_joins(make: Callable[[], Module], training: bool) -> None:
    module = make()
    before, inputs = after_a_layer(module.train(training))
    before.train(training)
    after = deepcopy(before)
    (site,) = fuse_graph(after.graph, after)
    after.recompile()
    assert site.why == "its result is returned"
    assert len(site.operations) == 1 + (type(module) is not nn.Identity)
    never_unfused(after, site)
    # In these two torch multiplies gradients of float64 by a constant of float32.
    same(before, after, inputs, 1e-6 if isinstance(module, nn.CELU | nn.Hardsigmoid) else 1e-11)
