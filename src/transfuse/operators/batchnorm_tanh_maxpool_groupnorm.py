"""y = group_norm(max_pool2(tanh(batch_norm(convT(x, w)))))

Batch norm and tanh rise with their input (or fall, where bn_weight < 0), so pooling moves before
them: a quarter of the values crosses from the convolution to the norms.
"""

from transfuse.chain import Chain
from transfuse.operators.operator import Operator
from transfuse.stages import batch_norm, conv_transpose, group_norm, max_pool, tanh

conv_transpose2d_batchnorm_tanh_maxpool_groupnorm = Operator(
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm",
    Chain(
        conv_transpose(2, either_kernel=True),
        batch_norm(weight="bn_weight", bias="bn_bias", training=True),
        tanh(),
        max_pool(2),
        group_norm("num_groups", "gn_weight", "gn_bias"),
    ),
    benchmark="n512 ci64 co128 i32x32 k5 s1 p1 num_groups=8",
    cpu="n8 ci64 co128 i32x32 k5 s1 p1 num_groups=8",
    small="n2 ci3 co8 i5x6 k5 s1 p1 num_groups=4",
    ragged="n3 ci6 co9 i4x7 k3x2 s2x3 p1x0 op1x2 g3 num_groups=3",
)
