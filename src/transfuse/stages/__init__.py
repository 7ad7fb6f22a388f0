"""The stages a chain is made of, under the names in which chains are written.

>>> from transfuse.stages import group_norm, sigmoid, softmax
"""

from numbers import Real
from typing import Literal

from transfuse.stages.activations import (
    abs,
    add,
    celu,
    clamp,
    cos,
    div,
    elu,
    erf,
    exp,
    gelu,
    gelu_erf,
    gelu_tanh,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log,
    logsigmoid,
    maximum,
    minimum,
    mish,
    neg,
    pow,
    prelu,
    reciprocal,
    relu,
    relu6,
    rsqrt,
    scale,
    selu,
    sigmoid,
    silu,
    sin,
    softplus,
    softshrink,
    softsign,
    sqrt,
    square,
    sub,
    tanh,
    tanhshrink,
    threshold,
)
from transfuse.stages.base import Env, Kind, Number, Operand, Stage
from transfuse.stages.channel import ChannelSoftmax, ChannelSum
from transfuse.stages.convolution import ConvTranspose
from transfuse.stages.pointwise import Function, Map, pointwise
from transfuse.stages.whole import BatchNorm, GroupNorm, RunningNorm, SpaceSoftmax
from transfuse.stages.window import AvgPool, MaxPool

avg_pool = AvgPool
conv_transpose = ConvTranspose
group_norm = GroupNorm
max_pool = MaxPool


def batch_norm(
    running_mean: Operand = None,
    running_var: Operand = None,
    weight: Operand = None,
    bias: Operand = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> BatchNorm | RunningNorm:
    r"""Batch norm, with the arguments of ``torch.nn.functional.batch_norm`` after its input.

    .. math::
        y = \frac{x - \mathrm{mean}}{\sqrt{\mathrm{var} + \mathrm{eps}}}
            \cdot \mathrm{weight} + \mathrm{bias}

    for each channel. Which statistics these are is always said:

    - ``training=False``: the running ones, which must be given. Nothing is gathered, so this is an
      element's affair and fuses like an addition.
    - ``training=True``: those of this batch, over samples and positions, the variance biased.
      Running statistics that are given **are written to**, once for each call that does not raise:
      ``running = (1 - momentum) * running + momentum * found``, with the unbiased variance.

    What a ``torch.nn.BatchNorm2d`` does that keeps running statistics with a ``momentum``, in the
    mode that it is in::

        bn.running_mean, bn.running_var, bn.weight, bn.bias, bn.training, bn.momentum, bn.eps

    Args:
        running_mean: one value per channel, or the name that a call gives it under. Memory that is
            written to must be its own: no other tensor of the call may share it.
        running_var: the same of the variance; both, or neither.
        weight: factor of each channel. Default: 1
        bias: term of each channel. Default: 0
        training: whether the statistics are those of this batch. Default: ``False``
        momentum: how far running statistics move. Default: 0.1
        eps: what is added to the variance. Default: 1e-5

    Beside values of 16 bits all four tensors may be float32.

    Shape:
        - x: :math:`(N, C, *)`, and with ``training=True`` more than one value for each channel
        - y: the same

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> mean, var = torch.zeros(8), torch.ones(8)
        >>> y = conv_transpose(x, w, then=[batch_norm(mean, var)])
        >>> y = conv_transpose(x, w, then=[batch_norm(mean, var, training=True)])  # moves both
    """
    if not isinstance(training, bool):
        raise TypeError(f"batch_norm: training must be bool, not {type(training).__name__}")
    for name, given in (("momentum", momentum), ("eps", eps)):
        if not isinstance(given, Real):
            raise TypeError(f"batch_norm: {name} must be float, not {type(given).__name__}")
    momentum, eps = float(momentum), float(eps)
    if eps < 0 or (training and eps == 0):
        legal = "positive in training" if training else "non-negative"
        raise ValueError(f"batch_norm: eps must be {legal}, but got {eps}")
    missing = [
        name
        for name, given in (("running_mean", running_mean), ("running_var", running_var))
        if given is None
    ]
    if not training:
        if missing:
            raise RuntimeError(
                f"batch_norm: without training it normalises with the running statistics, and "
                f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; "
                "pass running_mean and running_var, or "
                "training=True for the statistics of the batch"
            )
        return RunningNorm(running_mean, running_var, weight, bias, eps)  # type: ignore[arg-type]
    if len(missing) == 1:
        raise ValueError(
            f"batch_norm: running_mean and running_var must be given both or neither, and "
            f"{missing[0]} is missing"
        )
    return BatchNorm(running_mean, running_var, weight, bias, momentum, eps)


def softmax(over: Literal["channels", "space"]) -> ChannelSoftmax | SpaceSoftmax:
    """Softmax over the channels of each position, or over all positions of each channel."""
    if over not in ("channels", "space"):
        raise ValueError(f"softmax goes over 'channels' or 'space', not {over!r}")
    return ChannelSoftmax() if over == "channels" else SpaceSoftmax()


def sum(over: Literal["channels"]) -> ChannelSum:
    """Sum over the channels of each position."""
    if over != "channels":
        raise ValueError(f"sum goes over 'channels', not {over!r}")
    return ChannelSum()


__all__ = [
    "ConvTranspose",
    "Env",
    "Function",
    "Kind",
    "Map",
    "Number",
    "Operand",
    "Stage",
    "abs",
    "add",
    "avg_pool",
    "batch_norm",
    "celu",
    "clamp",
    "conv_transpose",
    "cos",
    "div",
    "elu",
    "erf",
    "exp",
    "gelu",
    "gelu_erf",
    "gelu_tanh",
    "group_norm",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "log",
    "logsigmoid",
    "max_pool",
    "maximum",
    "minimum",
    "mish",
    "neg",
    "pointwise",
    "pow",
    "prelu",
    "reciprocal",
    "relu",
    "relu6",
    "rsqrt",
    "scale",
    "selu",
    "sigmoid",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "softshrink",
    "softsign",
    "sqrt",
    "square",
    "sub",
    "sum",
    "tanh",
    "tanhshrink",
    "threshold",
]
