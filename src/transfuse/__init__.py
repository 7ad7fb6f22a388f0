"""transfuse: transposed convolutions, fused.

>>> y = transfuse.conv_transpose3d_max_max_sum(x, weight, bias, stride=2, padding=2)
>>> y = transfuse.conv_transpose(x, weight, bias, stride=2, then=[sigmoid()])
>>> model = transfuse.fuse(model)
>>> transfuse.solution("conv-transpose3d-max-max-sum")(input, kernel, conv_bias, output, ...)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transfuse import ops, stages
from transfuse.chain import Chain
from transfuse.errors import DocumentError, UnsupportedError
from transfuse.explanation import Explanation, explain
from transfuse.functions import (
    conv_transpose,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from transfuse.operators import (
    Operator,
    operator,
    solution,
)
from transfuse.operators.asym_kernel import conv_transpose_2d_square_input_asym_kernel
from transfuse.operators.avgpool_clamp_softmax_scale import (
    conv_transpose3d_avgpool_clamp_softmax_multiply,
)
from transfuse.operators.batchnorm_tanh_maxpool_groupnorm import (
    conv_transpose2d_batchnorm_tanh_maxpool_groupnorm,
)
from transfuse.operators.max_max_sum import conv_transpose3d_max_max_sum
from transfuse.operators.softmax_bias_scale_sigmoid import (
    conv_transpose2d_softmax_biasadd_scaling_sigmoid,
)
from transfuse.problem import Problem

__version__ = "0.1.0"

if TYPE_CHECKING:
    from transfuse import nn
    from transfuse.fusing import fuse, unfuse


def __getattr__(name: str) -> Any:
    """``nn``, ``fuse`` and ``unfuse``, which are imported when they are first asked for."""
    if name == "nn":
        return import_module("transfuse.nn")
    if name in ("fuse", "unfuse"):
        return getattr(import_module("transfuse.fusing"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Chain",
    "DocumentError",
    "Explanation",
    "Operator",
    "Problem",
    "UnsupportedError",
    "conv_transpose",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose2d_batchnorm_tanh_maxpool_groupnorm",
    "conv_transpose2d_softmax_biasadd_scaling_sigmoid",
    "conv_transpose3d",
    "conv_transpose3d_avgpool_clamp_softmax_multiply",
    "conv_transpose3d_max_max_sum",
    "conv_transpose_2d_square_input_asym_kernel",
    "explain",
    "fuse",
    "nn",
    "operator",
    "ops",
    "solution",
    "stages",
    "unfuse",
]
