"""y = sigmoid((softmax_C(convT(x, w) + conv_bias) + add_bias) * scaling_factor)

Channel softmax needs every output channel of a position in one tile; y is written once.
"""

from collections.abc import Sequence

from torch import Tensor

from transfuse.chain import Chain
from transfuse.checks import Size
from transfuse.operators.declaration import declare
from transfuse.padding import Padding
from transfuse.stages import add, conv_transpose, scale, sigmoid, softmax
from transfuse.tensors import Precision


@declare(
    "conv-transpose2d-softmax-biasadd-scaling-sigmoid",
    Chain(
        conv_transpose(2, bias="conv_bias"),
        softmax("channels"),
        add("add_bias"),
        scale("scaling_factor"),
        sigmoid(),
    ),
    short="softmax-sigmoid",
    benchmark="n128 ci64 co128 i64x64 k4 s2 p1 op1 scaling_factor=2",
    cpu="n2 ci64 co128 i64x64 k4 s2 p1 op1 scaling_factor=2",
    small="n2 ci3 co8 i4x5 k4 s2 p1 op1 scaling_factor=2",
    ragged="n3 ci7 co13 i5x3 k2x5 s3x1 p0x2 op2x0 scaling_factor=-1.5",
)
def conv_transpose2d_softmax_biasadd_scaling_sigmoid(
    x: Tensor,
    weight: Tensor,
    conv_bias: Tensor,
    add_bias: Tensor,
    *,
    scaling_factor: float,
    stride: Size = 1,
    padding: Padding = 0,
    output_padding: Size = 0,
    output_size: Sequence[int] | None = None,
    out: Tensor | None = None,
    backend: str | None = None,
    precision: Precision = "auto",
) -> Tensor:
    r"""Transposed convolution, softmax over the channels, a bias, a factor and a sigmoid.

    .. math::
        s &= \text{softmax}_C(\text{conv\_transpose2d}(x, \text{weight}) + \text{conv\_bias}) \\
        y &= \text{sigmoid}((s + \text{add\_bias}) \cdot \text{scaling\_factor})

    Args:
        x: input
        weight: kernel
        conv_bias: term of each channel before the softmax
        add_bias: term of each channel after it
        scaling_factor: what the sum is multiplied by
        stride: one for all axes, or one for each. Default: 1
        padding: outputs taken away at the ends of each axis, in any form that
            :func:`transfuse.conv_transpose` takes. Default: 0
        output_padding: outputs added at the end of each axis. Default: 0
        output_size: sizes of the convolution's output, in place of ``output_padding``
        out: where to write the result
        backend: the one to run on; another raises. Default: the first that serves
        precision: how float32 is multiplied on CUDA: ``ieee``, ``tf32``, or ``auto``, as torch is
            set to. Default: ``auto``

    Shape:
        - x: :math:`(N, C_i, H, W)` or :math:`(C_i, H, W)`
        - weight: :math:`(C_i, C_o, K_h, K_w)`
        - conv_bias: :math:`(C_o)`
        - add_bias: :math:`(C_o)` or :math:`(C_o, 1, 1)`
        - y: :math:`(N, C_o, H_o, W_o)` or :math:`(C_o, H_o, W_o)`, where

          .. math::
              H_o = (H - 1) \cdot \text{stride} - 2 \cdot \text{padding}
                  + K_h + \text{output\_padding}

    Returns:
        Tensor: y, or ``out``

    Example::

        >>> x, weight = torch.randn(2, 3, 4, 5), torch.randn(3, 8, 4, 4)
        >>> conv_bias, add_bias = torch.randn(8), torch.randn(8, 1, 1)
        >>> transfuse.conv_transpose2d_softmax_biasadd_scaling_sigmoid(
        ...     x, weight, conv_bias, add_bias, scaling_factor=2.0, stride=2, padding=1
        ... ).shape
        torch.Size([2, 8, 8, 10])
    """
