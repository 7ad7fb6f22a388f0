"""The reverse of windows, by torch: each input gathers from the windows that it is in."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse.geometry import pooled

Run = Callable[[Sequence[Tensor], Mapping[str, Tensor]], None]

Pools = Mapping[int, Callable[..., Tensor]]
_MAX: Pools = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_ADAPTIVE_MAX: Pools = {
    1: F.adaptive_max_pool1d,
    2: F.adaptive_max_pool2d,
    3: F.adaptive_max_pool3d,
}
_ADAPTIVE_AVG: Pools = {
    1: F.adaptive_avg_pool1d,
    2: F.adaptive_avg_pool2d,
    3: F.adaptive_avg_pool3d,
}


def unslid(
    folding: str, dims: tuple[int, ...], outputs: tuple[int, ...], options: Mapping[str, Any]
) -> tuple[str, Run]:
    """What is done, in words, and how: from ``g`` (and for a maximum ``x``) to the gradient."""
    if folding not in ("max", "mean"):
        raise NotImplementedError

    def pool(x: Tensor) -> Tensor:
        rank = len(outputs)
        if options.get("adaptive"):
            return (_ADAPTIVE_MAX if folding == "max" else _ADAPTIVE_AVG)[rank](x, outputs)
        kernel, stride, padding, dilation = (
            list(options[key]) for key in ("kernel", "stride", "padding", "dilation")
        )
        sizes = zip(dims[2:], kernel, stride, padding, dilation, strict=True)
        ceil = tuple(pooled(*each, False) for each in sizes) != tuple(outputs)
        if folding == "max":
            return _MAX[rank](x, kernel, stride, padding, dilation, ceil)
        rest = ceil, options.get("counts_padding", True), options.get("divisor")
        if rank == 3:
            return F.avg_pool3d(x, kernel, stride, padding, *rest)
        if rank == 2:
            return F.avg_pool2d(x, kernel, stride, padding, *rest)
        one = ([1, *kernel], [1, *stride], [0, *padding])
        return F.avg_pool2d(x.unsqueeze(2), *one, *rest).squeeze(2)

    def run(outs: Sequence[Tensor], values: Mapping[str, Tensor]) -> None:
        g = values["g"]
        x = values["x"].detach() if "x" in values else g.new_empty(()).expand(dims)
        with torch.enable_grad():
            leaf = x.requires_grad_()
            y = pool(leaf)
        outs[0].copy_(torch.autograd.grad(y, leaf, g)[0])

    return "windows in torch", run
