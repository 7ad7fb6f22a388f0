"""y = sum_C(max_pool3(max_pool2(convT(x, w) + conv_bias)))

The two pools are one pool of 6; outputs past the last full window are never computed.
"""

from transfuse.chain import Chain
from transfuse.operators.operator import Operator
from transfuse.stages import conv_transpose, max_pool, sum

conv_transpose3d_max_max_sum = Operator(
    "conv-transpose3d-max-max-sum",
    Chain(
        conv_transpose(3, bias="conv_bias"), max_pool(2), max_pool(3), sum("channels", keepdim=True)
    ),
    benchmark="n16 ci32 co64 i32x32x32 k5 s2 p2",
    cpu="n1 ci32 co64 i32x32x32 k5 s2 p2",
    small="n2 ci3 co4 i4x4x7 k5 s2 p2",
    ragged="n3 ci5 co7 i3x8x5 k4x2x3 s3x1x2 p1x0x1",
)
