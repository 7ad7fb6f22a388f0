"""Stages from text: as they are written in Python, or as chains print them. Nothing is evaluated.

``sigmoid, group_norm(8, weight, bias), max_pool((2, 3), stride=1)`` is the first form,
``sigmoid -> group_norm(8, weight, bias) -> max_pool(2x3, stride 1)`` the second. A bare word among
the arguments is the name of a number or of a per-channel tensor that a call gives; one that is no
Python name stands in quotes. ``written`` prints stages so that ``parse`` gives back the very same:
a function that the vocabulary does not have then stands there with its expression, as in
``gated[lambda x, gate: x * sigmoid(gate)](skip)``.
"""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import lru_cache
from inspect import Parameter, Signature, signature
from typing import Any

from transfuse import stages
from transfuse.maths import expr as expressions
from transfuse.maths.expr import Expr
from transfuse.stages.base import Stage
from transfuse.stages.convolution import ConvTranspose
from transfuse.stages.pointwise import Function, Map

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
_QUOTED = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
NUMBER = re.compile(r"numbers\[\d+\]")
"""A number that stands beside the text: the first of them is ``numbers[0]``."""
AS_WRITTEN = 0
"""In place of a rank: the convolution's name says it, as in ``conv_transpose2d``."""


def parse(text: str, rank: int | None = None) -> tuple[Stage, ...]:
    """The stages that a text names, in order.

    ``conv_transpose`` is one of them where ``rank`` is given, the number of its spatial axes.
    """
    try:
        tree = ast.parse(_as_python(text).strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(
            f"{text!r} is no list of stages; they read like 'sigmoid, clamp(-1, 1)'"
        ) from None
    nodes = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return tuple(_stage(node, rank) for node in nodes)


def written(stages: Sequence[Stage]) -> str:
    """Stages as text that ``parse`` gives back bit for bit; as they print, where that says all.

    What a call tells a stage of its tensors' shapes is left out.
    """
    return " -> ".join(map(_written, stages))


def _written(stage: Stage) -> str:
    if isinstance(stage, Map):
        stage = replace(stage, shapes=())
    text = str(stage)
    try:
        if parse(text, AS_WRITTEN) == (stage,):
            return text
    except ValueError:
        pass
    return _in_full(stage)


def _in_full(stage: Stage) -> str:
    """A stage with all its names in quotes, and a function by what it computes."""
    if isinstance(stage, Map):
        return f"{stage.function.text}({', '.join(map(_literal, stage.arguments))})"
    given = [key for key, value in stage.parameters() if isinstance(value, str)]
    marks = {key: f"name_{at}_" for at, key in enumerate(given)}
    text = str(stage.with_parameters(marks))
    for key, mark in marks.items():
        text = text.replace(mark, _literal(getattr(stage, key)))
    if isinstance(stage, ConvTranspose) and stage.either_kernel:
        text = f"{text[:-1]}, " if text.endswith(")") else f"{text}("
        text += "either_kernel=True)"
    return text


def _literal(value: object) -> str:
    beside = isinstance(value, str) and NUMBER.fullmatch(value)
    return str(value) if beside else repr(value)


def _as_python(text: str) -> str:
    """What chains print otherwise, as Python has it; quoted names stay as they are."""
    parts = _QUOTED.split(text)
    for pattern, meaning in _PRINTED:
        parts[::2] = [pattern.sub(meaning, part) for part in parts[::2]]
    return "".join(parts)


def _stage(node: ast.expr, rank: int | None) -> Stage:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    match call.func:
        case ast.Subscript(value=ast.Name(id=name) | ast.Constant(value=str(name)), slice=body):
            return _made(name, _function(name, ast.unparse(body)), call)
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
    said = int(name[-2]) if name[-2:-1].isdigit() else rank
    if rank not in (said, AS_WRITTEN):
        raise ValueError(f"{name} does not fit a problem line of {rank} spatial axes")
    options: dict[str, Any] = {}
    for term in call.args:
        match term:
            case ast.UnaryOp(op=ast.UAdd(), operand=operand) if word := _word(operand):
                options["bias"] = word
            case ast.BinOp(left=ast.Name(id="weights"), op=ast.Mult(), right=factor):
                options["weight_scale"] = _value(factor)
            case _:
                options["?"] = term
    flags: dict[str, Any] = {
        each.arg or "?": getattr(each.value, "value", None) for each in call.keywords
    }
    if "?" in options or flags.keys() - {"either_kernel"}:
        raise ValueError(
            f"{ast.unparse(call)!r}: of the convolution only its bias is written here, as in "
            f"'{name}(+ bias)'; sizes and options stand in the problem line"
        )
    return stages.conv_transpose(said, **options, **flags)


@lru_cache(maxsize=1024)
def _function(name: str, text: str) -> Function:
    """The pointwise function that ``Function.text`` says."""
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.Lambda) or not tree.args.args or tree.args.args[0].arg != "x":
        raise ValueError(f"{text!r} is no pointwise function; one reads like 'lambda x, a: x * a'")
    first, *others = (each.arg for each in tree.args.args)
    made = expressions.parse(ast.unparse(tree.body))
    strange = {*made.names} - {first, *others}
    if strange:
        raise ValueError(f"{text!r} does not say what {', '.join(sorted(strange))} is")

    def body(x: Expr, *given: Expr) -> Expr:
        return made

    kind = Parameter.POSITIONAL_OR_KEYWORD
    body.__signature__ = Signature([Parameter(each, kind) for each in (first, *others)])  # type: ignore[attr-defined]
    return Function(body, name=name)


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
    if NUMBER.fullmatch(ast.unparse(node)):
        return ast.unparse(node)
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


def _word(node: ast.expr) -> str:
    """A name, bare or in quotes; empty for all else."""
    match node:
        case ast.Constant(value=str(word)):
            return word
    return _name(node)
