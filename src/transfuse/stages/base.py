"""What every stage states: its kind, its shape, what it needs, and its maths in torch."""

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from transfuse.problem import Shape

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

    def __post_init__(self) -> None:
        for each in fields(self):
            types, given = each.metadata.get("parameter", (object,)), getattr(self, each.name)
            if Tensor in types and hasattr(given, "__torch_function__"):  # a tensor, or a tracer's
                continue
            if not isinstance(given, types) and given is not each.default:
                known = ", ".join(t.__name__ for t in types)
                kind = type(given).__name__
                raise TypeError(f"{self.name}: {each.name} must be one of {known}, not {kind}")

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


def channel(operand: Operand, env: Env, like: Tensor) -> Tensor:
    """The tensor under a name, shaped to meet ``like`` along its channels."""
    if not isinstance(operand, str):
        raise TypeError(f"expected the name of a tensor in env, not {type(operand).__name__}")
    return env[operand].reshape(1, -1, *[1] * (like.dim() - 2))


def value(operand: Number | Operand, env: Env, like: Tensor) -> Number | Tensor:
    """A number as it is, a named tensor as ``channel`` gives it."""
    return operand if isinstance(operand, int | float) else channel(operand, env, like)
