"""Memory for results: large pages, where the system has them for the asking.

A fresh tensor has no memory behind it yet: each page costs a fault when it is first written, and
with pages of 4 KiB the faults of a large result take longer than writing it.
"""

import ctypes
import sys
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

PAGE = 2**21
"""Bytes of a large page, on x86 and most ARM."""

LARGE = 2 * PAGE
"""Results below this are left alone."""

HUGEPAGE = 14
"""``MADV_HUGEPAGE`` of Linux: advice that may be declined."""


def empty(
    shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format | None
) -> Tensor:
    """A tensor to be filled, its large pages asked for."""
    tensor = torch.empty(shape, dtype=dtype, memory_format=memory_format)
    if tensor.nbytes >= LARGE:
        advise = _madvise()
        if advise is not None:
            first, size = within(tensor.data_ptr(), tensor.nbytes)
            advise(first, size, HUGEPAGE)
    return tensor


def within(address: int, size: int) -> tuple[int, int]:
    """The large pages that lie wholly inside ``size`` bytes from ``address``: start and bytes."""
    first = -(-address // PAGE) * PAGE
    return first, max(0, (address + size) // PAGE * PAGE - first)


@lru_cache(maxsize=1)
def _madvise() -> Any:
    """The system's call, if it has one."""
    if not sys.platform.startswith("linux"):
        return None
    call = ctypes.CDLL(None).madvise
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return call
