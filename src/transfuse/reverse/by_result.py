"""Derivatives as expressions of the result: the values before it need not be known then.

A tanh's derivative names the tanh itself, and relu's or leaky_relu's asks on which side of 0 its
argument lies: their results lie on the same.
"""

from transfuse.maths.expr import Call, Constant, Expr, Name, call, folded


def by_result(expr: Expr, whole: Expr, result: Name) -> Expr:
    """An expression with the result in place of ``whole``, and of what conditions say of it.

    What it still reads of ``x`` the result does not tell.
    """
    side = _side(whole)

    def apply(each: Call, parts: list[Expr]) -> Expr:
        if each is whole:
            return result
        if side is not None and each is side[0]:
            return call(
                each.primitive, *(result if part is side[1] else part for part in each.parts)
            )
        return call(each.primitive, *parts)

    found: Expr = folded(expr, lambda each: result if each is whole else each, apply)
    return found


def _side(whole: Expr) -> tuple[Expr, Expr] | None:
    """The condition that compares a part with 0, and the part, where the same holds for the result.

    What lies strictly on one side is given as it is; all else is a multiple of no other sign, which
    may become 0, or 0.
    """
    if not isinstance(whole, Call) or whole.primitive != "where":
        return None
    condition, taken, other = whole.arguments
    if not isinstance(condition, Call) or condition.primitive not in ("lt", "le"):
        return None
    left, right = condition.arguments
    zero_left, zero_right = _is_zero(left), _is_zero(right)
    if zero_left == zero_right:
        return None
    part = right if zero_left else left
    strict, rest = (taken, other) if condition.primitive == "lt" else (other, taken)
    return (condition, part) if strict is part and _no_other_sign(rest, part) else None


def _no_other_sign(expr: Expr, part: Expr) -> bool:
    if expr is part or _is_zero(expr):
        return True
    if not isinstance(expr, Call) or expr.primitive != "mul":
        return False
    factors = [each for each in expr.arguments if each is not part]
    return len(factors) == 1 and isinstance(factors[0], Constant) and factors[0].value >= 0


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Constant) and expr.value == 0
