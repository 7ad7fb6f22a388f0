"""torch's own norms, mended where its CPU kernels make NaN of an infinite weight or mean."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from transfuse import plain


def by_running(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """torch's norm by statistics that are given.

    Its CPU kernels compute ``x * scale + (bias - mean * scale)``; where that would be Inf - Inf,
    mean and bias are applied as the definition says.
    """
    scale = (var + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    if x.device.type != "cpu" or plain.finite(mean * scale):
        return F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)
    of_channels = (-1, *(1,) * (x.dim() - 2))
    y = (x - mean.reshape(of_channels)) * scale.reshape(of_channels)
    return y if bias is None else y + bias.reshape(of_channels)


def affine(
    norm: Callable[[Tensor | None, Tensor | None], Tensor],
    weight: Tensor | None,
    bias: Tensor | None,
    meeting: tuple[int, ...],
) -> Tensor:
    """A norm of torch's with its weight and bias.

    torch's CPU kernels compute ``x * (w/s) + (b - mean * w/s)``, where an infinite weight gives
    Inf - Inf; then weight and bias are applied as the definition says, after the norm.
    """
    if weight is None or weight.device.type != "cpu" or plain.finite(weight):
        return norm(weight, bias)
    y = norm(None, None) * weight.reshape(meeting)
    return y if bias is None else y + bias.reshape(meeting)
