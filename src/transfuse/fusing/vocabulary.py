"""Which operation of torch is which stage: one table.

An operation of a graph is a function of ``torch``, ``torch.nn.functional`` or ``operator``, or a
method of tensors. Its arguments are bound as torch binds them. Its meaning is one of four kinds:
``Pointwise``, an expression of its arguments; ``OneStage``, a stage that sees more than an element;
``Beside``, channels side by side; ``Nothing``, the value as it is.
"""

import builtins
import inspect
import math
import operator
from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from transfuse import maths, stages
from transfuse.maths.expr import Expr, expression
from transfuse.maths.expr import call as applied
from transfuse.nn import torch_modules
from transfuse.stages import Function, Stage

Parameters = dict[str, Any]
"""The names of parameters in their order, with their defaults; ``NEEDED``: it has none."""
NEEDED = object()
CHANNELLED = frozenset({"weight", "bias", "running_mean", "running_var"})
"""Parameters that hold one value per channel; tensors under other names broadcast as torch's do."""


@dataclass(frozen=True)
class Meaning:
    """What an operation means. ``name``: what it is called; ``parameters``: what it takes."""

    name: str
    parameters: Parameters

    @property
    def rank(self) -> int | None:
        """How many spatial axes it is for, where it is for one number of them, as pools are."""
        if self.name == "pixel_shuffle":
            return 2
        return int(self.name[-2]) if self.name.endswith(("1d", "2d", "3d")) else None


@dataclass(frozen=True)
class Pointwise(Meaning):
    """An expression of its arguments, which are expressions and numbers.

    ``stage``: the stage of the same meaning where the running value is the first argument and no
    other, made of the arguments behind it; it may give None. ``condition``: it is true or false.
    """

    expr: Callable[..., Expr]
    stage: Callable[..., Stage | None]
    condition: bool = False


@dataclass(frozen=True)
class OneStage(Meaning):
    """The stage that ``make`` makes of all arguments but the first, which is the running value.

    ``pair``: it gives values and indices, and only the values are meant.
    """

    make: Callable[..., Stage]
    pair: bool = False


@dataclass(frozen=True)
class Beside(Meaning):
    """``torch.cat``."""


@dataclass(frozen=True)
class Nothing(Meaning):
    """The value as it is, where ``when``, of all arguments but the first, says so."""

    when: Callable[..., bool]
    contiguous: bool = False


class Reading(NamedTuple):
    """An operation: its row, its arguments by name, and whether it writes to the first of them."""

    row: Meaning
    bound: Mapping[str, Any]
    inplace: bool

    @property
    def text(self) -> str:
        return self.row.name + ("_" if self.inplace else "")


def knows(node: Node) -> bool:
    """Whether an operation of a graph is of the vocabulary, or the convolution itself."""
    return read(node) is not None or convolution(node) is not None


def read(node: Node) -> Reading | None:
    """What an operation means; None where it is not of the vocabulary."""
    choose = (
        METHODS.get(str(node.target)) if node.op == "call_method"
        else FUNCTIONS.get(node.target) if node.op == "call_function" and _hashable(node.target)
        else None
    )  # fmt: skip
    if choose is None:
        return None
    row = choose(node.args, node.kwargs)
    bound = None if row is None else bind(row.parameters, node.args, node.kwargs)
    if row is None or bound is None:
        return None
    inplace = node.target in IN_PLACE or bound.get("inplace") is True
    if inplace and (isinstance(row, OneStage) or (isinstance(row, Pointwise) and row.condition)):
        return None  # squeeze_ changes a tensor's axes, and gt_ writes numbers, not conditions
    return Reading(row, {k: v for k, v in bound.items() if k != "inplace"}, inplace)


def convolution(node: Node) -> tuple[int, Mapping[str, Any]] | None:
    """The number of spatial axes and the arguments of a transposed convolution; None for others."""
    if node.op != "call_function" or not _hashable(node.target):
        return None
    rank = CONVOLUTIONS.get(node.target)
    bound = None if rank is None else bind(CONVOLVES, node.args, node.kwargs)
    return None if rank is None or bound is None else (rank, bound)


