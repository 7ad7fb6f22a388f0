"""torch.compile with the backend, and torch.compile and torch.export over a rewritten graph."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

from tests.fusing.captured import close, fused, gradients
from transfuse.fusing import compiling
from transfuse.fusing.compiling import transfuse
from transfuse.fusing.rewriting import fuse_graph


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Decoder(nn.Module):
    """Norm in place, a gate, a skip: all that a decoder's layer has."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(3, 5, 2, stride=2)
        self.norm = nn.BatchNorm2d(5)
        self.act = nn.LeakyReLU(0.2, inplace=True)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        y = self.act(self.norm(self.up(F.relu(x))))
        y = y * torch.sigmoid(y)
        return torch.cat([y, skip], 1)


def made() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = Decoder().double()
    return model, deepcopy(model)


def inputs(size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(size)
    sizes = ((6, 3, size, size + 1), (6, 2, 2 * size, 2 * size + 2))
    return [torch.randn(each, dtype=torch.float64, generator=generator) for each in sizes]


class Recorded:
    """The backend's graphs, run by AOT autograd without inductor, and what they call."""

    def __init__(self) -> None:
        self.called: list[list[str]] = []

    def __call__(self, graph: fx.GraphModule, given: list[Tensor]) -> Callable[..., Any]:
        fuse_graph(graph.graph, graph)
        graph.recompile()

        def keep(lowered: fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
            names = [str(node.target) for node in lowered.graph.nodes if node.op == "call_function"]
            self.called.append([name for name in names if name.startswith("transfuse.")])
            from functorch.compile import make_boxed_func

            return make_boxed_func(lowered.forward)

        compiled: Callable[..., Any] = aot_autograd(fw_compiler=keep)(graph, given)
        return compiled


def test_one_operation_for_all_sizes_forward_and_backward() -> None:
    model, compiled = made()
    recorded = Recorded()
    call = torch.compile(compiled, backend=recorded, fullgraph=True, dynamic=True)
    for size in (7, 9, 12):
        expected, of_expected = gradients(model, inputs(size))
        found, _ = gradients(call, inputs(size))
        close(expected, found)
        close(of_expected[2:], [each.grad for each in compiled.parameters()])
        for one, other in zip(model.buffers(), compiled.buffers(), strict=True):
            close(one, other)
    assert recorded.called == [
        ["transfuse.chain_updating.default"],
        ["transfuse.chain_backward.default"],
    ]
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_in_evaluation_it_is_one_pure_operation() -> None:
    model, compiled = (each.eval() for each in made())
    recorded = Recorded()
    with torch.no_grad():
        call = torch.compile(compiled, backend=recorded, fullgraph=True)
        close(model(*inputs(7)), call(*inputs(7)))
    assert recorded.called == [["transfuse.chain.default"]]


@pytest.mark.parametrize("training", [True, False])
def test_a_rewritten_graph_compiles_into_one_operation(training: bool) -> None:
    def decoder(x: Tensor, w: Tensor, mean: Tensor, var: Tensor, skip: Tensor) -> Tensor:
        y = F.conv_transpose2d(F.relu(x), w, None, 2)
        y = F.batch_norm(y, mean, var, None, None, training)
        return torch.cat([y * torch.sigmoid(y), skip], 1)

    before, after, _ = fused(decoder)
    called: list[str] = []

    def keep(graph: fx.GraphModule, given: list[Tensor]) -> Callable[..., Any]:
        called.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    call = torch.compile(after, backend=keep, fullgraph=True, dynamic=True)
    weight = torch.randn(3, 5, 2, 2, dtype=torch.float64)
    for size in (7, 9, 12):
        x, skip = inputs(size)
        pairs = [[torch.zeros(5).double(), torch.ones(5).double()] for _ in range(2)]
        close(before(x, weight, *pairs[0], skip), call(x, weight, *pairs[1], skip))
        close(*pairs)
    name = "transfuse.chain_updating" if training else "transfuse.chain"
    assert [each for each in called if each.startswith("transfuse.")] == [name]
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("rewritten", [True, False])
def test_under_autocast_the_result_has_torchs_type(rewritten: bool) -> None:
    """The factor of float32 makes the values so, though the convolution's are of 16 bits."""

    def decoder(x: Tensor, w: Tensor, gain: Tensor) -> Tensor:
        return F.relu(F.conv_transpose2d(x, w, None, 2)) * gain

    before, after, _ = fused(decoder)
    recorded = Recorded()
    call = torch.compile(
        after if rewritten else before, backend=recorded, fullgraph=True, dynamic=True
    )
    for size in (7, 9):
        given = torch.randn(6, 3, size, 5), torch.randn(3, 4, 2, 2), torch.randn(4, 1, 1)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            expected, found = before(*given), call(*given)
        assert expected.dtype == found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    assert recorded.called == [["transfuse.chain.default"]]
    assert counters["stats"]["unique_graphs"] == 1


def test_a_rewritten_graph_is_exported() -> None:
    model, _ = made()
    x, skip = inputs(7)

    def decoder(x: Tensor, w: Tensor, skip: Tensor) -> Tensor:
        return torch.cat([F.gelu(F.conv_transpose2d(x, w, None, 2)), skip], 1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = model.up
            self.decoder = fused(decoder)[1]

        def forward(self, x: Tensor, skip: Tensor) -> Tensor:
            result: Tensor = self.decoder(x, self.up.weight, skip)
            return result

    exported = torch.export.export(Model(), (x, skip))
    names = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert names == ["transfuse.chain.default"]
    close(exported.module()(x, skip), decoder(x, model.up.weight, skip))


def test_torch_finds_the_backend_by_its_name() -> None:
    """Through the entry point of the installed package: nothing of it need be imported."""
    (found,) = entry_points(group="torch_dynamo_backends", name="transfuse")
    assert found.load() is transfuse


def test_mode_and_options_are_inductors(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx, list_mode_options

    given: dict[str, Any] = {}

    def keep(graph: fx.GraphModule, given_inputs: Any, config_patches: Any) -> fx.GraphModule:
        given.update(config_patches)
        return graph

    monkeypatch.setattr(compile_fx, "compile_fx", keep)
    graph = fx.symbolic_trace(nn.ReLU())
    compiling.transfuse(graph, [], mode="max-autotune", options={"epilogue-fusion": False})
    assert given == {**list_mode_options("max-autotune"), "epilogue_fusion": False}


@pytest.mark.long
def test_with_inductor_values_gradients_and_statistics_are_torchs() -> None:
    model, compiled = made()
    call = torch.compile(compiled, backend="transfuse", fullgraph=True, dynamic=True)
    for size in (7, 9):
        expected, of_expected = gradients(model, inputs(size))
        found, _ = gradients(call, inputs(size))
        close(expected, found)
        close(of_expected[2:], [each.grad for each in compiled.parameters()])
        for one, other in zip(model.buffers(), compiled.buffers(), strict=True):
            close(one, other)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.long
def test_a_graph_without_transposed_convolutions_is_inductors() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(3, 4)
    call = torch.compile(model, backend="transfuse", fullgraph=True)
    torch.testing.assert_close(call(x), model(x))
