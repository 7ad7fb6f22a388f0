"""What is known of a model: how to make it, and the sizes that it is run at."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

Shapes = tuple[tuple[int, ...], ...]
"""The shape of each input."""


@dataclass(frozen=True)
class Model:
    """A published model.

    ``make`` builds it with its own numbers of channels, ``small`` with few, for tests.
    ``cpu``, ``gpu``: its inputs on a few cores and on a large GPU; ``tiny``: those of ``small``.
    ``convolutions``: how many transposed ones a call of ``make``'s runs.
    """

    name: str
    title: str
    make: Callable[[], nn.Module]
    small: Callable[[], nn.Module]
    convolutions: int
    cpu: Shapes
    gpu: Shapes
    tiny: Shapes


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A model with weights by seed, the same each time; torch's own generator stays as it was.

    What norms learn is drawn, too: as they begin, at 1 and 0, leaving one out would not show.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, _NormBase):
                    _draw(module)
    return model


def _draw(norm: _NormBase) -> None:
    for around, tensors in (
        (1.0, (norm.weight, norm.running_var)),
        (0.0, (norm.bias, norm.running_mean)),
    ):
        for tensor in tensors:
            if tensor is not None:
                tensor.uniform_(around - 0.3, around + 0.3)


def drawn(shapes: Shapes, seed: int, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Inputs by seed: normal values, the same numbers in every type and on every device."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [value.to(device, dtype) for value in values]
