"""A module beside torch's: the same parameters, then the same values and gradients."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Module


def integers(*dims: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed + len(dims))
    return torch.randint(-3, 4, dims, generator=generator).to(dtype)


def with_integers(module: Module) -> Module:
    """The module with small integers as parameters: sums of their products are exact."""
    with torch.no_grad():
        for seed, each in enumerate(module.parameters()):
            each.copy_(integers(*each.shape, seed=seed))
    return module


def stepped(
    module: Module, x: Tensor, call: Callable[..., Tensor] | None = None
) -> tuple[Tensor, list[Tensor]]:
    """The result, and the gradients of a weighted sum of it by x and by all parameters."""
    module.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = (module if call is None else call)(x)
    (y * integers(*y.shape, seed=9).to(y)).sum().backward()
    found = [x.grad, *(each.grad for each in module.parameters())]
    assert all(each is not None for each in found)
    return y.detach(), [each.clone() for each in found if each is not None]


def same(ours: tuple[Tensor, list[Tensor]], theirs: tuple[Tensor, list[Tensor]]) -> bool:
    """Bit for bit."""
    return ours[0].equal(theirs[0]) and all(
        a.equal(b) for a, b in zip(ours[1], theirs[1], strict=True)
    )


def near(
    ours: tuple[Tensor, list[Tensor]], theirs: tuple[Tensor, list[Tensor]], within: float = 1e-11
) -> bool:
    """In float64, to 1e-11 of the largest value: a thousand times what sums round by.

    ``within``: so far for the gradients.
    """
    pairs = zip(ours[1], theirs[1], strict=True)
    return _near(ours[0], theirs[0], 1e-11) and all(_near(a, b, within) for a, b in pairs)


def _near(a: Tensor, b: Tensor, within: float) -> bool:
    return bool((a - b).abs().max() <= within * (1 + b.abs().max()))
