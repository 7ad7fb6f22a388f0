"""What each primitive of expressions means: in torch, its derivative, how it rises.

One row each. A backend has a table of its own, of how it computes them, and holds the two against
each other when it is imported: a primitive that one lacks is an error there, not at some call.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor

from transfuse.maths.expr import (
    ARITY,
    INF,
    Call,
    Constant,
    Expr,
    Name,
    X,
    call,
    constant,
    folded,
)
from transfuse.symbols import least, most

ONE, ZERO = constant(1.0), constant(0.0)


@dataclass(frozen=True)
class Primitive:
    """One row.

    ``partials`` gives the derivative by each argument from the arguments, None where it is 0.
    ``rises`` says of each argument whether the result rises (1) or falls (-1) with it, or neither
    (0). ``exact``: small integers give representable results. ``least``: below it there is no
    value but NaN. ``ulp``: how far the CPU core's results may be from the exact ones, in units of
    the last place; 0.5 is correctly rounded. ``gpu``: the same of a GPU, as PTX and libdevice
    document their functions; exponentials of float32 are powers of two there, so that the error
    grows with their argument. ``flushed``: there float32 below the normal numbers may count as 0,
    as argument and as result.

    ``special``: operations of a GPU's special-function units that it takes at least, or plain ones
    that take no less time: one, where an algorithm is known that gets by with it, as a sigmoid does
    that is half a tanh. ``plain``: a CPU has an instruction for it, faster than any exponential.
    """

    torch: Callable[..., Tensor]
    partials: Callable[..., tuple[Expr | None, ...]]
    rises: tuple[int, ...]
    exact: bool = False
    least: float = -INF
    ulp: float = 0.5
    gpu: float = 0.5
    flushed: bool = False
    special: int = 0
    plain: bool = True


def _none(*arguments: Expr) -> tuple[None, ...]:
    return (None,) * len(arguments)


def _half_at_ties(a: Expr, b: Expr, first: Expr) -> tuple[Expr, Expr]:
    """Of two that meet at a minimum or maximum each gets half, as torch shares it out."""
    tie = call("eq", a, b)
    other = call("no", first)
    return call("where", tie, 0.5, _one_where(first)), call("where", tie, 0.5, _one_where(other))


def _clamped(x: Expr, low: Expr, high: Expr) -> tuple[Expr, Expr, Expr]:
    """Whoever gives the value; at an edge x does, and where low > high, high does."""
    inside = call("both", low <= x, x <= high)
    least = call("both", x < low, low < high)
    return _one_where(inside), _one_where(least), _one_where(call("either", high < x, high < low))


def _one_where(condition: Expr) -> Expr:
    return call("where", condition, 1.0, 0.0)


def _sign(x: Expr) -> Expr:
    return call("where", x < 0, -1.0, _one_where(x > 0))


def _slow(
    torch: Callable[..., Tensor],
    partials: Callable[..., tuple[Expr | None, ...]],
    rises: tuple[int, ...],
    ulp: float,
    gpu: float,
    least: float = -INF,
) -> Primitive:
    """One that takes a special function, and that a CPU has no instruction for."""
    return Primitive(
        torch,
        partials,
        rises,
        least=least,
        ulp=ulp,
        gpu=gpu,
        flushed=True,
        special=1,
        plain=False,
    )


PRIMITIVES: Mapping[str, Primitive] = {
    "add": Primitive(torch.add, lambda a, b: (ONE, ONE), (1, 1), exact=True),
    "sub": Primitive(torch.sub, lambda a, b: (ONE, -ONE), (1, -1), exact=True),
    "mul": Primitive(torch.mul, lambda a, b: (b, a), (0, 0), exact=True),
    "div": Primitive(torch.div, lambda a, b: (1.0 / b, -(a / b) / b), (0, 0), gpu=2, special=1),
    "neg": Primitive(torch.neg, lambda a: (-ONE,), (-1,), exact=True),
    "abs": Primitive(torch.abs, lambda a: (_sign(a),), (0,), exact=True),
    "minimum": Primitive(
        torch.minimum, lambda a, b: _half_at_ties(a, b, a < b), (1, 1), exact=True
    ),
    "maximum": Primitive(
        torch.maximum, lambda a, b: _half_at_ties(a, b, b < a), (1, 1), exact=True
    ),
    "clamp": Primitive(torch.clamp, _clamped, (1, 1, 1), exact=True),
    "floor": Primitive(torch.floor, _none, (1,), exact=True, flushed=True),
    "where": Primitive(
        torch.where,
        lambda c, a, b: (None, _one_where(c), _one_where(call("no", c))),
        (0, 0, 0),
        exact=True,
    ),
    "lt": Primitive(torch.lt, _none, (0, 0), exact=True),
    "le": Primitive(torch.le, _none, (0, 0), exact=True),
    "eq": Primitive(torch.eq, _none, (0, 0), exact=True),
    "both": Primitive(torch.logical_and, _none, (0, 0), exact=True),
    "either": Primitive(torch.logical_or, _none, (0, 0), exact=True),
    "no": Primitive(torch.logical_not, _none, (0,), exact=True),
    "sqrt": Primitive(
        torch.sqrt,
        lambda a: (0.5 / call("sqrt", a),),
        (1,),
        least=0.0,
        gpu=2,
        flushed=True,
        special=1,
    ),
    "rsqrt": Primitive(
        torch.rsqrt,
        lambda a: (-0.5 * call("rsqrt", a) / a,),
        (-1,),
        least=0.0,
        ulp=1.5,
        gpu=4,
        flushed=True,
        special=1,
    ),
    "exp": _slow(torch.exp, lambda a: (call("exp", a),), (1,), ulp=1, gpu=64),
    "expm1": _slow(torch.expm1, lambda a: (call("exp", a),), (1,), ulp=2, gpu=64),
    "log": _slow(torch.log, lambda a: (1.0 / a,), (1,), least=0.0, ulp=1, gpu=4),
    "log1p": _slow(torch.log1p, lambda a: (1.0 / (1.0 + a),), (1,), least=-1.0, ulp=3, gpu=6),
    "sin": _slow(torch.sin, lambda a: (call("cos", a),), (0,), ulp=3, gpu=3),
    "cos": _slow(torch.cos, lambda a: (-call("sin", a),), (0,), ulp=3, gpu=3),
    "tanh": _slow(torch.tanh, lambda a: (1.0 - call("tanh", a) ** 2,), (1,), ulp=2, gpu=4),
    "sigmoid": _slow(
        torch.sigmoid, lambda a: (call("sigmoid", a) * call("sigmoid", -a),), (1,), ulp=3, gpu=64
    ),
    "erf": _slow(torch.erf, lambda a: (2 / sqrt(pi) * call("exp", -(a * a)),), (1,), ulp=2, gpu=2),
}


def complete(table: Mapping[str, Any], whose: str) -> None:
    """Hold a backend's table against the primitives; what it lacks, or has too many, raises."""
    missing, unknown = ARITY.keys() - table.keys(), table.keys() - ARITY.keys()
    if missing or unknown:
        raise ImportError(
            f"{whose} lacks the primitives {sorted(missing)}, has {sorted(unknown)} that are none"
        )


