"""y = group_norm(max_pool2(tanh(batch_norm(convT(x, w)))))

Batch norm and tanh rise with their input (or fall, where bn_weight < 0), so pooling moves before
them: a quarter of the values crosses from the convolution to the norms.
"""

from collections.abc import Sequence

from torch import Tensor

from transfuse.chain import Chain
from transfuse.checks import Size
from transfuse.operators.declaration import declare
from transfuse.padding import Padding
from transfuse.stages import batch_norm, conv_transpose, group_norm, max_pool, tanh
from transfuse.tensors import Precision


@declare(
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm",
    Chain(
        conv_transpose(2, either_kernel=True),
        batch_norm(weight="bn_weight", bias="bn_bias", training=True),
        tanh(),
        max_pool(2),
        group_norm("num_groups", "gn_weight", "gn_bias"),
    ),
    short="batchnorm-groupnorm",
    benchmark="n512 ci64 co128 i32x32 k5 s1 p1 num_groups=8",
    cpu="n8 ci64 co128 i32x32 k5 s1 p1 num_groups=8",
    small="n2 ci3 co8 i5x6 k5 s1 p1 num_groups=4",
    ragged="n3 ci6 co9 i4x7 k3x2 s2x3 p1x0 op1x2 g3 num_groups=3",
)
def conv_transpose2d_batchnorm_tanh_maxpool_groupnorm(
    x: Tensor,
    weight: Tensor,
    bn_weight: Tensor,
    bn_bias: Tensor,
    gn_weight: Tensor,
    gn_bias: Tensor,
    *,
    num_groups: int,
    stride: Size = 1,
    padding: Padding = 0,
    output_padding: Size = 0,
    groups: int = 1,
    output_size: Sequence[int] | None = None,
    out: Tensor | None = None,
    backend: str | None = None,
    precision: Precision = "auto",
) -> Tensor:
    r"""Transposed convolution, batch norm, tanh, a max pool of 2 and group norm.

    .. math::
        t &= \tanh(\text{batch\_norm}(\text{conv\_transpose2d}(x, \text{weight}))) \\
        y &= \text{group\_norm}(\text{max\_pool}_2(t))

    where both norms are

    .. math::
        \frac{v - \text{mean}}{\sqrt{\text{var} + 10^{-5}}} \cdot \text{weight} + \text{bias}

    with the statistics of these values: of each channel over the batch, and of each sample's
    groups of channels. Variances are biased; no running statistics are read or kept.

    Args:
        x: input
        weight: kernel; one that holds all :math:`C_o` channels is dense whatever ``groups`` says
        bn_weight: factor of each channel after the first norm
        bn_bias: term of each channel after it
        gn_weight: factor of each channel after the second norm
        gn_bias: term of each channel after it
        num_groups: how many groups the second norm's channels fall into; it divides them
        stride: one for all axes, or one for each. Default: 1
        padding: outputs taken away at the ends of each axis, in any form that
            :func:`transfuse.conv_transpose` takes. Default: 0
        output_padding: outputs added at the end of each axis. Default: 0
        groups: the kernel's channels fall apart into so many convolutions. Default: 1
        output_size: sizes of the convolution's output, in place of ``output_padding``
        out: where to write the result
        backend: the one to run on; another raises. Default: the first that serves
        precision: how float32 is multiplied on CUDA: ``ieee``, ``tf32``, or ``auto``, as torch is
            set to. Default: ``auto``

    Shape:
        - x: :math:`(N, C_i, H, W)`
        - weight: :math:`(C_i, C_o, K_h, K_w)` or :math:`(C_i, C_o / \text{groups}, K_h, K_w)`
        - bn_weight, bn_bias, gn_weight, gn_bias: :math:`(C_o)`
        - y: :math:`(N, C_o, \lfloor H_o / 2 \rfloor, \lfloor W_o / 2 \rfloor)`, where

          .. math::
              H_o = (H - 1) \cdot \text{stride} - 2 \cdot \text{padding}
                  + K_h + \text{output\_padding}

    Returns:
        Tensor: y, or ``out``

    Example::

        >>> x, weight = torch.randn(2, 3, 5, 6), torch.randn(3, 8, 5, 5)
        >>> ones, zeros = torch.ones(8), torch.zeros(8)
        >>> transfuse.conv_transpose2d_batchnorm_tanh_maxpool_groupnorm(
        ...     x, weight, ones, zeros, ones, zeros, num_groups=4, padding=1
        ... ).shape
        torch.Size([2, 8, 3, 4])
    """
