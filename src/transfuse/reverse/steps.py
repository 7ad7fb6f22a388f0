"""Steps: sweeps, and what is no sweep between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from transfuse.sweeping import Leg, Seen


@dataclass(frozen=True)
class Task:
    """A step that is no sweep: what it does in words, and how, on tensors.

    ``run`` takes the tensors it writes, in order, and those it reads, by name. An operand of the
    call that is read whole, and so has no dims here, is the very tensor that was given.
    """

    does: str
    writes: tuple[Seen, ...]
    reads: tuple[tuple[str, Seen], ...]
    run: Callable[[Sequence[Tensor], Mapping[str, Tensor]], None]
    flops: int = 0


Step = Leg | Task
