"""The pointwise stages that models use, under torch's names and with torch's defaults.

Where torch says what happens at an edge or to NaN, so does the way they are written here: relu is
``where(x <= 0, 0, x)``, since torch's lets NaN through and has derivative 0 at 0. An argument is a
number, or a tensor with one value per channel.
"""

import math
from functools import lru_cache, partial
from typing import Any, Literal

import torch
import torch.nn.functional as F

from transfuse import maths
from transfuse.geometry import integer
from transfuse.maths import where
from transfuse.maths.expr import Expr, call
from transfuse.stages.pointwise import Function, Map, pointwise

INF = math.inf


@pointwise(torch=torch.add)
def add(x: Any, other: Any) -> Any:
    """``y = x + other``

    Args:
        other: what is added
    """
    return x + other


@pointwise(torch=torch.sub)
def sub(x: Any, other: Any) -> Any:
    """``y = x - other``

    Args:
        other: what is taken away
    """
    return x - other


@pointwise(torch=torch.mul)
def scale(x: Any, factor: Any) -> Any:
    """``y = x * factor``

    Args:
        factor: what x is multiplied by
    """
    return x * factor


@pointwise(torch=torch.div)
def div(x: Any, other: Any) -> Any:
    """``y = x / other``

    Args:
        other: what x is divided by
    """
    return x / other


@pointwise
def minimum(x: Any, other: Any) -> Any:
    """``y = min(x, other)``; NaN where either is NaN.

    Args:
        other: what x is compared with
    """
    return maths.minimum(x, other)


@pointwise
def maximum(x: Any, other: Any) -> Any:
    """``y = max(x, other)``; NaN where either is NaN.

    Args:
        other: what x is compared with
    """
    return maths.maximum(x, other)


@pointwise(torch=torch.clamp)
def clamp(x: Any, min: Any = -INF, max: Any = INF) -> Any:
    """``y = x`` from ``min`` to ``max``, else the nearer; ``min > max`` gives ``max``, NaN NaN.

    Args:
        min: the least value that is let through. Default: -Inf; so is ``None``
        max: the largest. Default: Inf; so is ``None``
    """
    return maths.clamp(x, min, max)


@pointwise(torch=torch.abs)
def abs(x: Any) -> Any:
    """``y = |x|``"""
    return call("abs", x)


@pointwise(torch=torch.neg)
def neg(x: Any) -> Any:
    """``y = -x``"""
    return -x


@pointwise(torch=torch.square)
def square(x: Any) -> Any:
    """``y = x * x``"""
    return x * x


@pointwise(torch=torch.reciprocal)
def reciprocal(x: Any) -> Any:
    """``y = 1 / x``"""
    return 1.0 / x


@pointwise(torch=torch.sqrt)
def sqrt(x: Any) -> Any:
    """``y = sqrt(x)``; NaN below 0."""
    return maths.sqrt(x)


@pointwise(torch=torch.rsqrt)
def rsqrt(x: Any) -> Any:
    """``y = 1 / sqrt(x)``; NaN below 0."""
    return maths.rsqrt(x)


@pointwise(torch=torch.exp)
def exp(x: Any) -> Any:
    """``y = exp(x)``"""
    return maths.exp(x)


@pointwise(torch=torch.log)
def log(x: Any) -> Any:
    """``y = log(x)``; -Inf at 0, NaN below."""
    return maths.log(x)


@pointwise(torch=torch.sin)
def sin(x: Any) -> Any:
    """``y = sin(x)``"""
    return maths.sin(x)


@pointwise(torch=torch.cos)
def cos(x: Any) -> Any:
    """``y = cos(x)``"""
    return maths.cos(x)


@pointwise(torch=torch.erf)
def erf(x: Any) -> Any:
    """``y = erf(x)``"""
    return maths.erf(x)


@pointwise(torch=torch.tanh)
def tanh(x: Any) -> Any:
    """``y = tanh(x)``"""
    return maths.tanh(x)


@pointwise(torch=torch.sigmoid)
def sigmoid(x: Any) -> Any:
    """``y = 1 / (1 + exp(-x))``"""
    return maths.sigmoid(x)


@pointwise(torch=F.logsigmoid)
def logsigmoid(x: Any) -> Any:
    """``y = log(1 / (1 + exp(-x)))``"""
    return maths.minimum(x, 0.0) - maths.log1p(maths.exp(-call("abs", x)))


@pointwise(torch=F.relu)
def relu(x: Any) -> Any:
    """``y = max(x, 0)``"""
    return where(x <= 0, 0.0, x)


