"""A product apart: the factors that stay the same along some axes, and those that do not.

A sum over those axes is that of the second alone, and many sums of one region share it: what a
batch norm's four gradients have in common are two sums.
"""

from collections.abc import Callable

from transfuse.maths.expr import Call, Expr, call, constant
from transfuse.maths.primitives import ONE


def factored(expr: Expr, varies: Callable[[str], bool]) -> tuple[Expr, Expr]:
    """``(a, b)`` with ``a * b`` the expression; nothing that ``varies`` is in ``a``.

    Equal products of factors come out as one expression, however they were written.
    """
    outer, over, under = _apart(expr, varies)
    inner = _product(sorted(over, key=str))
    return outer, inner / _product(sorted(under, key=str)) if under else inner


def gathered(expr: Expr, varies: Callable[[str], bool]) -> Expr:
    """An expression whose sums have, in each of their terms, what does not vary as one factor.

    So it is computed once, and not again for every value.
    """
    if isinstance(expr, Call) and expr.primitive in ("add", "sub"):
        first, second = expr.arguments
        if first is not second:
            return call(expr.primitive, gathered(first, varies), gathered(second, varies))
    outer, inner = factored(expr, varies)
    return inner if outer is ONE else outer if inner is ONE else outer * inner


def _apart(expr: Expr, varies: Callable[[str], bool]) -> tuple[Expr, list[Expr], list[Expr]]:
    """What does not vary, the factors that do, and those that it is divided by."""
    if not any(map(varies, expr.names)):
        return expr, [], []
    if isinstance(expr, Call) and expr.primitive == "neg":
        outer, over, under = _apart(expr.arguments[0], varies)
        return _times(constant(-1.0), outer), over, under
    if isinstance(expr, Call) and expr.primitive == "add" and len({*expr.arguments}) == 1:
        outer, over, under = _apart(expr.arguments[0], varies)  # a square's derivative
        return _times(constant(2.0), outer), over, under
    if isinstance(expr, Call) and expr.primitive in ("mul", "div"):
        (a, over, under), (b, more, less) = (_apart(each, varies) for each in expr.arguments)
        if expr.primitive == "mul":
            return _times(a, b), over + more, under + less
        return (a if b is ONE else a / b), over + less, under + more
    return ONE, [expr], []


def _product(factors: list[Expr]) -> Expr:
    found: Expr = ONE
    for each in factors:
        found = _times(found, each)
    return found


def _times(a: Expr, b: Expr) -> Expr:
    return b if a is ONE else a if b is ONE else a * b
