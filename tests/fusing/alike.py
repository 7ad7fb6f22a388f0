"""A fused model beside the same one as it was written: values, gradients, running statistics."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import transfuse

NEAR = 1e-12
"""In float64, of values near 1."""


def made(make: Callable[[], nn.Module], training: bool = True) -> nn.Module:
    """A model by a seed, in float64, with statistics that are not those of a new norm."""
    torch.manual_seed(0)
    model = make().double().train(training)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point() and "running" in name:
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    return model


def drawn(*dims: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(dims, generator=generator, dtype=torch.float64)


def stepped(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """All that a step of training can see: outputs, gradients of inputs and parameters, buffers."""
    model.zero_grad()
    leaves, spec = pytree.tree_flatten((args, kwargs))
    leaves = [x.clone().requires_grad_() if isinstance(x, Tensor) else x for x in leaves]
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    torch.manual_seed(1)  # dropout
    outputs = [y for y in pytree.tree_leaves(model(*args, **kwargs)) if isinstance(y, Tensor)]
    sum((y * drawn(*y.shape, seed=i)).sum() for i, y in enumerate(outputs)).backward()
    seen = {f"output {i}": y for i, y in enumerate(outputs)}
    seen |= {f"input {i}": x.grad for i, x in enumerate(leaves) if isinstance(x, Tensor)}
    seen |= {f"gradient of {k}": p.grad for k, p in model.named_parameters()}
    return {k: v for k, v in seen.items() if v is not None} | dict(model.named_buffers())


def expect_alike(fused: nn.Module, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """The same values and gradients, and then the same statistics; inputs are left alone."""
    kept = [x.clone() if isinstance(x, Tensor) else x for x in pytree.tree_leaves(args)]
    wanted, found = stepped(model, *args, **kwargs), stepped(fused, *args, **kwargs)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        scale = value.abs().max().clamp(1).item()
        assert (found[name] - value).abs().max().item() <= NEAR * scale, name
    for before, after in zip(kept, pytree.tree_leaves(args), strict=True):
        assert not isinstance(before, Tensor) or torch.equal(before, after)


def check(make: Callable[[], nn.Module], *args: Any, sites: int, whole: int = 0, **kw: Any) -> None:
    """A model fused, in both modes, called twice; how many convolutions were fused of how many."""
    for training in (True, False):
        model, twin = made(make, training), made(make, training)
        fused = transfuse.fuse(model)
        for _ in range(2):
            expect_alike(fused, twin, *args, **kw)
        rows = transfuse.fusing.explain(fused).rows
        assert [sum(row.fused for row in rows), len(rows)] == [sites, sites + whole], rows
        assert list(fused.state_dict()) == list(twin.state_dict())
