"""Stages that see one element at a time: each is one plain function.

``@pointwise`` calls the function once, with symbols, and keeps the expression that comes of it.
That is all there is to a stage: oracle, backends, rewrites and derivatives read it from there.
``torch=`` names torch's own function for the same, which plain torch then runs in one step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isinf
from operator import is_
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from transfuse.maths.expr import Call, Expr, Name, X, expression, in_a_body, substituted
from transfuse.maths.expr import name as symbol
from transfuse.maths.primitives import PRIMITIVES, InTorch
from transfuse.plain import why_not
from transfuse.problem import Shape
from transfuse.stages.actions import Elementwise
from transfuse.stages.base import Env, Kind, Number, Stage, shown, value
from transfuse.stages.values import exact, outlined, plain
from transfuse.stages.walk import Given, Walk
from transfuse.symbols import Symbol, real

Value = Number | str | Tensor
"""What an argument may be: a number, a tensor, or the name of either, given later."""

SAME = """\
Shape:
    - x: any
    - y: the same"""
ARGUMENTS = f"""{SAME}
    - a tensor among the arguments: one value per channel, or a shape that broadcasts to x's; of
      x's type, or true and false or integers, which are converted"""
MADE = """\
Returns:
    Map: the stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``"""
USED = """\
Example::

    >>> y = conv_transpose(x, w, then=[{call}])"""
"""The sections that the docstrings of pointwise functions have in common."""


