"""Stages from text: as they are written in Python, or as chains print them. Nothing is evaluated.

``sigmoid, group_norm(8, weight, bias), max_pool((2, 3), stride=1)`` is the first form,
``sigmoid -> group_norm(8, weight, bias) -> max_pool(2x3, stride 1)`` the second. A bare word among
the arguments is the name of a number or of a per-channel tensor that a call gives.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

from transfuse import stages
from transfuse.stages.base import Stage

KNOWN: dict[str, Callable[..., Stage]] = {
    name: getattr(stages, name)
    for name in stages.__all__
    if name.islower() and name != "pointwise"  # which makes no stage, but what makes stages
}
CONVOLUTION = re.compile(r"\bconv_transpose([123]d)?\b")
_PRINTED = (
    (re.compile(r"->"), ","),
    (re.compile(r"\b\d+(?:x\d+)+\b"), lambda found: f"({found[0].replace('x', ', ')})"),
    (re.compile(r"\b(stride|padding|dilation) (?=[\w(])"), r"\1="),
    (re.compile(r"\bbatch_norm\(batch\b"), "batch_norm(training=True"),
    (re.compile(r"\bbatch_norm\(running\b"), "batch_norm(training=False"),
)
"""What chains print otherwise than Python is written, with what it means there."""


def parse(text: str, rank: int | None = None) -> tuple[Stage, ...]:
    """The stages that a text names, in order.

    ``conv_transpose`` is one of them where ``rank`` is given, the number of its spatial axes.
    """
    written = text
    for pattern, meaning in _PRINTED:
        written = pattern.sub(meaning, written)
    try:
        tree = ast.parse(written.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(
            f"{text!r} is no list of stages; they read like 'sigmoid, clamp(-1, 1)'"
        ) from None
    nodes = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return tuple(_stage(node, rank) for node in nodes)


def _stage(node: ast.expr, rank: int | None) -> Stage:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name):
        raise ValueError(f"{ast.unparse(node)!r} is not a stage; they read like 'clamp(-1, 1)'")
    name = call.func.id
    if rank is not None and CONVOLUTION.fullmatch(name):
        return _convolution(name, call, rank)
    if name not in KNOWN or name == "conv_transpose":
        raise ValueError(_unknown(name))
    return _made(name, KNOWN[name], call)


def _unknown(name: str) -> str:
    if CONVOLUTION.fullmatch(name):
        return f"{name} is the convolution itself, not a stage before or after it"
    known = [each for each in KNOWN if each != "conv_transpose"]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown stage {name!r}; {hint}known: {', '.join(known)}"


def _convolution(name: str, call: ast.Call, rank: int) -> Stage:
    """``conv_transpose2d(+ bias)``, as it prints; the sizes are the problem's."""
    if name[-2:-1].isdigit() and int(name[-2]) != rank:
        raise ValueError(f"{name} does not fit a problem line of {rank} spatial axes")
    if not call.args and not call.keywords:
        return stages.conv_transpose(rank)
    term = call.args[0] if len(call.args) == 1 and not call.keywords else None
    plus = isinstance(term, ast.UnaryOp) and isinstance(term.op, ast.UAdd) and _name(term.operand)
    if not plus:
        raise ValueError(
            f"{ast.unparse(call)!r}: of the convolution only its bias is written here, as in "
            f"'{name}(+ bias)'; sizes and options stand in the problem line"
        )
    return stages.conv_transpose(rank, bias=plus)


def _made(name: str, maker: Callable[..., Stage], call: ast.Call) -> Stage:
    known = signature(maker)
    try:
        arguments = [_value(each) for each in call.args]
        options = {each.arg or "**": _value(each.value) for each in call.keywords}
        known.bind(*arguments, **options)
    except TypeError as error:
        takes = ", ".join(map(_argument, known.parameters.values())) or "nothing"
        raise ValueError(f"{ast.unparse(call)!r}: {error}; {name} takes {takes}") from None
    try:
        made = maker(*arguments, **options)
    except TypeError as error:
        raise ValueError(f"{ast.unparse(call)!r}: {error}") from None
    for each in fields(made):
        value = getattr(made, each.name)
        a_word = value in each.metadata.get("words", ())
        if isinstance(value, str) and not a_word and not each.metadata.get("parameter"):
            raise ValueError(f"{ast.unparse(call)!r}: {each.name} takes no name, such as {value!r}")
    return made


def _argument(each: Parameter) -> str:
    return each.name if each.default is Parameter.empty else f"{each.name}={each.default}"


def _value(node: ast.expr) -> Any:
    """A literal; a bare name stands for itself, ``inf`` and ``nan`` for the numbers."""
    if name := _name(node):
        return float(name) if name in ("inf", "nan") else name
    if ast.unparse(node) == "-inf":
        return float("-inf")
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise TypeError(f"{ast.unparse(node)!r} is neither a number nor a name") from None


def _name(node: ast.expr) -> str:
    """A name, or one with a point in it, such as ``group_norm.weight``; empty for all else."""
    text = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
    return text if re.fullmatch(r"\w+(\.\w+)*", text) else ""
