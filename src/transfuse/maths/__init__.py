"""The functions that pointwise stages are written in.

They take numbers and expressions and give expressions; ``+ - * / ** < <= > >=`` and ``abs`` do the
same. Any function written in them, without ``if``, is a stage:

>>> from transfuse.maths import erf
>>> from transfuse.stages import pointwise
>>> gelu = pointwise(lambda x: 0.5 * x * (1 + erf(x * 0.7071067811865476)))
>>> print(gelu.expr)
0.5 * x * (1.0 + erf(x * 0.7071067811865476))
"""

from typing import Any

from transfuse.maths.expr import Expr, call


def minimum(a: Any, b: Any) -> Expr:
    """The smaller of two; NaN where either is NaN."""
    return call("minimum", a, b)


def maximum(a: Any, b: Any) -> Expr:
    """The larger of two; NaN where either is NaN."""
    return call("maximum", a, b)


def clamp(x: Any, low: Any, high: Any) -> Expr:
    """``min(max(x, low), high)``, with derivative 1 at both edges."""
    return call("clamp", x, low, high)


def where(condition: Any, a: Any, b: Any) -> Expr:
    """``a`` where a condition such as ``x < 0`` holds, ``b`` elsewhere."""
    return call("where", condition, a, b)


def eq(a: Any, b: Any) -> Expr:
    """The condition that two are equal."""
    return call("eq", a, b)


def both(a: Any, b: Any) -> Expr:
    """The condition that two conditions hold."""
    return call("both", a, b)


def either(a: Any, b: Any) -> Expr:
    """The condition that at least one of two conditions holds."""
    return call("either", a, b)


def no(a: Any) -> Expr:
    """The condition that another does not hold."""
    return call("no", a)


def floor(x: Any) -> Expr:
    """The largest whole number that is not above ``x``."""
    return call("floor", x)


def sqrt(x: Any) -> Expr:
    """The square root."""
    return call("sqrt", x)


def rsqrt(x: Any) -> Expr:
    """``1 / sqrt(x)``"""
    return call("rsqrt", x)


def exp(x: Any) -> Expr:
    """The exponential."""
    return call("exp", x)


def expm1(x: Any) -> Expr:
    """``exp(x) - 1``, right also near 0."""
    return call("expm1", x)


def log(x: Any) -> Expr:
    """The natural logarithm."""
    return call("log", x)


def log1p(x: Any) -> Expr:
    """``log(1 + x)``, right also near 0."""
    return call("log1p", x)


def sin(x: Any) -> Expr:
    """The sine."""
    return call("sin", x)


def cos(x: Any) -> Expr:
    """The cosine."""
    return call("cos", x)


def tanh(x: Any) -> Expr:
    """The hyperbolic tangent."""
    return call("tanh", x)


def sigmoid(x: Any) -> Expr:
    """``1 / (1 + exp(-x))``"""
    return call("sigmoid", x)


def erf(x: Any) -> Expr:
    """The error function."""
    return call("erf", x)
