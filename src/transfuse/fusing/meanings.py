"""What an operation of torch may mean: one of four kinds, with what it takes.

``Pointwise``, an expression of its arguments; ``OneStage``, a stage that sees more than an element;
``Beside``, channels side by side; ``Nothing``, the value as it is.
"""

from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transfuse.maths.expr import Expr
from transfuse.stages import Stage

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


def parameters(text: str) -> Parameters:
    """A signature such as ``input, dim, keepdim=False``."""
    found: Parameters = {}
    for each in text.split(","):
        name, _, default = each.strip().partition("=")
        found[name] = literal_eval(default) if default else NEEDED
    return found
