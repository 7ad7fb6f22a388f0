"""Which operation of torch is which stage: one table.

An operation of a graph is a function of ``torch``, ``torch.nn.functional`` or ``operator``, or a
method of tensors. Its arguments are bound as torch binds them, and it has one of the ``meanings``.
"""

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from transfuse import stages
from transfuse.fusing.meanings import (
    NEEDED,
    Beside,
    Meaning,
    Nothing,
    OneStage,
    Parameters,
    Pointwise,
    bind,
    parameters,
)
from transfuse.fusing.pointwise_rules import (
    CONDITIONS,
    DUNDERS,
    OPERATORS,
    OWN,
    RULES,
    by_condition,
    is_number,
    none,
)
from transfuse.maths.expr import Expr, expression
from transfuse.nn import torch_modules
from transfuse.stages import Function, Stage


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


def _hashable(target: object) -> bool:
    try:
        hash(target)
    except TypeError:
        return False
    return True


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
    return training is False or is_number(p, 0)


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
    where = Pointwise("where", parameters("condition, input, other"), by_condition, none)
    FUNCTIONS[torch.where] = _always(where)
    of_method = parameters("input, condition, other")
    METHODS["where"] = _always(
        Pointwise("where", of_method, lambda x, c, other: by_condition(c, x, other), none)
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