def bind(
    parameters: Parameters, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Arguments by name, with defaults; None where they do not fit."""
    given = tuple(args)
    found = dict(zip(parameters, given, strict=False))
    renamed = {k if k in parameters else ALIASES.get(k, k): v for k, v in kwargs.items()}
    if len(given) > len(parameters) or renamed.keys() & found.keys() or renamed.keys() - parameters:
        return None
    bound = {**parameters, **found, **renamed}
    return None if any(value is NEEDED for value in bound.values()) else bound


ALIASES = {"axis": "dim", "self": "input"}
"""Other words for some parameters, as torch takes them."""


def _hashable(target: object) -> bool:
    try:
        hash(target)
    except TypeError:
        return False
    return True


def parameters(text: str) -> Parameters:
    """A signature such as ``input, dim, keepdim=False``."""
    found: Parameters = {}
    for each in text.split(","):
        name, _, default = each.strip().partition("=")
        found[name] = literal_eval(default) if default else NEEDED
    return found


# --- pointwise ------------------------------------------------------------------------------------


def _condition(given: Any) -> Expr:
    """A condition as it is; of numbers, whether they are not 0, as a mask has it."""
    if isinstance(given, Expr) and given.logical:
        return given
    return applied("no", applied("eq", given, 0.0))


def _plus(input: Any, other: Any, alpha: Any = 1) -> Any:
    return input + (other if _is(alpha, 1) else alpha * other)


def _minus(input: Any, other: Any, alpha: Any = 1) -> Any:
    return input - (other if _is(alpha, 1) else alpha * other)


def _is(given: object, number: float) -> bool:
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


def _none(*_: Any) -> None:
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
     lambda input, other, alpha: _minus(other, input, alpha), _none),
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
    ("expm1", "input", maths.expm1, _none),
    ("log1p", "input", maths.log1p, _none),
    ("floor", "input", maths.floor, _none),
    ("gt greater", "input, other", lambda input, other: applied("lt", other, input), _none),
    ("lt less", "input, other", lambda input, other: applied("lt", input, other), _none),
    ("ge greater_equal", "input, other", lambda input, other: applied("le", other, input), _none),
    ("le less_equal", "input, other", lambda input, other: applied("le", input, other), _none),
    ("eq", "input, other", lambda input, other: applied("eq", input, other), _none),
    ("ne not_equal", "input, other",
     lambda input, other: applied("no", applied("eq", input, other)), _none),
    ("logical_not", "input", lambda input: applied("no", _condition(input)), _none),
    ("logical_and", "input, other",
     lambda input, other: applied("both", _condition(input), _condition(other)), _none),
    ("logical_or", "input, other",
     lambda input, other: applied("either", _condition(input), _condition(other)), _none),
    ("masked_fill", "input, mask, value",
     lambda input, mask, value: maths.where(_condition(mask), value, input), _none),
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


def _where(condition: Any, input: Any, other: Any) -> Expr:
    return maths.where(_condition(condition), input, other)


# --- stages that see more than an element ---------------------------------------------------------


def _over(made: Callable[..., Stage]) -> Callable[..., Stage]:
    """A reduction by torch's arguments: over all axes there is no stage, nor into another type."""

    def make(dim: Any = None, keepdim: Any = False, dtype: Any = None, **_: Any) -> Stage:
        if dtype is not None:
            raise ValueError(f"dtype={dtype}: the values stay of their own type in a chain")
        if dim is None or dim == () or dim == []:
            raise ValueError("over all axes samples would be mixed")
        return made(_tuple(dim), keepdim)

    return make


def _softmax(made: Callable[..., Stage]) -> Callable[..., Stage]:
    return _over(lambda axes, keepdim: made(axes))


def _pool(made: Callable[..., Stage]) -> Callable[..., Stage]:
    """A pool by torch's arguments, where an empty stride stands for none."""

    def make(stride: Any = None, **given: Any) -> Stage:
        return made(stride=None if stride == [] or stride == () else stride, **given)

    return make


def _tuple(given: Any) -> Any:
    return tuple(given) if isinstance(given, list | tuple) else given


def _layer_norm(normalized_shape: Any, **given: Any) -> Stage:
    return stages.layer_norm(_tuple(normalized_shape), **given)


def _rms_norm(normalized_shape: Any, **given: Any) -> Stage:
    return stages.rms_norm(_tuple(normalized_shape), **given)


def _squeeze(dim: Any = None) -> Stage:
    if dim is None:
        raise ValueError("without dim squeeze may leave out the samples' axis")
    return stages.squeeze(_tuple(dim))


REDUCE = "input, dim=None, keepdim=False, dtype=None"
WINDOW = "input, kernel_size, stride=None, padding=0"
WHOLES: tuple[tuple[str, str, Callable[..., Stage]], ...] = (
    ("sum", REDUCE, _over(stages.sum)),
    ("mean", REDUCE, _over(stages.mean)),
    ("amax", "input, dim=None, keepdim=False", _over(stages.amax)),
    ("amin", "input, dim=None, keepdim=False", _over(stages.amin)),
    ("logsumexp", "input, dim, keepdim=False", _over(stages.logsumexp)),
    ("softmax", "input, dim=None, dtype=None", _softmax(stages.softmax)),
    ("log_softmax", "input, dim=None, dtype=None", _softmax(stages.log_softmax)),
    ("batch_norm", "input, running_mean, running_var, weight=None, bias=None, training=False, "
     "momentum=0.1, eps=1e-5", stages.batch_norm),
    ("instance_norm", "input, running_mean=None, running_var=None, weight=None, bias=None, "
     "use_input_stats=True, momentum=0.1, eps=1e-5", stages.instance_norm),
    ("group_norm", "input, num_groups, weight=None, bias=None, eps=1e-5", stages.group_norm),
    ("layer_norm", "input, normalized_shape, weight=None, bias=None, eps=1e-5", _layer_norm),
    ("rms_norm", "input, normalized_shape, weight=None, eps=None", _rms_norm),
    ("flatten", "input, start_dim=0, end_dim=-1", stages.flatten),
    ("squeeze", "input, dim=None", _squeeze),
    ("pixel_shuffle", "input, upscale_factor", stages.pixel_shuffle),
    *(
        row for rank in (1, 2, 3) for row in (
            (f"max_pool{rank}d", f"{WINDOW}, dilation=1, ceil_mode=False, return_indices=False",
             _pool(torch_modules.max_pool)),
            (f"avg_pool{rank}d", f"{WINDOW}, ceil_mode=False, count_include_pad=True"
             + (", divisor_override=None" if rank > 1 else ""), _pool(stages.avg_pool)),
            (f"lp_pool{rank}d", "input, norm_type, kernel_size, stride=None, ceil_mode=False",
             _pool(stages.lp_pool)),
            (f"adaptive_avg_pool{rank}d", "input, output_size", stages.adaptive_avg_pool),
            (f"adaptive_max_pool{rank}d", "input, output_size, return_indices=False",
             torch_modules.adaptive_max_pool),
        )
    ),
)  # fmt: skip
"""Names, signature, and what makes the stage of all arguments but the first."""


# --- what does nothing ----------------------------------------------------------------------------


def _drops_nothing(p: Any = 0.5, training: Any = True, **_: Any) -> bool:
    return training is False or _is(p, 0)


def _dense(memory_format: Any = torch.contiguous_format) -> bool:
    return memory_format is torch.contiguous_format


# --- the tables -----------------------------------------------------------------------------------

Choose = Callable[[tuple[Any, ...], Mapping[str, Any]], Meaning | None]
"""The row of an operation by its arguments."""
FUNCTIONS: dict[Any, Choose] = {}
"""By the function itself."""
METHODS: dict[str, Choose] = {}
"""By the name of the method."""
IN_PLACE: set[Any] = {
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow,
    "__iadd__", "__isub__", "__imul__", "__itruediv__",
}  # fmt: skip
"""Functions and methods that write to their first argument, whatever ``inplace`` says."""
ROOMS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("batch_norm", "instance_norm", "adaptive_max_pool1d"), (F,)),
}
"""Where torch's own function takes other arguments than that of ``torch.nn.functional``."""
CONVOLUTIONS: dict[Any, int] = {
    F.conv_transpose1d: 1, F.conv_transpose2d: 2, F.conv_transpose3d: 3,
    torch.conv_transpose1d: 1, torch.conv_transpose2d: 2, torch.conv_transpose3d: 3,
}  # fmt: skip
CONVOLVES = parameters(
    "input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1"
)
FRESH = frozenset({F.conv1d, F.conv2d, F.conv3d, F.linear, F.interpolate, *CONVOLUTIONS})
"""Functions outside the vocabulary whose result is memory of its own."""


