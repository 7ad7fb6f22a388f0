"""Sweeps on the GPU: kernels that are built once for all sizes, and their launches.

``launches`` writes those of a sweep into any sequence; ``prepare`` makes one of a sweep alone.
"""

from collections.abc import Callable
from collections.abc import Sequence as Some

import torch
from torch import Tensor

from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.sequence import Sequence
from transfuse.backends.triton.sweeps import each_launch, fold_launch, slide_launch
from transfuse.sweeps import Each, Fold, Sweep, views


def launches(
    sweep: Sweep, at: Callable[[int], int], memory: Callable[[int, torch.dtype], int]
) -> list[Launch]:
    """The launches of a sweep, in order.

    ``at`` gives the number of a slot's tensor in the sequence that they become part of, ``memory``
    the number of a new piece of scratch memory there. None where there is nothing to write.
    """
    if isinstance(sweep, Each):
        return each_launch.launches(sweep, at)
    if isinstance(sweep, Fold):
        return fold_launch.launches(sweep, at, memory)
    folded = slide_launch.folded(sweep)
    if folded is not None:
        return fold_launch.launches(folded, at, memory)
    return slide_launch.launches(sweep, at)


class Alone(Sequence):
    """The launches of one sweep, called with the tensors of all slots, also of other sweeps'.

    What comes after its own has the numbers of its scratch memory, and is left out.
    """

    slots = 0

    def __call__(self, tensors: Some[Tensor]) -> None:
        super().__call__(tensors[: self.slots])


def prepare(sweep: Sweep, device: torch.device) -> Alone:
    """A sweep by itself: it is called with the tensors of all slots, in order."""
    seen = views(sweep)
    slots, pieces, end = max(seen) + 1, [], 0

    def memory(elements: int, dtype: torch.dtype) -> int:
        nonlocal end
        pieces.append((end, elements, dtype))
        end += -(-elements * dtype.itemsize // 512) * 512
        return slots + len(pieces) - 1

    found = launches(sweep, lambda slot: slot, memory)
    sequence = Alone(device, found, pieces, end)
    sequence.slots = slots
    unread = torch.uint8  # a slot that belongs to another sweep
    sequence.foresee([seen[at].dtype if at in seen else unread for at in range(slots)])
    return sequence
