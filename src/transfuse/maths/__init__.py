"""The functions that pointwise stages are written in.

They take numbers and expressions and give expressions; ``+ - * / ** < <= > >= & | ~`` and ``abs``
do the same, and in a pointwise function ``==`` and ``!=``. Any function written in them, without
``if``, is a stage:

>>> from transfuse.maths import erf
>>> from transfuse.stages import pointwise
>>> gelu = pointwise(lambda x: 0.5 * x * (1 + erf(x * 0.7071067811865476)))
>>> print(gelu.expr)
0.5 * x * (1.0 + erf(x * 0.7071067811865476))
"""

from typing import Any

from transfuse.maths.expr import Expr, call


def minimum(a: Any, b: Any) -> Expr:
    r"""The smaller of two; NaN where either is NaN.

    .. math:: y = \min(a, b)

    Args:
        a: a number or an expression
        b: the other

    Returns:
        Expr: the value, as data

    Example::

        >>> print(minimum(x, 1))
        minimum(x, 1.0)
    """
    return call("minimum", a, b)


def maximum(a: Any, b: Any) -> Expr:
    r"""The larger of two; NaN where either is NaN.

    .. math:: y = \max(a, b)

    Args:
        a: a number or an expression
        b: the other

    Returns:
        Expr: the value, as data

    Example::

        >>> print(maximum(x, 0))
        maximum(x, 0.0)
    """
    return call("maximum", a, b)


def clamp(x: Any, low: Any, high: Any) -> Expr:
    r"""A value between two bounds, with derivative 1 at both edges.

    .. math:: y = \min(\max(x, \text{low}), \text{high})

    Args:
        x: a number or an expression
        low: the least value that is let through
        high: the largest

    Returns:
        Expr: the value, as data

    Example::

        >>> print(clamp(x, 0, 6))
        clamp(x, 0.0, 6.0)
    """
    return call("clamp", x, low, high)


def where(condition: Any, a: Any, b: Any) -> Expr:
    r"""``a`` where a condition such as ``x < 0`` holds, ``b`` elsewhere.

    .. math:: y = \begin{cases} a & \text{if condition} \\ b & \text{otherwise} \end{cases}

    Args:
        condition: a comparison
        a: a number or an expression
        b: the other

    Returns:
        Expr: the value, as data

    Example::

        >>> print(where(x > 0, x, 0))
        where(0.0 < x, x, 0.0)
    """
    return call("where", condition, a, b)


def eq(a: Any, b: Any) -> Expr:
    r"""The condition that two are equal.

    .. math:: y = (a = b)

    Args:
        a: a number or an expression
        b: the other

    Returns:
        Expr: a condition, as data

    Example::

        >>> print(eq(x, 0))
        x == 0.0
    """
    return call("eq", a, b)


def both(a: Any, b: Any) -> Expr:
    r"""The condition that two conditions hold.

    .. math:: y = a \land b

    Args:
        a: a condition
        b: the other

    Returns:
        Expr: a condition, as data

    Example::

        >>> print(both(x > 0, x < 1))
        both(0.0 < x, x < 1.0)
    """
    return call("both", a, b)


def either(a: Any, b: Any) -> Expr:
    r"""The condition that at least one of two conditions holds.

    .. math:: y = a \lor b

    Args:
        a: a condition
        b: the other

    Returns:
        Expr: a condition, as data

    Example::

        >>> print(either(x < 0, x > 1))
        either(x < 0.0, 1.0 < x)
    """
    return call("either", a, b)


def no(a: Any) -> Expr:
    r"""The condition that another does not hold.

    .. math:: y = \lnot a

    Args:
        a: a condition

    Returns:
        Expr: a condition, as data

    Example::

        >>> print(no(x < 0))
        no(x < 0.0)
    """
    return call("no", a)


def floor(x: Any) -> Expr:
    r"""The largest whole number that is not above ``x``.

    .. math:: y = \lfloor x \rfloor

    Args:
        x: a number or an expression

    Returns:
        Expr: the value, as data

    Example::

        >>> print(floor(x))
        floor(x)
    """
    return call("floor", x)


def sqrt(x: Any) -> Expr:
    r"""The square root.

    .. math:: y = \sqrt{x}

    Args:
        x: a number or an expression

    Returns:
        Expr: the value, as data

    Example::

        >>> print(sqrt(x))
        sqrt(x)
    """
    return call("sqrt", x)


def rsqrt(x: Any) -> Expr:
    r"""One by the square root.

    .. math:: y = 1 / \sqrt{x}

    Args:
        x: a number or an expression

    Returns:
        Expr: the value, as data

    Example::

        >>> print(rsqrt(x))
        rsqrt(x)
    """
    return call("rsqrt", x)


def exp(x: Any) -> Expr:
    r"""The exponential.

    .. math:: y = e^x

    Args:
        x: a number or an expression

    Returns:
        Expr: the value, as data

    Example::

        >>> print(exp(x))
        exp(x)
    """
    return call("exp", x)


def expm1(x: Any) -> Expr:
    r"""The exponential less 1, right also near 0.

    .. math:: y = e^x - 1

    Args:
        x: a number or an expression

    Returns:
        Expr: the value, as data

    Example::

        >>> print(expm1(x))
        expm1(x)
    """
    return call("expm1", x)


def log(x: Any) -> Expr:
    r"""The natural logarithm.

    .. math:: y = \ln x

    Args:
        x: a number or an expression

    Returns:
        Expr: the value, as data

    Example::

        >>> print(log(x))
        log(x)
    """
    return call("log", x)


def log1p(x: Any) -> Expr:
    r"""The logarithm of 1 and ``x``, right also near 0.

    .. math:: y = \ln(1 + x)

    Args:
        x: a number or an expression

    Returns:
        Expr: the value, as data

    Example::

        >>> print(log1p(x))
        log1p(x)
    """
    return call("log1p", x)


def sin(x: Any) -> Expr:
    r"""The sine.

    .. math:: y = \sin x

    Args:
        x: a number or an expression

    Returns:
        Expr: the value, as data

    Example::

        >>> print(sin(x))
        sin(x)
    """
    return call("sin", x)


def cos(x: Any) -> Expr:
    r"""The cosine.

    .. math:: y = \cos x

    Args:
        x: a number or an expression

    Returns:
        Expr: the value, as data

    Example::

        >>> print(cos(x))
        cos(x)
    """
    return call("cos", x)


def tanh(x: Any) -> Expr:
    r"""The hyperbolic tangent.

    .. math:: y = \tanh x

    Args:
        x: a number or an expression

    Returns:
        Expr: the value, as data

    Example::

        >>> print(tanh(x))
        tanh(x)
    """
    return call("tanh", x)


def sigmoid(x: Any) -> Expr:
    r"""The logistic function.

    .. math:: y = 1 / (1 + e^{-x})

    Args:
        x: a number or an expression

    Returns:
        Expr: the value, as data

    Example::

        >>> print(sigmoid(x))
        sigmoid(x)
    """
    return call("sigmoid", x)


def erf(x: Any) -> Expr:
    r"""The error function.

    .. math:: y = \frac{2}{\sqrt{\pi}} \int_0^x e^{-t^2} dt

    Args:
        x: a number or an expression

    Returns:
        Expr: the value, as data

    Example::

        >>> print(erf(x))
        erf(x)
    """
    return call("erf", x)
