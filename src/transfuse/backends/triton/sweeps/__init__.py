"""Sweeps on the GPU: kernels that are built once for all sizes, and their launches.

``launches`` writes those of a sweep into any sequence; ``prepare`` makes one of a sweep alone.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Some
from functools import partial

import torch
from torch import Tensor

from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.sequence import Sequence
from transfuse.backends.triton.sweeps import (
    abreast,
    each_launch,
    fold_launch,
    slide_launch,
    together,
    together_launch,
)
from transfuse.sweeps import Each, Fold, Sweep, View, views

At = Callable[[int], int]
"""The number of a slot's tensor in a sequence."""
Scratch = Callable[[int, torch.dtype], int]
"""The number of a new piece of scratch memory there, of so many elements."""
Launches = Callable[[At, Scratch], list[Launch]]


def launches(sweep: Sweep, at: At, memory: Scratch) -> list[Launch]:
    """The launches of a sweep, in order; none where there is nothing to write."""
    if isinstance(sweep, Each):
        return each_launch.launches(sweep, at)
    if isinstance(sweep, Fold):
        return fold_launch.launches([sweep], at, memory)
    folded = slide_launch.folded(sweep)
    if folded is not None:
        return fold_launch.launches([folded], at, memory)
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
    return _alone(views(sweep), device, partial(launches, sweep))


def prepare_all(sweeps: Some[Sweep], device: torch.device) -> list[Alone]:
    """Sweeps in turn, those that look at the same places as one."""
    found: list[Alone] = []
    for each in abreast.groups(list(together.groups(sweeps))):
        if isinstance(each, list):
            seen = {at: view for fold in each for at, view in views(fold).items()}
            found.append(_alone(seen, device, partial(fold_launch.launches, each)))
        elif isinstance(each, together.Group):
            one = partial(together_launch.launches, each)
            found.append(_alone(together.slots(each), device, one))
        else:
            found.append(prepare(each, device))
    return found


def _alone(seen: Mapping[int, View], device: torch.device, launches: Launches) -> Alone:
    """The sequence of launches that look at these slots."""
    slots, pieces, end = max(seen) + 1, [], 0

    def memory(elements: int, dtype: torch.dtype) -> int:
        nonlocal end
        pieces.append((end, elements, dtype))
        end += -(-elements * dtype.itemsize // 512) * 512
        return slots + len(pieces) - 1

    found = launches(lambda slot: slot, memory)
    sequence = Alone(device, found, pieces, end)
    sequence.slots = slots
    unread = torch.uint8  # a slot that belongs to another sweep
    sequence.foresee([seen[at].dtype if at in seen else unread for at in range(slots)])
    return sequence
