"""y = sum_C(max_pool3(max_pool2(convT(x, w) + conv_bias)))

The two pools are one pool of 6; outputs past the last full window are never computed.
"""

from collections.abc import Sequence

from torch import Tensor

from transfuse.chain import Chain
from transfuse.checks import Size
from transfuse.operators.declaration import declare
from transfuse.padding import Padding
from transfuse.stages import conv_transpose, max_pool, sum
from transfuse.tensors import Precision


@declare(
    "conv-transpose3d-max-max-sum",
    Chain(
        conv_transpose(3, bias="conv_bias"), max_pool(2), max_pool(3), sum("channels", keepdim=True)
    ),
    short="max-max-sum",
    benchmark="n16 ci32 co64 i32x32x32 k5 s2 p2",
    cpu="n1 ci32 co64 i32x32x32 k5 s2 p2",
    small="n2 ci3 co4 i4x4x7 k5 s2 p2",
    ragged="n3 ci5 co7 i3x8x5 k4x2x3 s3x1x2 p1x0x1",
)
def conv_transpose3d_max_max_sum(
    x: Tensor,
    weight: Tensor,
    conv_bias: Tensor,
    *,
    stride: Size = 1,
    padding: Padding = 0,
    output_size: Sequence[int] | None = None,
    out: Tensor | None = None,
    backend: str | None = None,
    precision: Precision = "auto",
) -> Tensor:
    r"""Transposed convolution, a max pool of 2, a max pool of 3, and the sum of all channels.

    .. math::
        y = \sum_C \text{max\_pool}_3(\text{max\_pool}_2(
            \text{conv\_transpose3d}(x, \text{weight}) + \text{conv\_bias}))

    Args:
        x: input
        weight: kernel
        conv_bias: term of each channel after the convolution
        stride: one for all axes, or one for each. Default: 1
        padding: outputs taken away at the ends of each axis, in any form that
            :func:`transfuse.conv_transpose` takes. Default: 0
        output_size: sizes of the convolution's output, where the stride leaves a choice
        out: where to write the result
        backend: the one to run on; another raises. Default: the first that serves
        precision: how float32 is multiplied on CUDA: ``ieee``, ``tf32``, or ``auto``, as torch is
            set to. Default: ``auto``

    Shape:
        - x: :math:`(N, C_i, D, H, W)` or :math:`(C_i, D, H, W)`
        - weight: :math:`(C_i, C_o, K_d, K_h, K_w)`
        - conv_bias: :math:`(C_o)`
        - y: :math:`(N, 1, D_q, H_q, W_q)` or :math:`(1, D_q, H_q, W_q)`, where

          .. math::
              D_q = \lfloor D_o / 6 \rfloor, \quad
              D_o = (D - 1) \cdot \text{stride} - 2 \cdot \text{padding} + K_d

    Returns:
        Tensor: y, or ``out``

    Example::

        >>> x, weight = torch.randn(2, 3, 4, 4, 7), torch.randn(3, 4, 5, 5, 5)
        >>> conv_bias = torch.randn(4)
        >>> transfuse.conv_transpose3d_max_max_sum(x, weight, conv_bias, stride=2, padding=2).shape
        torch.Size([2, 1, 1, 1, 2])
    """
