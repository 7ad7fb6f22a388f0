"""What every stage states: its kind, its shape, what it needs, and its maths in torch."""

from collections.abc import Hashable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from transfuse.problem import Shape
from transfuse.stages.values import Kinds, admitted, exact, plain

Number = int | float
Operand = Tensor | str | None
"""A per-channel tensor: the tensor itself, or the name it will be given under."""
Env = MutableMapping[str, Tensor]
"""Operands by name, as the maths reads them; statistics are added to it on the way."""


S = TypeVar("S", bound="Stage")


class Kind(str, Enum):
    """What a stage must see at once to give one of its outputs."""

    POINTWISE = "pointwise"  # one element
    CHANNEL = "channel"  # all channels of one position
    WINDOW = "window"  # all positions of one window
    WHOLE = "whole"  # a statistic over more than any tile
    CONVOLUTION = "convolution"


def parameter(*types: type, **options: Any) -> Any:
    """A dataclass field that takes a value of these types, or the name of one given later."""
    return field(metadata={"parameter": (*types, str)}, **options)


@dataclass(frozen=True)
class Stage:
    """One step of a chain.

    A stage is declared with numbers and tensors, or with *names* that a call binds later:
    ``bind`` puts numbers in their place; names still there afterwards are tensors, which the
    maths finds in its ``env``.
    """

    kind: ClassVar[Kind]
    name: ClassVar[str]
    exact: ClassVar[bool] = False
    """Small integers in, exactly representable values out: results can be compared bit for bit."""

    def __init_subclass__(cls) -> None:
        # Put here before the dataclass decorator looks, or it would make its own for each class.
        cls.__eq__ = Stage.__eq__  # type: ignore[method-assign]
        cls.__hash__ = Stage.__hash__  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, kinds in _fields(kind):
            given = getattr(self, name)
            value = plain(self.name, name, given, kinds)
            if value is not given:
                object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        """Whether the other is the same stage with the same values, bit for bit."""
        return isinstance(other, Stage) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)

    @property
    def values(self) -> tuple[Hashable, ...]:
        """What the stage is compared and kept by."""
        kind: Any = type(self)
        return (kind, *[exact(getattr(self, name)) for name, _ in _fields(kind)])

    def shape(self, shape: Shape) -> Shape:
        """The shape this stage gives for ``shape``; raises as torch does where it cannot."""
        return shape

    def need(self, extents: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        """How far along each axis the input must be known to give ``extents`` outputs."""
        return extents

    def apply(self, x: Tensor, env: Env) -> Tensor:
        """The maths, in torch, in the type of ``x``."""
        raise NotImplementedError

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the per-channel tensors it reads."""
        return tuple(value for _, value in self._parameters() if isinstance(value, str))

    def bind(self: S, scalars: Mapping[str, Number]) -> S:
        """The stage with numbers in place of the names in ``scalars``."""
        named = {k: v for k, v in self._parameters() if isinstance(v, str)}
        return replace(self, **{k: scalars[v] for k, v in named.items() if v in scalars})

    def lift(self: S, prefix: str, env: Env) -> S:
        """The stage with names in place of its tensors, which are put into ``env``."""
        changes = {}
        for key, value in self._parameters():
            if isinstance(value, Tensor):
                changes[key] = f"{prefix}.{key}"
                env[changes[key]] = value
        return replace(self, **changes) if changes else self

    def _parameters(self) -> Iterator[tuple[str, Any]]:
        for each in fields(self):
            if each.metadata.get("parameter"):
                yield each.name, getattr(self, each.name)

    def __str__(self) -> str:
        arguments: list[str] = []
        for i, each in enumerate(fields(self)):
            value = getattr(self, each.name)
            if value != each.default:
                arguments.append(f"{value}" if len(arguments) == i else f"{each.name}={value}")
        return f"{self.name}({', '.join(arguments)})" if arguments else self.name


@cache
def _fields(kind: Any) -> tuple[tuple[str, Kinds], ...]:
    """The names of a stage's fields, and the types they take."""
    return tuple((each.name, admitted(each)) for each in fields(kind))


def channel(operand: Operand, env: Env, like: Tensor) -> Tensor:
    """The tensor under a name, shaped to meet ``like`` along its channels."""
    if not isinstance(operand, str):
        raise TypeError(f"expected the name of a tensor in env, not {type(operand).__name__}")
    return env[operand].reshape(1, -1, *[1] * (like.dim() - 2))


def value(operand: Number | Operand, env: Env, like: Tensor) -> Number | Tensor:
    """A number as it is, a named tensor as ``channel`` gives it."""
    return operand if isinstance(operand, int | float) else channel(operand, env, like)