def _enter(row: Meaning, names: Iterable[str], rooms: Iterable[Any] = (torch, F)) -> None:
    """Enter a row under torch's functions and methods of these names, and those with ``_``."""
    for name in names:
        for word in (name, f"{name}_"):
            functions = [getattr(room, word, None) for room in rooms]
            for function in filter(None, functions):
                FUNCTIONS[function] = _always(row)
            if hasattr(Tensor, word):
                METHODS[word] = _always(row)
            if word.endswith("_"):
                IN_PLACE.update((word, *filter(None, functions)))


def _fill() -> None:
    by_name: dict[str, Pointwise] = {}
    for own in OWN:
        signature = {"input": NEEDED, **_defaults(own), "inplace": False}
        by_name[own.name] = Pointwise(own.name, signature, _of_expression(own), own)
        _enter(by_name[own.name], [own.name])
    for names, text, expr, stage in RULES:
        first, *_ = words = names.split()
        by_name[first] = Pointwise(first, parameters(text), expr, stage, first in CONDITIONS)
        _enter(by_name[first], words)
    for name, functions in OPERATORS.items():
        for function in functions:
            FUNCTIONS[function] = _always(by_name[name])
    for method, name in DUNDERS.items():
        METHODS[method] = _always(by_name[name])
    where = Pointwise("where", parameters("condition, input, other"), _where, _none)
    FUNCTIONS[torch.where] = _always(where)
    of_method = parameters("input, condition, other")
    METHODS["where"] = _always(
        Pointwise("where", of_method, lambda x, c, other: _where(c, x, other), _none)
    )
    for name, text, make in WHOLES:
        _enter(OneStage(name, parameters(text), make), [name], ROOMS.get(name, (torch, F)))
    for name, normed in (("softmax", stages.softmax), ("log_softmax", stages.log_softmax)):
        in_functional = parameters("input, dim=None, _stacklevel=3, dtype=None")
        FUNCTIONS[getattr(F, name)] = _always(OneStage(name, in_functional, _softmax(normed)))
        FUNCTIONS[getattr(torch.special, name)] = FUNCTIONS[getattr(torch, name)]
    FUNCTIONS[torch.special.logsumexp] = FUNCTIONS[torch.logsumexp]
    for name, made, between in (
        ("max", stages.amax, by_name["maximum"]),
        ("min", stages.amin, by_name["minimum"]),
    ):
        over = OneStage(name, parameters("input, dim, keepdim=False"), _over(made), pair=True)
        FUNCTIONS[getattr(torch, name)] = METHODS[name] = _over_or_between(over, between)
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"):
        signature = parameters("input, p=0.5, training=True, inplace=False")
        FUNCTIONS[getattr(F, name)] = _always(Nothing(name, signature, _drops_nothing))
    FUNCTIONS[torch.dropout] = _always(
        Nothing("dropout", parameters("input, p, training"), _drops_nothing)
    )
    itself = Nothing("positive", parameters("input"), lambda: True)
    for function in (torch.positive, operator.pos):
        FUNCTIONS[function] = _always(itself)
    METHODS["positive"] = _always(itself)
    copies = Nothing("clone", parameters("input"), lambda: True)
    FUNCTIONS[torch.clone] = METHODS["clone"] = _always(copies)
    dense = {"input": NEEDED, "memory_format": torch.contiguous_format}
    METHODS["contiguous"] = _always(Nothing("contiguous", dense, _dense, contiguous=True))
    beside = Beside("cat", parameters("tensors, dim=0"))
    for function in (torch.cat, torch.concat, torch.concatenate):
        FUNCTIONS[function] = _always(beside)


def _of_expression(own: Function) -> Callable[..., Expr]:
    return lambda input, *given: own(expression(input), *given)


def _always(row: Meaning) -> Choose:
    return lambda args, kwargs: row


def _over_or_between(over: OneStage, between: Pointwise) -> Choose:
    """``torch.max``: over an axis, or of two tensors."""

    def choose(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Meaning | None:
        second = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("other"))
        if isinstance(second, int) and not isinstance(second, bool):
            return over
        tensor = isinstance(second, Node) and isinstance(
            second.meta.get("example_value", Tensor()), Tensor
        )
        return between if tensor else None

    return choose


def _defaults(function: Function) -> Parameters:
    """The parameters of a pointwise function behind the first."""
    empty = inspect.Parameter.empty
    return {k: NEEDED if given is empty else given for k, given in function.parameters.items()}


_fill()
