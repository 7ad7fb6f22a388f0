"""``torch.compile`` of a fused model: no graph breaks, the fused calls in the graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import transfuse
from tests.fusing import models
from tests.fusing.alike import drawn, expect_alike, made


class Kept:
    """A backend that runs graphs as they are, and counts the fused calls in them."""

    def __init__(self) -> None:
        torch._dynamo.reset()
        self.graphs: list[fx.Graph] = []

    def __call__(self, module: fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        self.graphs.append(module.graph)
        return module.forward

    def fused(self) -> list[int]:
        return [
            sum(str(node.target).startswith("transfuse.chain") for node in graph.nodes)
            for graph in self.graphs
        ]


@pytest.mark.parametrize(
    ("make", "dims", "count"),
    [
        (models.decoder, (1, 3, 4, 4), 2),
        (models.FreeCode, (1, 3, 4, 4), 1),
        pytest.param(models.Vocoder, (1, 4, 6), 2, marks=pytest.mark.long),
        pytest.param(models.Shared, (1, 2, 3, 3), 4, marks=pytest.mark.long),
    ],
)
def test_full_graphs(make: Callable[[], nn.Module], dims: tuple[int, ...], count: int) -> None:
    """In both modes of the same model, which was never called."""
    kept = Kept()
    fused, twin = transfuse.fuse(made(make)), made(make)
    compiled = torch.compile(fused, backend=kept, fullgraph=True)
    expect_alike(_Named(compiled, fused), twin, drawn(*dims))
    fused.eval()
    twin.eval()
    expect_alike(_Named(compiled, fused), twin, drawn(*dims))
    assert kept.fused() == [count, count]


class _Named(nn.Module):
    """A compiled model under the names of the one that it is compiled from."""

    def __init__(self, compiled: Callable[..., Any], model: nn.Module) -> None:
        super().__init__()
        vars(self).update(compiled=compiled, model=model)

    def forward(self, *args: Any) -> Any:
        return self.compiled(*args)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.named_buffers(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.model.zero_grad(set_to_none)


def test_attributes_that_change_are_guarded() -> None:
    class Alpha(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose1d(2, 2, 2, stride=2)
            self.alpha = 0.5

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.up(x) * self.alpha)

    kept = Kept()
    fused, twin = transfuse.fuse(made(Alpha)), made(Alpha)
    compiled = torch.compile(fused, backend=kept, fullgraph=True)
    x = drawn(1, 2, 5)
    for alpha in (0.5, 2.0, 0.5):
        fused.alpha = twin.alpha = alpha
        assert torch.allclose(compiled(x), twin(x), atol=1e-12)


@pytest.mark.parametrize("early", [False, True])
def test_submodules_that_change_are_guarded(early: bool) -> None:
    fused, twin = transfuse.fuse(made(_small)), made(_small)
    compiled = torch.compile(fused, backend=Kept(), fullgraph=True)
    x = drawn(1, 2, 5)
    if not early:
        compiled(x)
    torch.manual_seed(5)
    fused[0] = twin[0] = nn.ConvTranspose1d(2, 2, 3, stride=3).double()
    assert torch.allclose(compiled(x), twin(x), atol=1e-12)


def test_hooks_are_in_the_graph() -> None:
    fused, twin = transfuse.fuse(made(_small)), made(_small)
    for model in (fused, twin):
        model[1].register_forward_hook(lambda module, args, y: y * 2)
    compiled = torch.compile(fused, backend=Kept(), fullgraph=True)
    assert torch.allclose(compiled(drawn(1, 2, 5)), twin(drawn(1, 2, 5)), atol=1e-12)


def _small() -> nn.Module:
    return nn.Sequential(nn.ConvTranspose1d(2, 2, 2, stride=2), nn.ReLU())


def test_sizes_that_decide(caplog: pytest.LogCaptureFixture) -> None:
    """Fused where an example or a call has been before; else as it was written, and told."""
    x, other = drawn(1, 2, 9, 9), drawn(1, 2, 8, 8)
    fused = transfuse.fuse(made(models.UNet, training=False), x)
    twin = made(models.UNet, training=False)
    kept = Kept()
    compiled = torch.compile(fused, backend=kept, fullgraph=True)
    assert torch.allclose(compiled(x), twin(x), atol=1e-12)
    assert kept.fused() == [2]
    assert "as it was written" not in caplog.text
    assert torch.allclose(compiled(other), twin(other), atol=1e-12)
    assert "torch.compile has UNet as it was written" in caplog.text
    fused(other)
    torch._dynamo.reset()
    assert torch.allclose(compiled(other), twin(other), atol=1e-12)
    assert kept.fused()[-1] == 2


@pytest.mark.long
def test_dynamic_lengths_compile_once() -> None:
    kept = Kept()
    fused, twin = transfuse.fuse(made(models.Vocoder)), made(models.Vocoder)
    compiled = torch.compile(fused, backend=kept, fullgraph=True, dynamic=True)
    for length in (6, 9, 14):
        assert torch.allclose(compiled(drawn(2, 4, length)), twin(drawn(2, 4, length)), atol=1e-12)
    assert kept.fused() == [2]


def test_export() -> None:
    fused, twin = transfuse.fuse(made(models.decoder, False)), made(models.decoder, False)
    x = drawn(1, 3, 4, 4)
    for strict in (True, False):
        program = torch.export.export(fused, (x,), strict=strict)
        assert torch.allclose(program.module()(x), twin(x), atol=1e-12)
        names = [str(node.target) for node in program.graph.nodes]
        assert sum("transfuse" in name for name in names) == 2


def test_classes_of_models_do_not_use_up_each_others_compilations() -> None:
    kept = Kept()
    with torch._dynamo.config.patch(recompile_limit=1):
        for make in (models.decoder, models.FreeCode):
            fused = transfuse.fuse(made(make))
            torch.compile(fused, backend=kept, fullgraph=True)(drawn(1, 3, 4, 4))
    assert kept.fused() == [2, 1]
