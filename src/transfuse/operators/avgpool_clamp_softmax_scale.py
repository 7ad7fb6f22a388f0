"""y = softmax_DHW(clamp(convT(avg_pool(x), w), clamp_min, clamp_max)) * scale

The softmax covers more positions than any tile: one pass for its sums, one that writes y. The
clamp bounds the exponents, so no pass is needed for the maximum.
"""

from transfuse.chain import Chain
from transfuse.operators.operator import Operator
from transfuse.stages import avg_pool, clamp, conv_transpose, scale, softmax

conv_transpose3d_avgpool_clamp_softmax_multiply = Operator(
    "conv-transpose3d-avgpool-clamp-softmax-multiply",
    Chain(
        avg_pool("pool_kernel"),
        conv_transpose(3),
        clamp("clamp_min", "clamp_max"),
        softmax("space"),
        scale("scale"),
    ),
    benchmark="n32 ci32 co64 i32x64x64 k3 s2 p1 op1 pool_kernel=2 clamp_min=0 clamp_max=1",
    cpu="n1 ci32 co64 i32x64x64 k3 s2 p1 op1 pool_kernel=2 clamp_min=0 clamp_max=1",
    small="n2 ci3 co4 i4x6x6 k3 s2 p1 op1 pool_kernel=2 clamp_min=-0.5 clamp_max=1",
    ragged="n3 ci5 co7 i7x5x9 k2x3x1 s1x2x3 p0x1x0 op0x1x2 pool_kernel=3 clamp_min=-1 clamp_max=2",
)
