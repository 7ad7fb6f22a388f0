"""Pointwise operations of torch: the expression of each, and the stage of the same meaning.

``vocabulary.py`` makes its table of these.
"""

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from transfuse import maths, stages
from transfuse.maths.expr import Expr
from transfuse.maths.expr import call as applied
from transfuse.nn import torch_modules
from transfuse.stages import Function, Stage


def _condition(given: Any) -> Expr:
    """A condition as it is; of numbers, whether they are not 0, as a mask has it."""
    if isinstance(given, Expr) and given.logical:
        return given
    return applied("no", applied("eq", given, 0.0))


def _plus(input: Any, other: Any, alpha: Any = 1) -> Any:
    return input + (other if is_number(alpha, 1) else alpha * other)


def _minus(input: Any, other: Any, alpha: Any = 1) -> Any:
    return input - (other if is_number(alpha, 1) else alpha * other)


def is_number(given: object, number: float) -> bool:
    return isinstance(given, int | float) and given == number


def _divided(input: Any, other: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is not None:
        raise ValueError(f"rounding_mode={rounding_mode!r} is no division of the vocabulary")
    return input / other


def _power(input: Any, exponent: Any) -> Any:
    if not isinstance(input, Expr) or isinstance(exponent, Expr):
        raise ValueError("only powers of values by a known number are of the vocabulary")
    if exponent in _ROOTS:
        return _ROOTS[exponent](input)
    if isinstance(exponent, float) and exponent.is_integer():
        exponent = int(exponent)
    if not isinstance(exponent, int) or isinstance(exponent, bool) or abs(exponent) > 64:
        raise ValueError(f"only whole powers up to 64, 0.5 and -0.5 are stages, not {exponent!r}")
    return input**exponent


_ROOTS: dict[float, Callable[[Any], Expr]] = {0.5: maths.sqrt, -0.5: maths.rsqrt}


def _power_stage(exponent: Any) -> Stage | None:
    if exponent in _ROOTS:
        return stages.sqrt() if exponent > 0 else stages.rsqrt()
    whole = isinstance(exponent, int) or (isinstance(exponent, float) and exponent.is_integer())
    return stages.pow(int(exponent)) if whole and abs(exponent) <= 64 else None


def _clamped(input: Any, min: Any = None, max: Any = None) -> Any:
    if min is None and max is None:
        raise ValueError("clamp needs one of min and max")
    return maths.clamp(input, -math.inf if min is None else min, math.inf if max is None else max)


def _clamp_stage(min: Any = None, max: Any = None) -> Stage | None:
    if min is None and max is None:
        return None
    return stages.clamp(min=min, max=max)


def _gelu(input: Any, approximate: str = "none") -> Any:
    return stages.gelu(approximate).function(input)  # type: ignore[arg-type]


def _randomised_relu(
    input: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> Any:
    return stages.leaky_relu(input, _mean_slope(lower, upper, training))


def _mean_slope(lower: Any, upper: Any, training: Any) -> float:
    if training is not False:
        raise ValueError("rrelu draws random slopes in training")
    return (float(lower) + float(upper)) / 2


Rule = tuple[str, str, Callable[..., Any], Callable[..., Stage | None]]


def none(*_: Any) -> None:
    """No stage of one's own: the expression alone says what it is."""


def _usually(made: Callable[..., Any], usual: object) -> Callable[..., Stage | None]:
    """``made`` of one argument, where another behind it is what it usually is."""
    return lambda given, other: (
        made(given) if type(other) is type(usual) and other == usual else None
    )


RULES: tuple[Rule, ...] = (
    ("add", "input, other, alpha=1", _plus, _usually(stages.add, 1)),
    ("sub subtract", "input, other, alpha=1", _minus, _usually(stages.sub, 1)),
    ("rsub", "input, other, alpha=1",
     lambda input, other, alpha: _minus(other, input, alpha), none),
    ("mul multiply", "input, other", operator.mul, stages.scale),
    ("div divide true_divide", "input, other, rounding_mode=None", _divided,
     _usually(stages.div, None)),
    ("neg negative", "input", operator.neg, stages.neg),
    ("abs absolute", "input", operator.abs, stages.abs),
    ("pow", "input, exponent", _power, _power_stage),
    ("minimum", "input, other", maths.minimum, stages.minimum),
    ("maximum", "input, other", maths.maximum, stages.maximum),
    ("clamp clip", "input, min=None, max=None", _clamped, _clamp_stage),
    ("clamp_min", "input, min", _clamped, lambda min: _clamp_stage(min=min)),
    ("clamp_max", "input, max", lambda input, max: _clamped(input, max=max),
     lambda max: _clamp_stage(max=max)),
    ("gelu", "input, approximate='none'", _gelu, stages.gelu),
    ("rrelu", f"input, lower=0.125, upper={1 / 3}, training=False, inplace=False", _randomised_relu,
     lambda lower, upper, training: stages.leaky_relu(_mean_slope(lower, upper, training))),
    ("expm1", "input", maths.expm1, none),
    ("log1p", "input", maths.log1p, none),
    ("floor", "input", maths.floor, none),
    ("gt greater", "input, other", lambda input, other: applied("lt", other, input), none),
    ("lt less", "input, other", lambda input, other: applied("lt", input, other), none),
    ("ge greater_equal", "input, other", lambda input, other: applied("le", other, input), none),
    ("le less_equal", "input, other", lambda input, other: applied("le", input, other), none),
    ("eq", "input, other", lambda input, other: applied("eq", input, other), none),
    ("ne not_equal", "input, other",
     lambda input, other: applied("no", applied("eq", input, other)), none),
    ("logical_not", "input", lambda input: applied("no", _condition(input)), none),
    ("logical_and", "input, other",
     lambda input, other: applied("both", _condition(input), _condition(other)), none),
    ("logical_or", "input, other",
     lambda input, other: applied("either", _condition(input), _condition(other)), none),
    ("masked_fill", "input, mask, value",
     lambda input, mask, value: maths.where(_condition(mask), value, input), none),
)  # fmt: skip
"""Where torch's name or arguments differ from a stage's, or there is no stage of one's own: names,
signature, the expression, and the stage of the arguments behind the first."""
OWN = (
    *dict.fromkeys(each for each in torch_modules.MAKERS.values() if isinstance(each, Function)),
    stages.square, stages.reciprocal, stages.sqrt, stages.rsqrt, stages.exp, stages.log,
    stages.sin, stages.cos, stages.erf,
)  # fmt: skip
"""Stages with the name and the arguments of torch's function, which may have ``inplace`` besides:
those that a module stands for, and a few more."""
OPERATORS: dict[str, tuple[Callable[..., Any], ...]] = {
    "add": (operator.add, operator.iadd),
    "sub": (operator.sub, operator.isub),
    "mul": (operator.mul, operator.imul),
    "div": (operator.truediv, operator.itruediv),
    "pow": (operator.pow, operator.ipow),
    "neg": (operator.neg,),
    "abs": (operator.abs, builtins.abs),
    "gt": (operator.gt,),
    "lt": (operator.lt,),
    "ge": (operator.ge,),
    "le": (operator.le,),
    "eq": (operator.eq,),
    "ne": (operator.ne,),
    "sigmoid": (torch.special.expit,),
    "expm1": (torch.special.expm1,),
    "log1p": (torch.special.log1p,),
    "erf": (torch.special.erf,),
}
"""Functions of the same meaning that are called otherwise; the arguments are torch's."""
DUNDERS = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add", "__sub__": "sub", "__rsub__": "rsub",
    "__isub__": "sub", "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul",
    "__truediv__": "div", "__itruediv__": "div", "__pow__": "pow", "__neg__": "neg",
    "__abs__": "abs",
}  # fmt: skip
CONDITIONS = frozenset(
    ("gt", "lt", "ge", "le", "eq", "ne", "logical_not", "logical_and", "logical_or")
)
"""Rules that are true or false."""


def by_condition(condition: Any, input: Any, other: Any) -> Expr:
    return maths.where(_condition(condition), input, other)