@pointwise(torch=F.hardtanh)
def hardtanh(x: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Any:
    """``y = min(max(x, min_val), max_val)``, with derivative 0 at both edges.

    Args:
        min_val: the least value that is let through. Default: -1
        max_val: the largest. Default: 1
    """
    return where(x <= min_val, min_val, where(x >= max_val, max_val, x))


@pointwise(torch=F.relu6)
def relu6(x: Any) -> Any:
    """``y = min(max(x, 0), 6)``"""
    return hardtanh(x, 0.0, 6.0)


@pointwise(torch=F.leaky_relu)
def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """``y = x`` above 0, ``negative_slope * x`` elsewhere.

    Args:
        negative_slope: factor of what is not above 0. Default: 0.01
    """
    return where(x > 0, x, negative_slope * x)


@pointwise
def prelu(x: Any, weight: Any) -> Any:
    """``y = x`` above 0, ``weight * x`` elsewhere; a weight for each channel, or one for all.

    Args:
        weight: factor of what is not above 0
    """
    return where(x > 0, x, weight * x)


@pointwise(torch=F.elu)
def elu(x: Any, alpha: Any = 1.0) -> Any:
    """``y = x`` above 0, ``alpha * (exp(x) - 1)`` elsewhere.

    Args:
        alpha: factor of what is not above 0; y approaches its negative. Default: 1
    """
    return where(x > 0, x, alpha * maths.expm1(x))


@pointwise(torch=F.selu)
def selu(x: Any) -> Any:
    """``y = s * x`` above 0, ``s * a * (exp(x) - 1)`` elsewhere, with the constants of SELU."""
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


@pointwise(torch=F.celu)
def celu(x: Any, alpha: Any = 1.0) -> Any:
    """``y = x`` above 0, ``alpha * (exp(x / alpha) - 1)`` elsewhere.

    Args:
        alpha: scale of what is not above 0; y approaches its negative. Default: 1
    """
    return where(x > 0, x, alpha * maths.expm1(x / alpha))


@pointwise(torch=F.silu)
def silu(x: Any) -> Any:
    """``y = x * sigmoid(x)``"""
    return x * maths.sigmoid(x)


@pointwise(torch=F.softplus)
def softplus(x: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    """``y = log(1 + exp(beta * x)) / beta``; ``x`` where ``beta * x > threshold``.

    Args:
        beta: how sharp the bend is. Default: 1
        threshold: where ``beta * x`` is larger, y is x itself. Default: 20
    """
    return where(beta * x > threshold, x, maths.log1p(maths.exp(beta * x)) / beta)


@pointwise(torch=F.mish)
def mish(x: Any) -> Any:
    """``y = x * tanh(log(1 + exp(x)))``"""
    return x * maths.tanh(where(x > 20, x, maths.log1p(maths.exp(x))))


@pointwise
def softsign(x: Any) -> Any:
    """``y = x / (1 + |x|)``"""
    return x / (1.0 + call("abs", x))


@pointwise(torch=F.hardswish)
def hardswish(x: Any) -> Any:
    """``y = x * min(max(x + 3, 0), 6) / 6``"""
    return x * where(x <= -3, 0.0, where(x >= 3, 6.0, x + 3)) / 6


@pointwise(torch=F.hardsigmoid)
def hardsigmoid(x: Any) -> Any:
    """``y = min(max(x + 3, 0), 6) / 6``"""
    return where(x <= -3, 0.0, where(x >= 3, 1.0, (x + 3) / 6))


@pointwise
def tanhshrink(x: Any) -> Any:
    """``y = x - tanh(x)``"""
    return x - maths.tanh(x)


@pointwise(torch=F.hardshrink)
def hardshrink(x: Any, lambd: Any = 0.5) -> Any:
    """``y = x`` further than ``lambd`` from 0, 0 within.

    Args:
        lambd: how far from 0 values become 0. Default: 0.5
    """
    return where(call("abs", x) <= lambd, 0.0, x)


@pointwise(torch=F.softshrink)
def softshrink(x: Any, lambd: Any = 0.5) -> Any:
    """``y = x - lambd`` above ``lambd``, ``x + lambd`` below ``-lambd``, 0 between.

    Args:
        lambd: how far values are moved towards 0. Default: 0.5
    """
    return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, 0.0 * x))


@pointwise(torch=F.threshold)
def threshold(x: Any, threshold: Any, value: Any) -> Any:
    """``y = x`` above ``threshold``, ``value`` elsewhere.

    Args:
        threshold: above it values stay
        value: what the others become
    """
    return where(x <= threshold, value, x)


@pointwise(torch=F.gelu)
def gelu_erf(x: Any) -> Any:
    """``y = x * (1 + erf(x / sqrt(2))) / 2``"""
    return 0.5 * x * (1 + maths.erf(x * math.sqrt(0.5)))


@pointwise(torch=partial(F.gelu, approximate="tanh"))
def gelu_tanh(x: Any) -> Any:
    """``y = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2``"""
    inner = x + 0.044715 * (x * x * x)
    return 0.5 * x * (1 + maths.tanh(math.sqrt(2 / math.pi) * inner))


def gelu(approximate: Literal["none", "tanh"] = "none") -> Map:
    r"""GELU, as ``torch.nn.functional.gelu``.

    .. math::
        y = x \cdot \Phi(x)

    where :math:`\Phi` is the distribution function of the normal distribution.

    Args:
        approximate: ``"none"`` is ``gelu_erf``, ``"tanh"`` is ``gelu_tanh``. Default: ``"none"``

    Shape:
        - x: any
        - y: the same

    Returns:
        Map: the stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``

    Example::

        >>> y = conv_transpose(x, w, then=[gelu("tanh")])
    """
    if isinstance(approximate, Expr):
        raise TypeError("gelu makes a stage; of an expression it is gelu_erf(x) or gelu_tanh(x)")
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"gelu: approximate must be 'none' or 'tanh', but got {approximate!r}")
    return gelu_tanh() if approximate == "tanh" else gelu_erf()


def pow(exponent: int) -> Map:
    r"""A whole power, by multiplication.

    .. math::
        y = x^{\text{exponent}}

    Args:
        exponent: an integer; a negative one gives the reciprocal of the power

    Shape:
        - x: any
        - y: the same

    Returns:
        Map: the stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``

    Example::

        >>> y = conv_transpose(x, w, then=[pow(3)])
    """
    return _power(integer("pow: exponent", exponent))()


@lru_cache(maxsize=1024)
def _power(exponent: int) -> Function:
    of_torch = partial(torch.pow, exponent=exponent)
    return Function(lambda x: x**exponent, of_torch, name=f"pow({exponent})")
