"""The named operators, one small file each."""

from transfuse.operators.asym_kernel import conv_transpose_2d_square_input_asym_kernel
from transfuse.operators.avgpool_clamp_softmax_scale import (
    conv_transpose3d_avgpool_clamp_softmax_multiply,
)
from transfuse.operators.batchnorm_tanh_maxpool_groupnorm import (
    conv_transpose2d_batchnorm_tanh_maxpool_groupnorm,
)
from transfuse.operators.declaration import Operator, Solution
from transfuse.operators.max_max_sum import conv_transpose3d_max_max_sum
from transfuse.operators.softmax_bias_scale_sigmoid import (
    conv_transpose2d_softmax_biasadd_scaling_sigmoid,
)
from transfuse.problems import unknown

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
    """The named operator.

    Args:
        slug: its name, with hyphens, or its short name, as ``transfuse list`` prints both; an
            unknown one raises with the known ones and the nearest

    Returns:
        Operator: the same object as the public function of that name

    Example::

        >>> operator("conv-transpose3d-max-max-sum") is transfuse.conv_transpose3d_max_max_sum
        True
        >>> operator("max-max-sum").slug
        'conv-transpose3d-max-max-sum'
    """
    if not isinstance(slug, str):
        example = next(iter(OPERATORS))
        raise TypeError(f"an operator's slug is a str, such as {example!r}, not {slug!r}")
    named = {name: each for each in OPERATORS.values() for name in (each.slug, each.short)}
    if slug in named:
        return named[slug]
    raise unknown(slug, {name: f"{op.short} ({op.slug})" for name, op in named.items()})


def short(slug: str) -> str:
    """The name of an operator in tables; a slug that is none of an operator stays as it is."""
    return OPERATORS[slug].short if slug in OPERATORS else slug


def solution(slug: str) -> Solution:
    """The callable that takes exactly the parameters of the slug's document, in its order.

    Args:
        slug: the operator's name, or its short one, as ``transfuse list`` prints both; an unknown
            one raises with the known ones and the nearest

    Returns:
        Solution: reads its inputs, writes to its output and returns None. Arrays are torch's,
        NumPy's or anything with DLPack.

    Example::

        >>> input, kernel, output = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), torch.empty(9)
        >>> run = solution("conv-transpose-2d-square-input-asym-kernel")
        >>> run(
        ...     input, kernel, output.view(1, 1, 3, 3), batch_size=1, in_channels=1,
        ...     out_channels=1, height=2, width=2, kernel_h=2, kernel_w=2, stride_h=1, stride_w=1,
        ...     padding_h=0, padding_w=0, output_padding_h=0, output_padding_w=0, dilation_h=1,
        ...     dilation_w=1, groups=1,
        ... )
        >>> output
        tensor([1., 2., 1., 2., 4., 2., 1., 2., 1.])
    """
    return operator(slug).solution


__all__ = ["OPERATORS", "Operator", "Solution", "operator", "short", "solution"]
