"""A fused model against the same one unfused: results, gradients, running statistics."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import transfuse
from transfuse.bench.model_oracle import results

EXACT = 1e-11
"""Of float64, as a share of the largest value: sums may be in another order."""


def trained(
    model: nn.Module, inputs: Sequence[Tensor], seed: int = 5
) -> tuple[list[Tensor], list[Tensor]]:
    """Results, and gradients of inputs and parameters; dropout draws the same each time."""
    given = [x.detach().clone().requires_grad_() for x in inputs]
    torch.manual_seed(seed)
    found = results(model(*given))
    torch.manual_seed(seed)
    cotangents = [torch.randn_like(y) for y in found]
    wanted = [*given, *model.parameters()]
    return found, list(torch.autograd.grad(found, wanted, cotangents, materialize_grads=True))


def close(found: Sequence[Tensor], expected: Sequence[Tensor], what: str) -> None:
    """Equal but for rounding in float64."""
    assert len(found) == len(expected), what
    scale = max([1e-3, *(float(each.detach().abs().max()) for each in expected if each.numel())])
    for at, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.shape == b.shape, f"{what} {at}"
        assert a.dtype == b.dtype, f"{what} {at}"
        assert a.isfinite().all() or not b.isfinite().all(), f"{what} {at}"
        error = float((a - b).detach().abs().max()) if a.numel() else 0.0
        assert error <= EXACT * scale, f"{what} {at}: {error:.3g} off, of {scale:.3g}"


def compare(
    make: Callable[[], nn.Module], inputs: Sequence[Tensor], training: bool, given: bool = True
) -> nn.Module:
    """Fused and unfused in float64, twice, so that the second call meets moved statistics.

    ``given``: whether ``fuse`` is told the inputs. Gives the fused model.
    """
    plain, mine = make().double().train(training), make().double().train(training)
    fused = transfuse.fuse(mine, tuple(inputs) if given else None)
    assert list(fused.state_dict()) == list(plain.state_dict())
    assert all(a is b for a, b in zip(fused.parameters(), mine.parameters(), strict=True))
    for turn in range(2):
        y, gradients = trained(plain, inputs, turn)
        again, theirs = trained(fused, inputs, turn)
        close(again, y, f"call {turn}: result")
        close(theirs, gradients, f"call {turn}: gradient")
        close(floating(fused), floating(plain), f"call {turn}: buffer")
    return fused


def floating(model: nn.Module) -> list[Tensor]:
    return [each.double() for each in model.buffers()]
