"""Packed weights, kept while their tensor lives and its values stay the same."""

import ctypes
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from transfuse.backends.cpu import library

MOST = 2**29
"""Bytes kept at the most; the longest unused go first."""


@dataclass(frozen=True)
class Packed:
    memory: Tensor
    digest: tuple[int, int]
    """Of the weights it was made from."""
    careful: bool
    """Whether the weights hold NaN or Inf."""

    @property
    def address(self) -> int:
        return self.memory.data_ptr()

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes


_kept: OrderedDict[tuple[Any, ...], tuple["weakref.ref[Tensor]", Packed]] = OrderedDict()
_lock = Lock()


def packed(core: ctypes.CDLL, program: library.Program, weight: Tensor, threads: int) -> Packed:
    """The weights as the core reads them, packed anew only if they changed.

    Whether they did is seen by reading them: fused optimizers, ``.data``, NumPy and views of the
    storage all write to weights without raising a tensor's version.
    """
    # How the core lays them out depends on strides and sizes, too: its size tells.
    layout = (*program.stride, *program.dilation, core.transfuse_packed_bytes(program))
    options = (program.groups, program.weight_scale, core.transfuse_isa(), *layout)
    key = (id(weight), tuple(weight.shape), weight.stride(), weight.dtype, *options)
    with _lock:
        found = _kept.get(key)
        if found is not None:
            _kept.move_to_end(key)
    if found is not None and found[0]() is weight:
        dense = weight if _dense(weight.shape, weight.stride()) else weight.contiguous()
        if digest(core, dense, threads) == found[1].digest:
            return found[1]
    fresh = _pack(core, program, weight, threads)
    with _lock:
        for old in [key for key, (alive, _) in _kept.items() if alive() is None]:
            del _kept[old]
        _kept[key] = weakref.ref(weight), fresh
        while len(_kept) > 1 and sum(each.nbytes for _, each in _kept.values()) > MOST:
            _kept.popitem(last=False)
    return fresh


def digest(core: ctypes.CDLL, dense: Tensor, threads: int) -> tuple[int, int]:
    """128 bits of a tensor's bytes, in the order of its memory."""
    found = library.Digest()
    status = core.transfuse_digest(dense.data_ptr(), dense.nbytes, threads, found)
    library.check(core, status)
    return found[0], found[1]


@lru_cache(maxsize=4096)
def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements lie side by side, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _pack(core: ctypes.CDLL, program: library.Program, weight: Tensor, threads: int) -> Packed:
    # A copy, for digest and packing alike: another thread may write to the weights meanwhile.
    original = weight.detach().clone()
    if not _dense(weight.shape, weight.stride()):
        original = original.contiguous()
    careful = not bool(original.sum().isfinite())
    return Packed(pack(core, program, original), digest(core, original, threads), careful)


def pack(core: ctypes.CDLL, program: library.Program, weight: Tensor) -> Tensor:
    """Weights in memory of their own, as the core reads them."""
    size = core.transfuse_packed_bytes(program)
    memory = torch.empty(size + 64, dtype=torch.uint8, device="cpu")
    memory = memory[-memory.data_ptr() % 64 :][:size]
    ci, co, *taps = weight.stride()
    strides = library.Strides(ci, co, *(0,) * (3 - len(taps)), *taps)
    status = core.transfuse_pack(program, weight.data_ptr(), strides, memory.data_ptr())
    library.check(core, status)
    return memory
