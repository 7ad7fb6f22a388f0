"""Initial weights of transposed convolutions that upsample without a checkerboard."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.init import kaiming_normal_

from transfuse.geometry import per_axis

__all__ = ["bilinear_", "icnr_"]


def icnr_(
    weight: Tensor,
    stride: int | Sequence[int],
    groups: int = 1,
    init: Callable[[Tensor], object] = kaiming_normal_,
) -> Tensor:
    r"""Fill a weight such that all outputs between two inputs start equal (ICNR).

    .. math::
        \text{weight}[c_i, c_o, k] = u[c_o, c_i, \lfloor k / \text{stride} \rfloor]
        \quad\text{so that}\quad
        y[n, c_o, m \cdot \text{stride} + r - \text{padding}]
            = \sum_{c_i, j} u[c_o, c_i, j] \cdot x[n, c_i, m - j]
        \text{ for all } r < \text{stride}

    which is a convolution by :math:`u`, upsampled to its nearest neighbours: without the
    checkerboard that independent weights begin with. A dilation other than 1 undoes it. As
    described in `Checkerboard artifact free sub-pixel convolution` - Aitken, A. et al. (2017).

    Args:
        weight: of a transposed convolution; each axis of its kernel a multiple of the stride
        stride: the layer's, one for all axes or one for each
        groups: the layer's. Default: 1
        init: fills :math:`u`, the weight of an ordinary convolution of shape
            ``(C_o, C_i / groups, *kernel / stride)``. Default: ``kaiming_normal_``

    Shape:
        - x: :math:`(N, C_i, *)`
        - weight: :math:`(C_i, C_o / \text{groups}, *)`

    Returns:
        Tensor: the weight

    Example::

        >>> layer = transfuse.nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1)
        >>> weight = transfuse.nn.init.icnr_(layer.weight, layer.stride)
        >>> bool((weight[:, :, ::2, ::2] == weight[:, :, 1::2, 1::2]).all())
        True
    """
    per_group = _grouped(weight, groups)
    kernel = weight.shape[2:]
    steps = per_axis("stride", tuple(stride) if isinstance(stride, list) else stride, len(kernel))
    if any(step < 1 or size % step for size, step in zip(kernel, steps, strict=True)):
        raise ValueError(
            f"icnr_: kernel sizes must be multiples of the stride, but got a kernel of "
            f"{list(kernel)} and stride={list(steps)}"
        )
    small = [size // step for size, step in zip(kernel, steps, strict=True)]
    outputs = weight.shape[1]
    with torch.no_grad():
        drawn = weight.new_empty(groups * outputs, per_group, *small)
        init(drawn)
        # (groups, C_o / groups, C_i / groups, ...), then its two axes of channels in turn.
        drawn = drawn.view(groups, outputs, per_group, *small).transpose(1, 2).flatten(0, 1)
        for axis, step in enumerate(steps, 2):
            drawn = drawn.repeat_interleave(step, axis)
        return weight.copy_(drawn)


def bilinear_(weight: Tensor, groups: int = 1) -> Tensor:
    r"""Fill a weight with linear interpolation, channel by channel.

    .. math::
        \text{weight}[c, c, k] = \prod_{\text{axes}} 1 - \frac{|k - m|}{f},
        \quad f = \left\lceil \tfrac{K}{2} \right\rceil,
        \quad m = \tfrac{K - 1}{2} \text{ (K even)},\ f - 1 \text{ (K odd)}

    and 0 between different channels: linear, bilinear or trilinear, after the number of axes. With
    a kernel of :math:`2s` and stride :math:`s` a layer upsamples by :math:`s`, and a ramp stays a
    ramp: inside the border outputs are
    ``torch.nn.functional.interpolate(x, scale_factor=s, mode="bilinear")`` for even :math:`s` and
    ``padding=s // 2``. As ``torch.nn.init.dirac_``, it keeps as many channels as there are on both
    sides, in each group by itself.

    Args:
        weight: of a transposed convolution
        groups: the layer's. Default: 1

    Shape:
        - x: :math:`(N, C_i, *)`
        - weight: :math:`(C_i, C_o / \text{groups}, *)`

    Returns:
        Tensor: the weight

    Example::

        >>> layer = transfuse.nn.ConvTranspose1d(1, 1, 4, stride=2, padding=1, bias=False)
        >>> transfuse.nn.init.bilinear_(layer.weight)
        Parameter containing:
        tensor([[[0.2500, 0.7500, 0.7500, 0.2500]]], requires_grad=True)
        >>> layer(torch.arange(4.0).view(1, 1, 4))[0, 0, 1:-1].tolist()
        [0.25, 0.75, 1.25, 1.75, 2.25, 2.75]
    """
    per_group = _grouped(weight, groups)
    taps = torch.ones((), dtype=torch.float64)
    for size in weight.shape[2:]:
        factor = (size + 1) // 2
        middle = (size - 1) / 2 if size % 2 == 0 else factor - 1
        places = torch.arange(size, dtype=torch.float64)
        taps = taps[..., None] * (1 - (places - middle).abs() / factor)
    with torch.no_grad():
        weight.zero_()
        for channel in range(min(per_group, weight.shape[1])):
            weight[channel::per_group, channel] = taps.to(weight)
    return weight


def _grouped(weight: Tensor, groups: int) -> int:
    """The input channels of a group."""
    if weight.dim() not in (3, 4, 5):
        raise ValueError(
            f"only weights of 3, 4 or 5 dimensions are supported, but got {list(weight.shape)}"
        )
    if groups < 1 or weight.shape[0] % groups:
        raise ValueError(
            f"groups={groups} must be positive and divide the {weight.shape[0]} input channels"
        )
    return weight.shape[0] // groups
