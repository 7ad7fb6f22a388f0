"""The memory of large results: kept when they are gone, and the next ones lie in it.

Fresh memory comes page by page, each cleared by the system when it is first written, which takes
up to as long as the core takes to fill it. Memory is idle once the last tensor, view, array or
capsule over it is gone, and no earlier: a storage holds the array made for it alone, and it is the
end of that array that brings the memory back.

That end may come anywhere, in another thread or in the collector amid these very lines. So nothing
here takes a lock: each step is one operation on a dictionary, and those are atomic.
"""

import os
import weakref
from math import prod

import numpy as np
import torch
from torch import Tensor

Memory = np.ndarray[tuple[int], np.dtype[np.uint8]]
"""Bytes that torch gave; every result lies in a slice of its own."""

LEAST = 2**20
"""Bytes of a large result; smaller ones are torch's."""
PIECES = 32
"""Idle pieces at the most, so that looking through them takes no time."""
_idle: dict[int, Memory] = {}
"""Memory in which no result lies, by its id; the longest idle comes first."""


def _limit() -> int:
    """1 GiB, but no more than a sixteenth of the machine's memory."""
    try:
        return min(2**30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 16)
    except (AttributeError, ValueError):  # not told here
        return 2**30


MOST = _limit()
"""Idle bytes at the most; the longest idle go first."""


def empty(
    shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format | None = None
) -> Tensor:
    """As ``torch.empty`` on the CPU, but the storage cannot grow: it does not own its memory."""
    size = prod(shape) * dtype.itemsize
    memory = _reused(size)
    if memory is None:
        memory = _fresh(size)
    array = memory[:size]
    weakref.finalize(array, _keep, memory).atexit = False
    flat = torch.frombuffer(array, dtype=dtype)
    # A view would be bound to the mode in which it was made: without gradients, say.
    return flat.resize_(shape, memory_format=memory_format)


def release() -> None:
    """Give all idle memory back to the system."""
    _idle.clear()


def _reused(size: int) -> Memory | None:
    """Idle memory that a result of this size nearly fills; the last one used is still in caches."""
    for memory in reversed(list(_idle.values())):
        fits = size <= memory.nbytes <= size * 5 // 4
        if fits and _idle.pop(id(memory), None) is not None:  # else another thread has it
            return memory
    return None


def _fresh(size: int) -> Memory:
    try:
        memory = torch.empty(size, dtype=torch.uint8, device="cpu")
    except RuntimeError:
        release()  # perhaps this is what is missing
        memory = torch.empty(size, dtype=torch.uint8, device="cpu")
    return memory.numpy()


def _keep(memory: Memory) -> None:
    if memory.nbytes > MOST:  # it would only drive out the others
        return
    _idle[id(memory)] = memory
    idle = list(_idle.values())
    total = sum(each.nbytes for each in idle)
    for number, each in enumerate(idle):
        if total <= MOST and len(idle) - number <= PIECES:
            return
        _idle.pop(id(each), None)
        total -= each.nbytes


if hasattr(os, "register_at_fork"):
    # A page shared with the parent would be copied when it is written: dearer than a fresh one.
    os.register_at_fork(after_in_child=release)