complete(PRIMITIVES, __name__)


class InTorch:
    """An expression in torch, as a function of values by name and of a tensor whose type it has.

    Values are numbers and tensors. Its steps are laid out once: ``torch.compile`` follows a call of
    it, but cannot look anything up by an expression.
    """

    def __init__(self, expr: Expr) -> None:
        order = expr.walk()
        at = {each: i for i, each in enumerate(order)}
        self.expr = expr
        self.steps: list[tuple[Callable[..., Tensor] | None, Any]] = []
        for each in order:
            if isinstance(each, Call):
                places = [at[part] for part in each.arguments]
                self.steps.append((PRIMITIVES[each.primitive].torch, places))
            elif isinstance(each, Constant):
                self.steps.append((None, each.value))
            else:
                assert isinstance(each, Name)
                self.steps.append((None, each.name))

    def __reduce__(self) -> Any:
        return InTorch, (self.expr,)

    def __call__(self, values: Mapping[str, Any], like: Tensor) -> Tensor:
        found: list[Tensor] = []
        for function, what in self.steps:
            if function is not None:
                found.append(function(*[found[i] for i in what]))
                continue
            value = values[what] if isinstance(what, str) else what
            found.append(value if isinstance(value, Tensor) else like.new_full((), value))
        return found[-1]


def specials(expr: Expr, cpu: bool) -> int:
    """Special functions that a value of an expression takes at least, on a GPU or on a ``cpu``.

    Those of ``x``: what depends on arguments alone may be computed once for many values, and to
    divide by it is to multiply. Of functions of functions the outermost counts: some fold into one,
    as the tanh of a softplus does.
    """

    def varies(each: Expr) -> bool:
        return X in each.walk()

    found: dict[Expr, int] = {}
    waiting = [expr]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, Call) or each in found:
            continue
        row = PRIMITIVES[each.primitive]
        own = 0 if cpu and row.plain else row.special
        counts = own and varies(each.arguments[-1] if each.primitive == "div" else each)
        found[each] = own if counts else 0
        waiting += () if counts else each.arguments
    return sum(found.values())


def derivative(expr: Expr, by: str) -> Expr:
    """How an expression changes with one of its names.

    A branch of ``where`` that is not taken takes no part, so what it would divide by or overflow
    does not matter. torch multiplies it by 0, and gets NaN where it is infinite.
    """

    def leaf(each: Expr) -> Expr | None:
        return ONE if isinstance(each, Name) and each.name == by else None

    def apply(each: Call, changes: list[Expr | None]) -> Expr | None:
        if each.primitive == "where":
            if changes[1] is None and changes[2] is None:
                return None
            taken = [ZERO if change is None else change for change in changes[1:]]
            return call("where", each.arguments[0], *taken)
        total: Expr | None = None
        for partial, change in zip(
            PRIMITIVES[each.primitive].partials(*each.arguments), changes, strict=True
        ):
            if partial is None or change is None:
                continue
            term = _times(partial, change)
            total = term if total is None else total + term
        return total

    found: Expr | None = folded(expr, leaf, apply)
    return ZERO if found is None else found


