"""The narrowest part of an expression: all that is sought of it passes through there.

A norm and an activation behind it, say: ``relu(u)`` with ``u = (x - mean) * scale + shift``. Each
gradient is the one by ``u`` times the derivative of ``u``. What these have in common is computed,
or stored, once, and sums share factors that would stand within branches otherwise.
"""

from collections.abc import Collection

from transfuse.maths.expr import Call, Expr, Name, call, folded, substituted
from transfuse.maths.expr import name as symbol
from transfuse.maths.primitives import derivative

LINEAR = ("add", "sub", "mul", "neg")
PART = symbol("part")
"""What stands for the part meanwhile; no name of a region."""


def narrowest(expr: Expr, sought: Collection[str], fixed: Collection[str]) -> Expr | None:
    """The least part that all names ``sought`` are within; None where it is the whole, or a name.

    Nothing infinite may come of a branch of ``where`` that is not taken. So behind one the part is
    linear, but for what ``fixed`` names alone make: statistics, at which derivatives are finite.
    """
    for part in expr.walk():  # each after all that it is made of: the least first
        if part.logical:
            continue
        rest = replaced(expr, part, PART)
        if set(rest.names) & set(sought):
            continue
        if part is expr or isinstance(part, Name):
            return None
        chosen = any(isinstance(each, Call) and each.primitive == "where" for each in rest.walk())
        return None if chosen and not _linear(part, fixed) else part
    return None


def by_part(expr: Expr, part: Expr) -> Expr:
    """The derivative of an expression by a part of it."""
    return substituted(derivative(replaced(expr, part, PART), PART.name), {PART.name: part})


def replaced(expr: Expr, part: Expr, by: Expr) -> Expr:
    """An expression with another in place of a part."""

    def apply(each: Call, parts: list[Expr]) -> Expr:
        return by if each is part else call(each.primitive, *parts)

    found: Expr = folded(expr, lambda each: by if each is part else each, apply)
    return found


def _linear(part: Expr, fixed: Collection[str]) -> bool:
    """Whether all but what ``fixed`` names make is sums and products."""
    if not isinstance(part, Call) or set(part.names) <= set(fixed):
        return True
    return part.primitive in LINEAR and all(_linear(each, fixed) for each in part.arguments)
