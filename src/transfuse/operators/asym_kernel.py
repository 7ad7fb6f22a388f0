"""y = convT(x, w), the plain transposed convolution with every option per axis.

Nothing to fuse: a benchmark of the convolution itself.
"""

from collections.abc import Sequence

from torch import Tensor

from transfuse.chain import Chain
from transfuse.checks import Size
from transfuse.operators.declaration import declare
from transfuse.padding import Padding
from transfuse.stages import conv_transpose
from transfuse.tensors import Precision


@declare(
    "conv-transpose-2d-square-input-asym-kernel",
    Chain(conv_transpose(2)),
    short="asym-kernel",
    benchmark="n8 ci64 co64 i512x512 k3x7 s1 p0",
    cpu="n1 ci64 co64 i128x128 k3x7 s1 p0",
    small="n2 ci6 co4 i5x5 k3x5 s2x3 p1x2 op1x2 g2",
    ragged="n3 ci15 co20 i7x11 k2x4 s3x1 p0x1 d1x3 op2x0 g5",
)
def conv_transpose_2d_square_input_asym_kernel(
    x: Tensor,
    weight: Tensor,
    *,
    stride: Size = 1,
    padding: Padding = 0,
    output_padding: Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    output_size: Sequence[int] | None = None,
    out: Tensor | None = None,
    backend: str | None = None,
    precision: Precision = "auto",
) -> Tensor:
    r"""The transposed convolution by itself, with every option for each axis.

    .. math::
        y[n, c_o, o] = \sum_{c_i, k} x[n, c_i, i] \cdot \text{weight}[c_i, c_o, k]
        \quad\text{where}\quad
        o = i \cdot \text{stride} - \text{padding} + k \cdot \text{dilation}

    along each axis, and :math:`c_i` runs over the channels of the group of :math:`c_o`.

    Args:
        x: input
        weight: kernel
        stride: one for all axes, or one for each. Default: 1
        padding: outputs taken away at the ends of each axis, in any form that
            :func:`transfuse.conv_transpose` takes. Default: 0
        output_padding: outputs added at the end of each axis. Default: 0
        dilation: inputs between two taps of the kernel. Default: 1
        groups: channels fall apart into so many convolutions. Default: 1
        output_size: sizes of the convolution's output, in place of ``output_padding``
        out: where to write the result
        backend: the one to run on; another raises. Default: the first that serves
        precision: how float32 is multiplied on CUDA: ``ieee``, ``tf32``, or ``auto``, as torch is
            set to. Default: ``auto``

    Shape:
        - x: :math:`(N, C_i, H, W)` or :math:`(C_i, H, W)`
        - weight: :math:`(C_i, C_o / \text{groups}, K_h, K_w)`
        - y: :math:`(N, C_o, H_o, W_o)` or :math:`(C_o, H_o, W_o)`, where

          .. math::
              H_o = (H - 1) \cdot \text{stride} - 2 \cdot \text{padding}
                  + \text{dilation} \cdot (K_h - 1) + \text{output\_padding} + 1

    Returns:
        Tensor: y, or ``out``

    Example::

        >>> x, weight = torch.randn(2, 6, 5, 5), torch.randn(6, 4, 3, 5)
        >>> transfuse.conv_transpose_2d_square_input_asym_kernel(x, weight, stride=(2, 3)).shape
        torch.Size([2, 4, 11, 17])
    """
