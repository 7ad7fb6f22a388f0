"""y = convT(x, w), the plain transposed convolution with every option per axis.

Nothing to fuse: a benchmark of the convolution itself.
"""

from transfuse.chain import Chain
from transfuse.operators.operator import Operator
from transfuse.stages import conv_transpose

conv_transpose_2d_square_input_asym_kernel = Operator(
    "conv-transpose-2d-square-input-asym-kernel",
    Chain(conv_transpose(2)),
    benchmark="n8 ci64 co64 i512x512 k3x7 s1 p0",
    cpu="n1 ci64 co64 i128x128 k3x7 s1 p0",
    small="n2 ci6 co4 i5x5 k3x5 s2x3 p1x2 op1x2 g2",
    ragged="n3 ci15 co20 i7x11 k2x4 s3x1 p0x1 d1x3 op2x0 g5",
)