@dataclass(frozen=True)
class Map(Stage):
    """``y = function(x, …)``, element by element. Made by calling a ``Function``.

    Args:
        function: what is computed
        arguments: its arguments, in order. A tensor among them has one value per channel,
            ``(C,)``, or a shape that torch would broadcast to that of x: a residual, a gate, a mask
        shapes: those of tensors of the second kind, by their names, once a call has given them
        traced: whether ``torch.compile`` traced its making, so that its numbers may be symbols

    Example::

        >>> leaky_relu(0.2).arguments
        (0.2,)
    """

    kind: ClassVar[Kind] = Kind.POINTWISE
    function: Function
    arguments: tuple[Value, ...] = ()
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    traced: bool = field(default=False, compare=False)

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.function.name

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.function.exact

    @property
    def values(self) -> tuple[Hashable, ...]:
        return (Map, self.function, self.shapes, *map(exact, self.arguments))

    @property
    def outline(self) -> tuple[Hashable, ...]:
        return (Map, self.function, self.shapes, *map(outlined, self.arguments))

    @property
    def held(self) -> list[Any]:
        # Numbers are passed over first: in a trace of torch.compile they may be symbols.
        others = [each for each in self.arguments if not isinstance(each, int | float | str)]
        return [each for each in others if hasattr(each, "__torch_function__")]

    @property
    def given(self) -> tuple[Any, ...]:
        return self.arguments

    @property
    def numbers(self) -> tuple[str, ...]:
        return ()  # a tensor can stand wherever a number can

    @property
    def constants(self) -> dict[str, float]:
        """The arguments that are numbers, by name."""
        return {k: real(v) for k, v in self.parameters() if isinstance(v, int | float | Symbol)}

    @property
    def tensors(self) -> dict[str, str]:
        """The arguments that are tensors, by name: the names they are given under."""
        return {k: v for k, v in self.parameters() if isinstance(v, str)}

    def fitted(self, shapes: Mapping[str, tuple[int, ...]], rank: int) -> Map:
        named = {name: shapes[name] for name in self.tensors.values() if name in shapes}
        spread = tuple(
            (name, dims)
            for name, dims in named.items()
            if dims in ((), (1,)) or (len(dims) > 1 and axes_of(dims, rank) != (1,))
        )
        return self if spread == self.shapes else replace(self, shapes=spread)

    def dims(self, shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
        spread = dict(self.shapes)
        for name in self.operands:
            given = spread.get(name)
            yield name, (shape.c,) if given is None else self._fitting(name, given, shape)

    def _fitting(self, name: str, given: tuple[int, ...], shape: Shape) -> tuple[int, ...]:
        """The shape of a tensor, where torch broadcasts it to that of the values; else raises."""
        sizes = (1,) * (len(shape.dims) - len(given)) + given
        # Not `size in (1, full)`: of a size that is a symbol, torch.compile takes that for false.
        if len(sizes) > len(shape.dims) or any(
            size != 1 and size != full for size, full in zip(sizes, shape.dims, strict=True)
        ):
            raise RuntimeError(
                f"{self.name}: expected {name} to hold one value per channel, shape [{shape.c}], "
                f"or a shape that broadcasts to {list(shape.dims)}, but got {list(given)}"
            )
        return given

    def axes(self, name: str, rank: int) -> tuple[int, ...]:
        """The axes along which a tensor differs: 0 samples, 1 channels, then space."""
        dims = dict(self.shapes).get(name)
        return (1,) if dims is None else axes_of(dims, rank)

    def sweep(self, walk: Walk) -> None:
        rank = len(walk.shape.spatial)
        values = {key: Given(name, self.axes(name, rank)) for key, name in self.tensors.items()}
        walk.map(substituted(self.function.expr, self.constants), values)

    @property
    def elementwise(self) -> Elementwise:
        made = self.function
        return Elementwise(
            made.pattern, made.expr, self.arguments, self.constants, self.tensors, dict(self.shapes)
        )

    def action(self, shape: Shape) -> Elementwise:
        return self.elementwise

    def apply(self, x: Tensor, env: Env) -> Tensor:
        if self.function.torch is not None and len(self.constants) == len(self.arguments):
            return self.function.torch(x, *self.constants.values())
        named = {key: value(each, env, x) for key, each in self.parameters()}
        # Several steps of torch's would round as often: 16-bit values are widened first. One step
        # of tensors is torch's own affair.
        simple = all(isinstance(part, Name) for part in self.function.expr.parts)
        narrow = x.dtype in (torch.float16, torch.bfloat16)
        wide = x.float() if narrow and not (simple and not self.constants) else x
        y = self.function.in_torch({"x": wide, **named}, wide)
        return y.expand(x.shape).to(x.dtype)

    def parameters(self) -> Iterator[tuple[str, Any]]:
        yield from zip(self.function.parameters, self.arguments, strict=True)

    def with_parameters(self, changes: Mapping[str, Any]) -> Map:
        given = {**dict(self.parameters()), **changes}
        return replace(self, arguments=tuple(given.values()))

    def __fx_create_arg__(self, tracer: Any) -> Any:
        """In a graph of torch.fx: the call that makes it."""
        given = tuple(map(tracer.create_arg, self.arguments))
        return tracer.create_node("call_function", self.function, given, {})

    def __str__(self) -> str:
        arguments: list[str] = []
        for at, (key, given) in enumerate(self.parameters()):
            if exact(given) != exact(self.function.parameters[key]):
                text = shown(given)
                arguments.append(text if len(arguments) == at else f"{key}={text}")
        return f"{self.name}({', '.join(arguments)})" if arguments else self.name


def axes_of(dims: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The axes along which a tensor of this shape differs, where its last is the values' last."""
    return tuple(at for at, size in enumerate(dims, rank + 2 - len(dims)) if size != 1)


class Function:
    """A pointwise function: called with an expression it gives one, and otherwise a stage.

    Made by :func:`pointwise`. Its docstring is that of the body, with the sections that hold for
    every pointwise stage.

    Args:
        body: what is computed, as a function of ``x`` and of arguments
        torch: torch's own function for the same. Default: none
        name: what it is called. Default: the body's name

    Example::

        >>> from transfuse.stages import leaky_relu, pointwise, sigmoid
        >>> print(leaky_relu(0.2))
        leaky_relu(0.2)
        >>> gated = pointwise(lambda x, skip: x * sigmoid(x) + skip)
        >>> print(gated.expr)
        x * sigmoid(x) + skip
    """

    def __init__(
        self,
        body: Callable[..., Any],
        torch: Callable[..., Tensor] | None = None,
        name: str | None = None,
    ) -> None:
        found = list(inspect.signature(body).parameters.values())
        if not found:
            raise TypeError("a pointwise function has a parameter, x, the running value")
        rest = found[1:]
        for each in found:
            if each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
                raise TypeError(f"a pointwise function has plain parameters, not {each}")
        if any(each.name == X.name for each in rest):
            raise TypeError(
                "x is the running value, the first parameter; no other can have its name"
            )
        written = body.__name__ if body.__name__.isidentifier() else "pointwise"
        self.name = name or written
        self.parameters: dict[str, Any] = {each.name: each.default for each in rest}
        with in_a_body():
            made = body(X, *map(symbol, self.parameters))
        self.expr: Expr = expression(made)
        if self.expr.logical:
            raise TypeError(f"{self.name} gives a condition, not a number: {self.expr}")
        word = self.name if self.name.isidentifier() else repr(self.name)
        self.text = f"{word}[lambda {', '.join(('x', *self.parameters))}: {self.expr}]"
        """What it is in full, for ``stages.text``."""
        self.torch, self.in_torch = torch, InTorch(self.expr)
        self._last: tuple[tuple[Any, ...], Map] | None = None
        self.__name__, self.__module__, self.__doc__ = self.name, body.__module__, self._doc(body)
        self.__signature__ = inspect.Signature(rest, return_annotation=Map)

    def _doc(self, body: Callable[..., Any]) -> str | None:
        """The docstring of the body, with what holds for every pointwise stage where it lacks."""
        if not body.__doc__:
            return None
        found = inspect.cleandoc(body.__doc__)
        needed = ["0.5" for given in self.parameters.values() if given is inspect.Parameter.empty]
        for section in (ARGUMENTS if self.parameters else SAME, MADE, USED):
            if section.partition("\n")[0] not in found:
                found += "\n\n" + section.format(call=f"{self.name}({', '.join(needed)})")
        return found

    @property
    def exact(self) -> bool:
        """Whether small integers give results that can be compared bit for bit."""
        parts = self.expr.walk()
        return all(PRIMITIVES[p.primitive].exact for p in parts if isinstance(p, Call))

    @cached_property
    def pattern(self) -> Expr:
        """The expression whatever its arguments are called: a0, a1, … in their order."""
        return substituted(
            self.expr, {each: symbol(f"a{i}") for i, each in enumerate(self.parameters)}
        )

    @overload
    def __call__(self, x: Expr, *args: Any, **kwargs: Any) -> Expr: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> Map: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Expr | Map:
        # Stages never change: the one without tensors that was made last serves again.
        lasting = not kwargs and not is_dynamo_compiling()
        again = self._last if lasting else None
        if again and len(args) == len(again[0]) and all(map(is_, args, again[0])):
            return again[1]
        inside = len(args) > 0 and isinstance(args[0], Expr)
        given = self._bound(args[inside:], kwargs)
        if inside:
            return substituted(self.expr, {"x": args[0], **given})
        values = tuple(self._plain(key, each) for key, each in given.items())
        made = Map(self, values, traced=is_dynamo_compiling())
        if lasting and all(type(each) in (int, float, str) for each in args):
            self._last = args, made
        return made

    def _plain(self, key: str, given: Any) -> Any:
        """A number, a name or a tensor; one without axes is a number, read now.

        Not so one that may learn, or is more than its value: a trace's, or a transform's.
        """
        number = (
            isinstance(given, Tensor)
            and given.dim() == 0
            and not (given.requires_grad or isinstance(given, Parameter) or why_not((given,)))
        )
        return plain(self.name, key, given, (int, float, *(() if number else (Tensor,)), str))

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument by name, as Python binds them, and by hand: a tracer can follow this."""
        found = dict(zip(self.parameters, args, strict=False))
        wrong = [key for key in kwargs if key not in self.parameters or key in found]
        found = {
            key: found.get(key, kwargs.get(key, given)) for key, given in self.parameters.items()
        }
        for key, usual in self.parameters.items():
            if found[key] is None and isinstance(usual, float) and isinf(usual):
                found[key] = usual  # no bound, as in torch
        missing = [key for key, given in found.items() if given is inspect.Parameter.empty]
        if wrong or missing or len(args) > len(self.parameters):
            takes = ", ".join(self.parameters) or "no arguments"
            got = [*map(shown, args), *(f"{key}={shown(each)}" for key, each in kwargs.items())]
            raise TypeError(f"{self.name} takes {takes}; got {', '.join(got) or 'none'}")
        return found

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Function) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return self.name, self.expr, tuple(self.parameters)

    def __repr__(self) -> str:
        return f"<pointwise {self.name}: {self.expr}>"


@overload
def pointwise(function: Callable[..., Any]) -> Function: ...
@overload
def pointwise(*, torch: Callable[..., Tensor] | None = None) -> Callable[..., Function]: ...
def pointwise(
    function: Callable[..., Any] | None = None, *, torch: Callable[..., Tensor] | None = None
) -> Function | Callable[..., Function]:
    """A stage of your own: any function of ``x`` and arguments, written in ``transfuse.maths``.

    .. math:: y = f(x, a, b, …) \\text{ element by element}

    Args:
        function: takes ``x`` first, then its arguments, with defaults if they have some. It is
            called once, with symbols; ``where(condition, a, b)`` stands for ``if``.
        torch: torch's own function for the same, where there is one.

    Shape:
        - x: any
        - y: the same
        - a tensor among the arguments: one value per channel, or a shape that broadcasts to x's

    Returns:
        Function: what makes stages; called with the arguments, it gives one

    Example::

        >>> from transfuse.maths import sin
        >>> from transfuse.stages import pointwise
        >>> snake = pointwise(lambda x, alpha: x + sin(alpha * x) ** 2 / alpha)
        >>> print(snake.expr)
        x + sin(alpha * x) * sin(alpha * x) / alpha
    """
    if function is None:
        return lambda body: Function(body, torch)
    if is_dynamo_compiling():
        made: Function = getattr(_Traced, _traced(function))
        return made
    return Function(function)


class _Traced:
    """Functions that were made in traces, where a trace finds them.

    By what they are in full, but in digits: a trace takes no other sign for a part of a name.
    """


def _traced(body: Callable[..., Any]) -> str:
    made = Function(body)
    name = f"of_{made.text.encode().hex()}"
    setattr(_Traced, name, made)
    return name


_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]
# As in ``line``: called in a trace, not traced, for it asks Python for the body's parameters.