def _times(a: Expr, b: Expr) -> Expr:
    """A product without factors of 1, which would change nothing."""
    return b if a is ONE else a if b is ONE else a * b


def direction(expr: Expr, by: str, numbers: Mapping[str, float]) -> int | None:
    """Whether an expression rises (1) or falls (-1) with a name, or does not use it (0).

    None where neither is known, or where it may make NaN of numbers: what rises keeps the largest
    value the largest, and NaN would not. ``numbers`` are those of the other names; one that is
    missing stands for any value.
    """

    def leaf(each: Expr) -> int | None:
        return int(isinstance(each, Name) and each.name == by)

    def apply(each: Call, ways: list[int | None]) -> int | None:
        if not any(ways) and None not in ways:
            return 0
        if each.primitive == "where":
            return 1 if _rises_in_parts(each, ways, by, numbers) else None
        row = PRIMITIVES[each.primitive]
        if row.least > -INF and not all(
            interval(part, numbers)[0] >= row.least for part in each.arguments
        ):
            return None
        signs = list(row.rises)
        if each.primitive in ("mul", "div"):
            first, second = (_signum(part, numbers) for part in each.arguments)
            signs = [second, first if each.primitive == "mul" else 0]
        found = {
            None if way is None or sign == 0 else way * sign
            for way, sign in zip(ways, signs, strict=True)
            if way != 0
        }
        return found.pop() if len(found) == 1 else None

    way: int | None = folded(expr, leaf, apply)
    return way


def _rises_in_parts(
    each: Call, ways: list[int | None], by: str, numbers: Mapping[str, float]
) -> bool:
    """Whether ``where(x < c, a, b)`` or the like never falls: neither part, nor from one to the
    other. NaN meets no condition: the part it is left to must give NaN, as what rises with x does.
    """
    condition, inside, outside = each.arguments
    if not isinstance(condition, Call) or condition.primitive not in ("lt", "le"):
        return False
    left, right = condition.arguments
    if not set(ways[1:]) <= {0, 1} or ways[2] != 1:
        return False
    at_left = isinstance(left, Name) and left.name == by
    at_right = isinstance(right, Name) and right.name == by
    if at_left == at_right:
        return False
    below, above = (inside, outside) if at_left else (outside, inside)
    low, high = interval(right if at_left else left, numbers)
    if low != high or not _finite(low):
        return False
    here = {**numbers, by: low}
    return interval(below, here)[1] <= interval(above, here)[0]


def _signum(expr: Expr, numbers: Mapping[str, float]) -> int:
    """The sign of a number; 0 where it is zero, not finite or not known."""
    value = expr.value if isinstance(expr, Constant) else None
    if isinstance(expr, Name):
        value = numbers.get(expr.name)
    if value is None or not 0.0 < abs(value) < INF:
        return 0
    return 1 if value > 0 else -1


def interval(expr: Expr, numbers: Mapping[str, float]) -> tuple[float, float]:
    """Two numbers between which every value lies that is not NaN; infinite where none are known.

    ``numbers`` are those of names; one that is missing stands for any value.
    """
    anything = (-INF, INF)

    def leaf(each: Expr) -> tuple[float, float]:
        value = each.value if isinstance(each, Constant) else None
        if isinstance(each, Name):
            value = numbers.get(each.name)
        return anything if value is None or value != value else (value, value)

    def apply(each: Call, parts: list[tuple[float, float]]) -> tuple[float, float]:
        lows, highs = zip(*parts, strict=True)
        match each.primitive:
            case "clamp":
                return (
                    least((most(lows[:2]), lows[2])),
                    least((most(highs[:2]), highs[2])),
                )
            case "minimum":
                return least(lows), least(highs)
            case "maximum":
                return most(lows), most(highs)
            case "where":
                return least(lows[1:]), most(highs[1:])
            case "neg":
                return -highs[0], -lows[0]
            case "abs" | "sqrt" | "rsqrt" | "exp":
                return 0.0, INF
            case "expm1":
                return -1.0, INF
            case "add" if _finite(*lows, *highs):
                return sum(lows), sum(highs)
            case "sub" if _finite(*lows, *highs):
                return lows[0] - highs[1], highs[0] - lows[1]
            case "mul" if _finite(*lows, *highs):
                corners = [a * b for a in parts[0] for b in parts[1]]
                return least(corners), most(corners)
            case "sigmoid":
                return 0.0, 1.0
            case "tanh" | "erf" | "sin" | "cos":
                return -1.0, 1.0
        return anything

    found: tuple[float, float] = folded(expr, leaf, apply)
    return found


def _finite(*values: float) -> bool:
    return all(-INF < each < INF for each in values)
