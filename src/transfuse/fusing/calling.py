"""The arguments of a call: how they nest, and which of them are tensors."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree


class Arguments(NamedTuple):
    """The arguments of a call: how they nest, what is a tensor, and all that is none."""

    leaves: list[Any]
    spec: pytree.TreeSpec

    @property
    def at(self) -> tuple[int, ...]:
        """Where the tensors are among the leaves."""
        return tuple(i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor))

    @property
    def tensors(self) -> list[Tensor]:
        return [self.leaves[i] for i in self.at]


def arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments of a call."""
    return Arguments(*pytree.tree_flatten((tuple(args), dict(kwargs))))


def positional(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as the arguments of a call: a tensor, a tuple of them, or a dict by name."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, dict):
        return (), inputs
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    kind = type(inputs).__name__
    raise TypeError(f"example_inputs are a tensor, a tuple or a dict, not {kind}")
