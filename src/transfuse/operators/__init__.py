"""The named operators, one small file each."""

from transfuse.operators.asym_kernel import conv_transpose_2d_square_input_asym_kernel
from transfuse.operators.avgpool_clamp_softmax_scale import (
    conv_transpose3d_avgpool_clamp_softmax_multiply,
)
from transfuse.operators.batchnorm_tanh_maxpool_groupnorm import (
    conv_transpose2d_batchnorm_tanh_maxpool_groupnorm,
)
from transfuse.operators.max_max_sum import conv_transpose3d_max_max_sum
from transfuse.operators.operator import Operator, Solution
from transfuse.operators.softmax_bias_scale_sigmoid import (
    conv_transpose2d_softmax_biasadd_scaling_sigmoid,
)
from transfuse.problems import document

OPERATORS: dict[str, Operator] = {
    each.slug: each
    for each in (
        conv_transpose_2d_square_input_asym_kernel,
        conv_transpose2d_softmax_biasadd_scaling_sigmoid,
        conv_transpose3d_avgpool_clamp_softmax_multiply,
        conv_transpose2d_batchnorm_tanh_maxpool_groupnorm,
        conv_transpose3d_max_max_sum,
    )
}


def operator(slug: str) -> Operator:
    """The named operator; an unknown slug raises with the known ones and the nearest."""
    if not isinstance(slug, str):
        example = next(iter(OPERATORS))
        raise TypeError(f"an operator's slug is a str, such as {example!r}, not {slug!r}")
    return OPERATORS[slug] if slug in OPERATORS else OPERATORS[document(slug).slug]


def solution(slug: str) -> Solution:
    """The callable that takes exactly the parameters of the slug's document, in its order."""
    return operator(slug).solution


__all__ = ["OPERATORS", "Operator", "Solution", "operator", "solution"]
