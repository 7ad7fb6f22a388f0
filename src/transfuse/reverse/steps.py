"""Steps: sweeps, and what is no sweep between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from transfuse.maths.expr import Expr
from transfuse.sweeping import Leg, Seen
from transfuse.sweeps import Each, Fold, Folding, Sweep, View

CONSTANTS = "constants"
"""What a step does that writes down a few numbers which do not change."""


@dataclass(frozen=True)
class TensorStep:
    """A step that is no sweep: what it does in words, and how, on tensors.

    ``run`` takes the tensors it writes, in order, and those it reads, by name. An operand of the
    call that is read whole, and so has no dims here, is the very tensor that was given. ``again``:
    it is the convolution, which the forward call had computed before.
    """

    does: str
    writes: tuple[Seen, ...]
    reads: tuple[tuple[str, Seen], ...]
    run: Callable[[Sequence[Tensor], Mapping[str, Tensor]], None]
    flops: int = 0
    again: bool = False


Step = Leg | TensorStep


def each_leg(does: str, into: Seen, expr: Expr, reads: Mapping[str, Seen]) -> Leg:
    """A sweep that gives every element of its own."""

    def make(outs: tuple[View, ...], values: dict[str, View]) -> Sweep:
        return Each(outs[0], expr, tuple(values.items()))

    return Leg(does, (into,), tuple(reads.items()), make)


def fold_leg(does: str, into: Seen, folding: Folding, expr: Expr, reads: Mapping[str, Seen]) -> Leg:
    """A sweep that gives one for all along the last axes."""

    def make(outs: tuple[View, ...], values: dict[str, View]) -> Sweep:
        return Fold(outs, folding, tuple(values.items()), before=expr)

    return Leg(does, (into,), tuple(reads.items()), make)


def same(t: Tensor) -> Tensor:
    """A buffer as it is."""
    return t
