"""Graphs for the matcher: captured from functions, with example values or without."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, fx, nn

from transfuse.fusing.rewriting import Site, fuse_graph


class Examples(fx.Interpreter):
    """Runs a graph and keeps what every operation gives as its example value."""

    def run_node(self, n: fx.Node) -> Any:
        found = super().run_node(n)
        n.meta["example_value"] = found.detach() if isinstance(found, Tensor) else found
        return found


class Tracer(fx.Tracer):
    """Buffers are values of the graph, too."""

    proxy_buffer_attributes = True


def traced(module: nn.Module | Callable[..., Any]) -> fx.GraphModule:
    tracer = Tracer()
    graph = tracer.trace(module)
    return fx.GraphModule(tracer.root, graph)


def fused(
    module: nn.Module | Callable[..., Any], inputs: Sequence[Any] = ()
) -> tuple[fx.GraphModule, fx.GraphModule, list[Site]]:
    """A traced module, the same rewritten, and what became of it; ``inputs`` are its examples."""
    before = traced(module)
    after = deepcopy(before)
    if inputs:
        Examples(after).run(*deepcopy(list(inputs)))
        after.load_state_dict(before.state_dict())
    sites = fuse_graph(after.graph, after)
    after.recompile()
    return before, after, sites


def never_unfused(module: fx.GraphModule, *sites: Site) -> fx.GraphModule:
    """The module, whose fused calls may not run the original operations."""

    def refuse(*values: Any) -> Tensor:
        raise AssertionError("a fused call ran unfused")

    for site in sites:
        if site.call is not None:
            site.call.original = refuse  # type: ignore[assignment]
    return module


def gradients(
    module: Callable[..., Any], inputs: Sequence[Any], learning: int | None = None
) -> tuple[Any, list[Tensor | None]]:
    """What a call gives, and the gradients of a weighted sum of it by inputs and parameters.

    ``learning``: how many of the inputs have gradients. Default: all that can
    """
    given = [
        each.detach().clone().requires_grad_(each.is_floating_point() and at < (learning or 99))
        if isinstance(each, Tensor)
        else each
        for at, each in enumerate(inputs)
    ]
    parameters = [*module.parameters()] if isinstance(module, nn.Module) else []
    for each in parameters:
        each.grad = None
    found = module(*given)
    results = found if isinstance(found, tuple) else (found,)
    total = sum((each * torch.linspace(-1, 1, each.numel()).to(each).view_as(each)).sum()
                for each in results)  # fmt: skip
    assert isinstance(total, Tensor)
    total.backward()
    tensors = [each for each in given if isinstance(each, Tensor)]
    return found, [each.grad for each in (*tensors, *parameters)]


def close(a: Any, b: Any, tolerance: float = 1e-11) -> None:
    """Both the same, as far as float64 goes; None beside None."""
    if a is None or b is None:
        assert a is b
        return
    if isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            close(one, other, tolerance)
        return
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def same(
    before: nn.Module, after: nn.Module, inputs: Sequence[Any], tolerance: float = 1e-11
) -> None:
    """Both modules give the same: values, gradients, and what their buffers become."""
    one, of_one = gradients(before, inputs)
    other, of_other = gradients(after, inputs)
    close(one, other)
    close(of_one, of_other, tolerance)
    buffers = dict(after.named_buffers())
    for name, each in before.named_buffers():
        close(each, buffers[name])
