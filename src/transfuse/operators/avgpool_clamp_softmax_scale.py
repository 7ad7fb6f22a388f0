"""y = softmax_DHW(clamp(convT(avg_pool(x), w), clamp_min, clamp_max)) * scale

The softmax covers more positions than any tile: one pass for its sums, one that writes y. The
clamp bounds the exponents, so no pass is needed for the maximum.
"""

from collections.abc import Sequence

from torch import Tensor

from transfuse.chain import Chain
from transfuse.checks import Size
from transfuse.operators.declaration import declare
from transfuse.padding import Padding
from transfuse.stages import avg_pool, clamp, conv_transpose, scale, softmax
from transfuse.tensors import Precision


@declare(
    "conv-transpose3d-avgpool-clamp-softmax-multiply",
    Chain(
        avg_pool("pool_kernel"),
        conv_transpose(3),
        clamp("clamp_min", "clamp_max"),
        softmax("space"),
        scale("scale"),
    ),
    short="avgpool-softmax",
    benchmark="n32 ci32 co64 i32x64x64 k3 s2 p1 op1 pool_kernel=2 clamp_min=0 clamp_max=1",
    cpu="n1 ci32 co64 i32x64x64 k3 s2 p1 op1 pool_kernel=2 clamp_min=0 clamp_max=1",
    small="n2 ci3 co4 i4x6x6 k3 s2 p1 op1 pool_kernel=2 clamp_min=-0.5 clamp_max=1",
    ragged="n3 ci5 co7 i7x5x9 k2x3x1 s1x2x3 p0x1x0 op0x1x2 pool_kernel=3 clamp_min=-1 clamp_max=2",
)
def conv_transpose3d_avgpool_clamp_softmax_multiply(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    *,
    pool_kernel: int,
    clamp_min: float,
    clamp_max: float,
    stride: Size = 1,
    padding: Padding = 0,
    output_padding: Size = 0,
    output_size: Sequence[int] | None = None,
    out: Tensor | None = None,
    backend: str | None = None,
    precision: Precision = "auto",
) -> Tensor:
    r"""Average pool, transposed convolution, clamp, softmax over space, a factor per channel.

    .. math::
        z &= \min(\max(\text{conv\_transpose3d}(\text{avg\_pool}(x), \text{weight}),
            \text{clamp\_min}), \text{clamp\_max}) \\
        y[n, c, o] &= \text{scale}[c] \cdot \frac{\exp(z[n, c, o])}{\sum_q \exp(z[n, c, q])}

    Args:
        x: input
        weight: kernel
        scale: factor of each channel
        pool_kernel: size of the pool's windows along each axis, and the step between them
        clamp_min: the least value that is let through
        clamp_max: the largest; below ``clamp_min`` all values become it
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
        - x: :math:`(N, C_i, D, H, W)` or :math:`(C_i, D, H, W)`
        - weight: :math:`(C_i, C_o, K_d, K_h, K_w)`
        - scale: :math:`(C_o)` or :math:`(1, C_o, 1, 1, 1)`
        - y: :math:`(N, C_o, D_o, H_o, W_o)` or :math:`(C_o, D_o, H_o, W_o)`, where

          .. math::
              D_o = (\lfloor D / \text{pool\_kernel} \rfloor - 1) \cdot \text{stride}
                  - 2 \cdot \text{padding} + K_d + \text{output\_padding}

    Returns:
        Tensor: y, or ``out``

    Example::

        >>> x, weight, scale = torch.randn(2, 3, 4, 6, 6), torch.randn(3, 4, 3, 3, 3), torch.ones(4)
        >>> y = transfuse.conv_transpose3d_avgpool_clamp_softmax_multiply(
        ...     x, weight, scale, pool_kernel=2, clamp_min=0.0, clamp_max=1.0, stride=2, padding=1
        ... )
        >>> y.shape
        torch.Size([2, 4, 3, 5, 5])
    """
