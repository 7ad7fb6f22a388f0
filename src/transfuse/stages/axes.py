"""Axes by number as torch counts them, or by the words that hold for any number of them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from transfuse.plain import bound

Dim = int | tuple[int, ...] | Literal["channels", "space", "all"]
WORDS = ("channels", "space", "all")
"""Every axis but that of the samples, whatever the number of spatial ones, is ``all``."""


def expect_dim(stage: str, dim: Dim) -> None:
    """Refuse what can be no set of axes, whatever the tensor."""
    if isinstance(dim, str):
        if dim not in WORDS:
            raise ValueError(
                f"{stage} goes over 'channels', 'space', 'all' or axes by number, not {dim!r}"
            )
    elif dim == ():
        raise ValueError(f"{stage}: dim is empty; 'all' stands for every axis but the samples'")
    elif 0 in (dim if isinstance(dim, tuple) else (dim,)):
        raise ValueError(_samples(stage, dim))


def resolved(stage: str, dim: Dim, rank: int) -> tuple[int, ...]:
    """The axes of a tensor of ``rank`` spatial ones, in order; raises as torch does."""
    if isinstance(dim, str):
        words = {"channels": (1, 2), "space": (2, rank + 2), "all": (1, rank + 2)}
        return tuple(range(*words[dim]))
    found = wrapped(dim if isinstance(dim, tuple) else (dim,), rank + 2)
    if 0 in found:
        raise ValueError(_samples(stage, dim))
    return found


def wrapped(dims: Sequence[int], count: int) -> tuple[int, ...]:
    """Axes among ``count`` of them in order, negative ones counted from the end."""
    for dim in dims:
        if not -count <= dim < count:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], "
                f"but got {dim})"
            )
    found = sorted([bound(dim) % count for dim in dims])
    for one, other in pairwise(found):
        if one == other:
            raise RuntimeError(f"dim {one} appears multiple times in the list of dims")
    return tuple(found)


def _samples(stage: str, dim: object) -> str:
    return f"{stage}: dim={dim} holds the samples' axis (0), and samples are never mixed"
