"""Norms that models write by hand, of means and pointwise operations, as the stages they are.

``(y - y.mean(1, True)) / sqrt((y - y.mean(1, True)).pow(2).mean(1, True) + eps)`` is a layer norm
over the channels; ``y * rsqrt(y.square().mean(1, True) + eps)`` an RMS norm.
"""

from collections.abc import Callable, Mapping

from transfuse import stages
from transfuse.maths.expr import Call, Constant, Expr, X, call
from transfuse.maths.expr import name as symbol
from transfuse.stages import Stage
from transfuse.stages.axes import resolved

CENTRED: dict[str, Callable[[float], Stage]] = {
    "channels": lambda eps: stages.layer_norm("channels", eps=eps),
    "space": lambda eps: stages.instance_norm(eps=eps),
    "all": lambda eps: stages.group_norm(1, eps=eps),
}
"""By what the mean goes over: values less their mean, over their deviation."""
UNCENTRED: dict[str, Callable[[float], Stage]] = {
    "channels": lambda eps: stages.rms_norm("channels", eps=eps),
}
"""Values over the root of their mean square."""


def over(dim: object, rank: int) -> str | None:
    """The word for the axes of a mean, where it goes over such as norms go over."""
    if not isinstance(dim, int | list | tuple):
        return None
    axes = resolved("mean", tuple(dim) if isinstance(dim, list | tuple) else dim, rank)
    return next((word for word in CENTRED if resolved("mean", word, rank) == axes), None)  # type: ignore[arg-type]


def mean_name(number: int, word: str) -> str:
    """The name under which a mean stands in an expression."""
    return f"{word}_mean{number}"


def norm_of(expr: Expr, means: Mapping[str, Expr]) -> Stage | None:
    """The norm that an expression is, of which ``means`` are means of others; None where none."""
    for eps in _terms(expr):
        for name, square in means.items():
            for centre in (X, *(X - symbol(other) for other in means)):
                word = name.partition("_")[0]
                if square is not centre * centre or not _over(expr, centre, symbol(name), eps):
                    continue
                if centre is X:
                    return UNCENTRED[word](eps) if word in UNCENTRED else None
                (mean,) = (each for each in means if X - symbol(each) is centre)
                if means[mean] is X and mean.partition("_")[0] == word:
                    return CENTRED[word](eps)
    return None


def _over(expr: Expr, centre: Expr, square: Expr, eps: float) -> bool:
    """Whether an expression is ``centre`` over the root of ``square + eps``, however written."""
    for deviation in (square + eps, eps + square):
        root = call("sqrt", deviation)
        forms = [centre / root]
        for factor in (call("rsqrt", deviation), 1.0 / root):
            forms += [centre * factor, factor * centre]
        if any(expr is each for each in forms):
            return True
    return False


def _terms(expr: Expr) -> list[float]:
    """The numbers that an expression adds to something."""
    sums = [each for each in expr.walk() if isinstance(each, Call) and each.primitive == "add"]
    return [part.value for each in sums for part in each.arguments if isinstance(part, Constant)]
