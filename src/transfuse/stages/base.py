"""What every stage states: its kind, its shape, what it needs, and its maths in torch."""

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import reduce
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from transfuse.problem import Shape
from transfuse.stages.actions import Action, Elementwise
from transfuse.stages.values import AS_THEY_ARE, Kinds, admitted, exact, outlined, plain
from transfuse.stages.walk import Walk

Number = int | float
Operand = Tensor | str | None
"""A tensor beside the values: the tensor itself, or the name it will be given under."""
Env = MutableMapping[str, Tensor]
"""Operands by name, as the maths reads them; statistics are added to it on the way."""


S = TypeVar("S", bound="Stage")


class Kind(str, Enum):
    """What a stage must see at once to give one of its outputs."""

    POINTWISE = "pointwise"  # one element
    CHANNEL = "channel"  # all channels of one position
    WINDOW = "window"  # all positions of one window
    WHOLE = "whole"  # a statistic over more than any tile
    AXES = "axes"  # all along some other axes: no engine's affair, but a sweep's
    FORM = "form"  # nothing: it moves no value
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
    mixes: ClassVar[bool] = False
    """Whether its tensors may be float32 beside values of 16 bits, as with torch's norms."""
    gathers: ClassVar[bool] = True
    applies: ClassVar[bool] = True
    """Of one that sees the whole: whether it takes a statistic, and whether it needs one."""
    reshapes: ClassVar[bool] = False
    """Whether the result has other axes than the values between stages; see ``form``."""

    def __init_subclass__(cls) -> None:
        # Put here before the dataclass decorator looks, or it would make its own for each class.
        cls.__eq__ = Stage.__eq__  # type: ignore[method-assign]
        cls.__hash__ = Stage.__hash__  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, kinds in _fields(kind):
            given = getattr(self, name)
            if type(given) in AS_THEY_ARE and type(given) in kinds:  # the usual case, at once
                continue
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

    @property
    def outline(self) -> tuple[Hashable, ...]:
        """What it is compared by, whatever its tensors are."""
        kind: Any = type(self)
        return (kind, *[outlined(getattr(self, name)) for name, _ in _fields(kind)])

    @property
    def held(self) -> list[Any]:
        """The tensors, or what a tracer has for them, that it was declared with, in order."""
        kind: Any = type(self)
        values = [getattr(self, name) for name, kinds in _fields(kind) if Tensor in kinds]
        return [each for each in values if hasattr(each, "__torch_function__")]

    @property
    def given(self) -> tuple[Any, ...]:
        """Whatever it was declared with: numbers, names, tensors and the like."""
        kind: Any = type(self)
        return tuple([getattr(self, name) for name, _ in _fields(kind)])

    def sees(self, rank: int) -> Kind:
        """What it must see at once among values of ``rank`` spatial axes."""
        return self.kind

    def scope(self, shape: Shape) -> int:
        """How many values one statistic of it covers."""
        return 1

    def shape(self, shape: Shape) -> Shape:
        """The shape this stage gives for ``shape``; raises as torch does where it cannot."""
        return shape

    def form(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes of the result where those of the values are ``dims``.

        A stage that drops or joins axes does so at the end alone: between stages there are always
        samples, channels and space.
        """
        return dims

    def need(self, extents: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        """How far along each axis the input must be known to give ``extents`` outputs."""
        return extents

    def apply(self, x: Tensor, env: Env) -> Tensor:
        """The maths, in torch, in the type of ``x``."""
        raise NotImplementedError

    def action(self, shape: Shape) -> Action | None:
        """What it does to a tile of values of this shape; None where only sweeps can do it."""
        return None

    @property
    def checked_in_c(self) -> bool:
        """Whether the checks of C functions (``call.h``) have what it asks of the values."""
        return True

    @property
    def across_samples(self) -> bool:
        """Whether it asks for the samples' axis, as torch's batch norm does."""
        return False

    @property
    def elementwise(self) -> Elementwise | None:
        """What it computes of every element by itself, where that is all it does."""
        return None

    @property
    def largest(self) -> bool:
        """Whether it gives the largest value of each window, and every window holds one."""
        return False

    def by_sign(self, sign: "Operand") -> "Stage":
        """Of one that is ``largest``: the smallest instead where the channel's ``sign`` is < 0."""
        raise NotImplementedError

    def merged(self, after: "Stage") -> "Stage | None":
        """The one stage that this and the one after it make; None where they make none."""
        return None

    def halves(self, key: str) -> tuple["Stage", "Stage"] | None:
        """The stage as two: one gathers statistics of the batch under ``key``, one applies them."""
        return None

    def unshifted(self) -> "Stage | None":
        """The same for exponents that are known to be small, where it need not look for them."""
        return None

    def undivided(self, rank: int) -> tuple["Stage", int] | None:
        """The stage without its division by an integer, and that integer."""
        return None

    def sweep(self, walk: Walk) -> None:
        """What it does to stored values, in the words of ``walk``; by default torch alone can."""
        raise NotImplementedError

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the tensors it reads."""
        return tuple(value for _, value in self.parameters() if isinstance(value, str))

    @property
    def sampled(self) -> tuple[str, ...]:
        """Names of the tensors that have the samples' axis where the values have it, no other."""
        return ()

    @property
    def without_gradient(self) -> tuple[str, ...]:
        """Names of the tensors it reads that have no gradient; in torch they have none, either."""
        return ()

    @property
    def updates(self) -> tuple[str, ...]:
        """Names of the tensors it writes to."""
        return ()

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names that stand for numbers, which no tensor can be."""
        fitting = {f.name for f in fields(self) if Tensor in f.metadata.get("parameter", ())}
        named = ((k, v) for k, v in self.parameters() if isinstance(v, str))
        return tuple(value for key, value in named if key not in fitting)

    def bind(self: S, scalars: Mapping[str, Number]) -> S:
        """The stage with numbers in place of the names in ``scalars``."""
        named = {k: v for k, v in self.parameters() if isinstance(v, str)}
        return self.with_parameters({k: scalars[v] for k, v in named.items() if v in scalars})

    def fitted(self: S, shapes: Mapping[str, tuple[int, ...]], rank: int) -> S:
        """The stage, told the shapes of its tensors by name, where it depends on them.

        ``rank``: spatial axes of the values. Tensors that are not named are not known yet.
        """
        return self

    def typed(self: S, compute: torch.dtype) -> S:
        """The stage, told the type its values are computed in, where it depends on that."""
        return self

    def dims(self, shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Its tensors by name, each with its shape; ``(C,)``: one value per channel."""
        for name in self.operands:
            yield name, (shape.c,)

    def lift(self: S, prefix: str, env: Env, taken: Container[str] = ()) -> S:
        """The stage with names in place of its tensors, which are put into ``env``.

        A name is the argument's after ``prefix``, and none of those in ``taken``.
        """
        changes = {}
        for key, value in self.parameters():
            if isinstance(value, Tensor):
                name = f"{prefix}.{key}" if prefix else key
                while name in taken:
                    name += "_"
                changes[key] = name
                env[name] = value
        return self.with_parameters(changes) if changes else self

    def with_parameters(self: S, changes: Mapping[str, Any]) -> S:
        """The stage with other values of some parameters."""
        return replace(self, **changes)

    def parameters(self) -> Iterator[tuple[str, Any]]:
        """What may be given by name or as a tensor: its name in the signature, and what it is."""
        for name in _parameters(type(self)):
            yield name, getattr(self, name)

    def __str__(self) -> str:
        given = (each for each in fields(self) if not each.metadata.get("names"))
        return called(
            self.name, ((each.name, getattr(self, each.name), each.default) for each in given)
        )


_admitted: dict[Any, tuple[tuple[str, Kinds], ...]] = {}
_named: dict[Any, tuple[str, ...]] = {}


def _fields(kind: Any) -> tuple[tuple[str, Kinds], ...]:
    """The names of a stage's fields, and the types they take; kept by the class.

    Not with ``functools.cache``, which torch.compile does not trace without a warning.
    """
    found = _admitted.get(kind)
    if found is None:
        found = _admitted[kind] = tuple((each.name, admitted(each)) for each in fields(kind))
    return found


def _parameters(kind: Any) -> tuple[str, ...]:
    """The names of a stage's fields that may be given by name or as a tensor; kept likewise."""
    found = _named.get(kind)
    if found is None:
        given = (each.name for each in fields(kind) if each.metadata.get("parameter"))
        found = _named[kind] = tuple(given)
    return found


def field_names(kind: Any) -> tuple[str, ...]:
    """The names of a stage's fields, which ``torch.compile`` can ask for where it traces a call."""
    return tuple(name for name, _ in _fields(kind))


def look_at_fields(kind: Any = Stage) -> None:
    """Look at the fields of every stage there is by now: torch.compile, tracing a call, cannot."""
    for each in kind.__subclasses__():
        _fields(each)
        _parameters(each)
        look_at_fields(each)


def called(name: str, arguments: Iterable[tuple[str, object, object]]) -> str:
    """A call as chains print it, of the names, values and defaults of its arguments in order."""
    written: list[str] = []
    in_place = True
    for key, value, default in arguments:
        told = value != default
        in_place = in_place and told and not isinstance(value, bool)
        if told:
            written.append(shown(value) if in_place else f"{key}={shown(value)}")
    return f"{name}({', '.join(written)})" if written else name


def shown(value: object) -> str:
    """An argument as chains print it; of a tensor, its shape and not its values."""
    return f"tensor{list(value.shape)}" if isinstance(value, Tensor) else f"{value}"


def channel(operand: Operand, env: Env, like: Tensor) -> Tensor:
    """The tensor under a name, shaped to meet ``like`` along its channels."""
    if not isinstance(operand, str):
        raise TypeError(f"expected the name of a tensor in env, not {type(operand).__name__}")
    return env[operand].reshape(1, -1, *[1] * (like.dim() - 2))


def alike(x: Tensor, env: Env, *operands: Operand) -> tuple[Tensor, list[Tensor | None]]:
    """Values and the named tensors of a norm, these as ``(C,)``, all in the widest of their types.

    Contiguous: torch rounds otherwise in its path for strided operands.
    """
    named = [env[each].flatten() if isinstance(each, str) else None for each in operands]
    types = [x.dtype, *(each.dtype for each in named if each is not None)]
    wide = reduce(torch.promote_types, types)
    return x.to(wide), [each if each is None else each.to(wide).contiguous() for each in named]


def value(operand: Number | Operand, env: Env, like: Tensor) -> Number | Tensor:
    """A number as it is; a named tensor as it meets ``like``: of one axis, along the channels."""
    if isinstance(operand, int | float):
        return operand
    named = env[operand] if isinstance(operand, str) else None
    return channel(operand, env, like) if named is None or named.dim() == 1 else named
