"""Memory for results: large ones lie in that of earlier ones to which nothing refers any more.

Fresh memory comes page by page, each cleared by the system when it is first written, which takes
up to as long as the core takes to fill it. So the storages of the last few large results are held
here, and one of them is used again when nothing else refers to it: no tensor, view, array, capsule,
graph or handle. Results are torch's own tensors all the same: they grow, are shared, saved and
pickled like any other.

Amid a model the allocator often has memory whose pages are there, which another operation has just
left: that is better still, since caches hold some of it, so it is asked first.

Nothing runs when a result ends, and nothing here takes a lock: calls may come from any thread, from
a signal's handler, from the collector amid these very lines. A storage is taken out of the
dictionary, one atomic step, before its references are counted. Whoever took it has it alone.
"""

import ctypes
import os
from functools import cache
from math import prod
from sys import getrefcount
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage

_CPU = torch.device("cpu")
LEAST = 2**20
"""Bytes of a large result; the memory of smaller ones is not held."""
PIECES = 32
"""Storages held at the most, so that looking through them takes no time."""


def _limit() -> int:
    """1 GiB, but no more than a sixteenth of the machine's memory."""
    try:
        return min(2**30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 16)
    except (AttributeError, ValueError):  # not told here
        return 2**30


MOST = _limit()
"""Bytes held at the most, in use or idle; the longest held go first."""


class Form:
    """What a result is like: dense, channels first or last; ``size`` in bytes."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool) -> None:
        axes = tuple(range(len(shape)))
        outer_first = (0, *axes[2:], 1) if channels_last else axes
        steps, size = [0] * len(shape), 1
        for axis in reversed(outer_first):
            steps[axis] = size
            size *= max(shape[axis], 1)
        self.shape, self.strides, self.dtype = shape, tuple(steps), dtype
        self.size = prod(shape) * dtype.itemsize


class _Held(NamedTuple):
    storage: UntypedStorage
    key: int
    """torch's number for the storage, its own as long as this holds it."""
    address: int
    size: int


_held: dict[int, _Held] = {}
"""By key; the longest held comes first. What is used again counts as new."""


def empty(form: Form) -> Tensor:
    """A tensor on the CPU, whatever torch's default device is; nothing is known of its values."""
    if not LEAST <= form.size <= MOST or _alone() is None:
        return _fresh(form)
    result, held = _fresh(form), _taken(form.size)
    if _has_pages(result.data_ptr(), form.size):
        return result  # and what was held is the allocator's again
    if held is not None:
        result = _over(held.storage, form)
    else:
        storage = result.untyped_storage()
        held = _Held(storage, storage._cdata, storage.data_ptr(), form.size)
    _held[held.key] = held
    _bounded()  # also after a reuse: other threads may have filled the place it left meanwhile
    return result


def release() -> None:
    """Hold nothing any more; what nothing else refers to goes back to the system."""
    _held.clear()


def _fresh(form: Form) -> Tensor:
    try:
        return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=_CPU)
    except RuntimeError:
        release()  # perhaps this is what is missing
    try:
        return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=_CPU)
    except RuntimeError:
        message = f"output of shape {list(form.shape)} ({form.size} bytes) cannot be allocated"
        raise RuntimeError(message) from None


def _over(storage: UntypedStorage, form: Form) -> Tensor:
    """A new tensor over this memory: no view, and bound to no mode in which earlier ones were made.

    ``set_`` counts as a write; by way of ``data`` the version is 0, as that of any new tensor.
    """
    result = torch.empty(0, dtype=form.dtype, device=_CPU)
    data = torch.empty(0, dtype=form.dtype, device=_CPU)
    result.data = data.set_(storage, 0, form.shape, form.strides)
    return result


def _has_pages(address: int, size: int) -> bool:
    """Whether the system has given most of its pages to this memory, and need not clear them."""
    mincore, page = _pages()
    first, end = address // page, -(-(address + size) // page)

    def missing(first: int, count: int) -> int:
        told = (ctypes.c_char * count)()
        at, length = ctypes.c_void_p(first * page), ctypes.c_size_t(count * page)
        return count if mincore is None or mincore(at, length, told) else told.raw.count(0)

    if missing((first + end) // 2, 1):  # fresh memory: one page tells, and all take longer to ask
        return False
    return missing(first, end - first) <= (end - first) // 8


@cache
def _pages() -> tuple[Any, int]:
    """What tells which pages are there, if anything does, and their size."""
    size = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
    return getattr(ctypes.CDLL(None), "mincore", None), size


def _taken(size: int) -> _Held | None:
    """A storage of this size to which nothing refers, the last used first; no longer held."""
    found = None
    for held in reversed(list(_held.values())):
        if held.storage.nbytes() != held.size:  # resized since, and outside the limits
            _held.pop(held.key, None)
        elif held.size == size and found is None and _uses(held.key) == 1:
            found = _held.pop(held.key, None)  # None: another thread has it
            if found is not None and not _idle(found):
                _held[found.key] = found
                found = None
    return found


def _bounded() -> None:
    """Let go of the longest held, down to the limits."""
    held = list(_held.values())
    total = sum(each.size for each in held)
    for number, each in enumerate(held):
        if total <= MOST and len(held) - number <= PIECES:
            return
        _held.pop(each.key, None)
        total -= each.size


_uses: Any = getattr(torch._C, "_storage_Use_Count", None)
"""torch's count of what refers to a storage: tensors of every kind, and its Python handle."""


def _idle(held: _Held) -> bool:
    """Whether nothing but ``held`` refers to the storage.

    Its Python handle is one object however often it is asked for, so that one's references are
    counted as well.
    """
    unchanged = held.storage.data_ptr() == held.address  # else it lies where processes share it
    return _uses(held.key) == 1 and getrefcount(held.storage) == _alone() and unchanged


@cache
def _alone() -> int | None:
    """The references to a handle that is only held here; None where this torch does not tell."""
    if _uses is None:
        return None
    tensor = torch.empty(1, device=_CPU)
    storage = tensor.untyped_storage()
    held = _Held(storage, storage._cdata, 0, 0)
    in_use = _uses(held.key)
    del tensor
    with_handle = getrefcount(held.storage)
    del storage
    without = getrefcount(held.storage)
    telling = (in_use, _uses(held.key)) == (2, 1) and without < with_handle
    return without if telling else None


if hasattr(os, "register_at_fork"):
    # A page shared with the parent would be copied when it is written: dearer than a fresh one.
    os.register_at_fork(after_in_child=release)
