"""Which folds are taken at once: of one kind, over the same axes, of some of the same values.

The sums that a norm's gradient asks for read these values once, not one after another.
"""

from collections.abc import Sequence

import torch

from transfuse.backends.triton.sweeps.together import Group
from transfuse.sweeps import Each, Fold, Sweep, View

MOST = 4
"""Folds at once: a thread keeps what is found for each."""
WIDEST = 12
"""Views of values that they read."""


def groups(items: Sequence[Sweep | Group]) -> list[Sweep | Group | list[Fold]]:
    """Sweeps in turn, folds to be taken at once as a list, in the place of the first of them."""
    found: list[Sweep | Group | list[Fold]] = []
    left = list(items)
    while left:
        first = left.pop(0)
        if not isinstance(first, Fold):
            found.append(first)
            continue
        folds, passed = [first], list[Sweep | Group]()
        for item in left:
            if isinstance(item, Fold) and _suits(folds, item) and _free([*folds, *passed], item):
                folds.append(item)
            else:
                passed.append(item)
        left = passed
        found.append(folds)
    return found


def _suits(folds: Sequence[Fold], other: Fold) -> bool:
    """Whether a fold may be taken at once with these."""
    first = folds[0]
    alike = (
        len(folds) < MOST
        and other.folding == first.folding
        and other.outs[0].sizes == first.outs[0].sizes
        and other.values[0][1].sizes == first.values[0][1].sizes
        and _double(other) == _double(first)
    )
    known = {view for fold in folds for _, view in fold.values}
    own = {view for _, view in other.values}
    return alike and len(known | own) <= WIDEST and any(map(_whole, known & own))


def _double(fold: Fold) -> bool:
    views = (*fold.outs, *(view for _, view in (*fold.values, *fold.others)))
    return any(view.dtype is torch.float64 for view in views)


def _whole(view: View) -> bool:
    """Whether it has an element for every value that is folded, and not one for several."""
    return all(step for size, step in zip(view.sizes, view.strides, strict=True) if size > 1)


def _free(before: Sequence[Sweep | Group], fold: Fold) -> bool:
    """Whether a fold may come before these, too."""
    writes, reads = _slots(fold)
    found = [_slots(each) for each in before]
    return not any(writes & (theirs | seen) or reads & theirs for theirs, seen in found)


def _slots(item: Sweep | Group) -> tuple[set[int], set[int]]:
    """The slots that one writes, and those it reads."""
    if isinstance(item, Group):
        both = [_slots(member.sweep) for member in item.members]
        return set().union(*(w for w, _ in both)), set().union(*(r for _, r in both))
    outs = item.outs if isinstance(item, Fold) else (item.out,)
    others = () if isinstance(item, Each) else item.others
    return {view.slot for view in outs}, {view.slot for _, view in (*item.values, *others)}
