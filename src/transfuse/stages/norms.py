"""Norms under torch's names: each function makes one stage, :class:`Norm`."""

from typing import Literal

from transfuse.stages.base import Operand
from transfuse.stages.norm import Norm, maker
from transfuse.stages.norm_checks import expect_eps, expect_flag, expect_running, numbers, sizes


@maker
def batch_norm(
    running_mean: Operand = None,
    running_var: Operand = None,
    weight: Operand = None,
    bias: Operand = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Norm:
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
    expect_flag("batch_norm", "training", training)
    momentum, eps = numbers("batch_norm", momentum=momentum, eps=eps)
    if eps < 0 or (training and eps == 0):
        legal = "positive in training" if training else "non-negative"
        raise ValueError(f"batch_norm: eps must be {legal}, but got {eps}")
    expect_running("batch_norm", "training", training, running_mean, running_var)
    given = (running_mean, running_var, weight, bias, momentum if training else 0.1, eps)
    return Norm("batch_norm", "batch", None, *given, training=training)


@maker
def group_norm(
    num_groups: int | str, weight: Operand = None, bias: Operand = None, eps: float = 1e-5
) -> Norm:
    r"""Group norm, with the arguments of ``torch.nn.functional.group_norm`` after its input.

    .. math::
        y = \frac{x - \mathrm{mean}}{\sqrt{\mathrm{var} + \mathrm{eps}}}
            \cdot \mathrm{weight} + \mathrm{bias}

    with mean and biased variance of each sample's groups of neighbouring channels.

    Args:
        num_groups: how many groups the channels fall into; it divides them.
        weight: factor of each channel. Default: 1
        bias: term of each channel. Default: 0
        eps: what is added to the variance. Default: 1e-5

    Beside values of 16 bits weight and bias may be float32.

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> y = conv_transpose(x, w, then=[group_norm(4, torch.ones(8), torch.zeros(8))])
        >>> bool(y[:, :2].mean((1, 2, 3)).abs().max() < 1e-5)
        True
    """
    expect_eps("group_norm", eps)
    return Norm("group_norm", "groups", num_groups, weight=weight, bias=bias, eps=eps)


@maker
def instance_norm(
    running_mean: Operand = None,
    running_var: Operand = None,
    weight: Operand = None,
    bias: Operand = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Norm:
    r"""Instance norm, with the arguments of ``torch.nn.functional.instance_norm`` after its input.

    .. math::
        y = \frac{x - \mathrm{mean}}{\sqrt{\mathrm{var} + \mathrm{eps}}}
            \cdot \mathrm{weight} + \mathrm{bias}

    with mean and biased variance of each channel of each sample.

    Args:
        running_mean: one value per channel. With ``use_input_stats`` it is written to:
            ``running = (1 - momentum) * running + momentum * found``, the mean over samples.
        running_var: the same of the variance, of which the unbiased one is found.
        weight: factor of each channel. Default: 1
        bias: term of each channel. Default: 0
        use_input_stats: whether the statistics are those of the values; otherwise they are the
            running ones, which must be given. Default: ``True``
        momentum: how far running statistics move. Default: 0.1
        eps: what is added to the variance. Default: 1e-5

    Beside values of 16 bits all four tensors may be float32.

    Shape:
        - x: :math:`(N, C, *)`, with ``use_input_stats`` more than one position
        - y: the same

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> y = conv_transpose(x, w, then=[instance_norm()])
        >>> bool(y.mean((2, 3)).abs().max() < 1e-5)
        True
    """
    expect_flag("instance_norm", "use_input_stats", use_input_stats)
    momentum, eps = numbers("instance_norm", momentum=momentum, eps=eps)
    expect_running("instance_norm", "use_input_stats", use_input_stats, running_mean, running_var)
    given = (running_mean, running_var, weight, bias, momentum if use_input_stats else 0.1, eps)
    return Norm("instance_norm", "groups", None, *given, training=use_input_stats)


@maker
def layer_norm(
    normalized_shape: int | tuple[int, ...] | Literal["channels"],
    weight: Operand = None,
    bias: Operand = None,
    eps: float = 1e-5,
) -> Norm:
    r"""Layer norm, with the arguments of ``torch.nn.functional.layer_norm`` after its input.

    .. math::
        y = \frac{x - \mathrm{mean}}{\sqrt{\mathrm{var} + \mathrm{eps}}}
            \cdot \mathrm{weight} + \mathrm{bias}

    with mean and biased variance over the last axes, or over the channels of each position.

    Args:
        normalized_shape: the sizes of the last axes, or ``"channels"``.
        weight: factors of that shape, one per channel for ``"channels"``. Default: 1
        bias: terms likewise. Default: 0
        eps: what is added to the variance. Default: 1e-5

    Beside values of 16 bits weight and bias may be float32.

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> y = conv_transpose(x, w, then=[layer_norm("channels", torch.ones(8))])
        >>> bool(y.mean(1).abs().max() < 1e-5)
        True
        >>> y = conv_transpose(x, w, then=[layer_norm((7, 7))])
    """
    expect_eps("layer_norm", eps)
    over = sizes("layer_norm", normalized_shape)
    return Norm("layer_norm", over, weight=weight, bias=bias, eps=eps)


@maker
def rms_norm(
    normalized_shape: int | tuple[int, ...] | Literal["channels"],
    weight: Operand = None,
    eps: float | None = None,
) -> Norm:
    r"""RMS norm, with the arguments of ``torch.nn.functional.rms_norm`` after its input.

    .. math:: y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \mathrm{eps}}} \cdot \mathrm{weight}

    with the mean over the last axes, or over the channels of each position.

    Args:
        normalized_shape: the sizes of the last axes, or ``"channels"``.
        weight: factors of that shape, one per channel for ``"channels"``. Default: 1
        eps: what is added to the mean. Default: the distance from 1 to the next number in float32,
            and in float64 for values of that type

    Beside values of 16 bits weight may be float32.

    Shape:
        - x: :math:`(N, C, *)`
        - y: the same

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> y = conv_transpose(x, w, then=[rms_norm("channels", torch.ones(8))])
        >>> bool((y.square().mean(1) - 1).abs().max() < 1e-3)
        True
    """
    over = sizes("rms_norm", normalized_shape)
    return Norm("rms_norm", over, weight=weight, eps=eps, centred=False)
