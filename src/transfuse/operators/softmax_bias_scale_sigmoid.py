"""y = sigmoid((softmax_C(convT(x, w) + conv_bias) + add_bias) * scaling_factor)

Channel softmax needs every output channel of a position in one tile; y is written once.
"""

from transfuse.chain import Chain
from transfuse.operators.operator import Operator
from transfuse.stages import add, conv_transpose, scale, sigmoid, softmax

conv_transpose2d_softmax_biasadd_scaling_sigmoid = Operator(
    "conv-transpose2d-softmax-biasadd-scaling-sigmoid",
    Chain(
        conv_transpose(2, bias="conv_bias"),
        softmax("channels"),
        add("add_bias"),
        scale("scaling_factor"),
        sigmoid(),
    ),
    benchmark="n128 ci64 co128 i64x64 k4 s2 p1 op1 scaling_factor=2",
    cpu="n2 ci64 co128 i64x64 k4 s2 p1 op1 scaling_factor=2",
    small="n2 ci3 co8 i4x5 k4 s2 p1 op1 scaling_factor=2",
    ragged="n3 ci7 co13 i5x3 k2x5 s3x1 p0x2 op2x0 scaling_factor=-1.5",
)
