"""Adaptive windows of several sizes, back by torch: no kernel here has them."""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse.reverse.steps import TensorStep, same
from transfuse.sweeping import Buffer, Seen

Pools = Mapping[int, Callable[..., Tensor]]
_MAX: Pools = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
_AVG: Pools = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def adaptive(
    does: str, made: Buffer, outputs: tuple[int, ...], reads: Mapping[str, Seen]
) -> TensorStep:
    """From ``g`` to the gradient by inputs; of a maximum, whose inputs ``x`` are."""
    pool = (_MAX if "x" in reads else _AVG)[len(outputs)]

    def run(outs: Sequence[Tensor], values: Mapping[str, Tensor]) -> None:
        g = values["g"]
        x = values["x"].detach() if "x" in values else g.new_zeros(made.dims)
        with torch.enable_grad():
            leaf = x.requires_grad_()
            y = pool(leaf, outputs)
        outs[0].copy_(torch.autograd.grad(y, leaf, g)[0])

    does = f"{does} · windows of several sizes in torch"
    return TensorStep(does, (Seen(made, same),), tuple(reads.items()), run)
