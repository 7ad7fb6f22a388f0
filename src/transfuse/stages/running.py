"""Running statistics: what a batch norm in training keeps and moves."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling


@dataclass(frozen=True)
class Running:
    """Running statistics by name, and how they move: in place, once a call.

    ``running = (1 - momentum) * running + momentum * found``; the variance found is the unbiased
    one, ``n / (n - 1)`` times that by which a batch of ``n`` values was normalised.
    """

    mean: str
    var: str
    momentum: float

    @property
    def names(self) -> tuple[str, str]:
        return self.mean, self.var

    def moved(
        self, env: Mapping[str, Tensor], mean: Tensor, var: Tensor, n: int
    ) -> MutableMapping[str, Tensor]:
        """Both after a batch of ``n`` values whose mean and biased variance are given."""
        found = {self.mean: mean, self.var: var * (n / (n - 1))}
        return {
            name: (1 - self.momentum)
            * env[name].to(torch.promote_types(env[name].dtype, new.dtype))
            + self.momentum * new.reshape(env[name].shape)
            for name, new in found.items()
        }


def kept_as(mean: object, var: object, momentum: float) -> Running | None:
    """Those of a stage. Names only: tensors that it still holds are lifted out before it runs."""
    if isinstance(mean, str) and isinstance(var, str):
        return Running(mean, var, momentum)
    return None


def write(operands: Mapping[str, Tensor], updated: Mapping[str, Tensor]) -> None:
    """Put running statistics into the tensors they are kept in; each one's version goes up."""
    for name, new in updated.items():
        kept = operands[name]
        # torch writes to those made in inference mode anywhere; an ordinary copy does not.
        # In a trace of torch.compile there are none.
        made_so = not is_dynamo_compiling() and kept.is_inference()
        with torch.inference_mode() if made_so else torch.no_grad():
            kept.copy_(new)
