"""Packed weights, kept while their tensor lives and does not change."""

import ctypes
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from transfuse.backends.cpu import library

MOST = 2**28
"""Bytes of packed weights kept at the most; the longest unused go first."""


@dataclass(frozen=True)
class Packed:
    memory: Tensor
    careful: bool
    """Whether the weights hold NaN or Inf."""

    @property
    def address(self) -> int:
        return self.memory.data_ptr()


_kept: OrderedDict[tuple[Any, ...], tuple["weakref.ref[Tensor]", Packed]] = OrderedDict()
_lock = Lock()


def packed(core: ctypes.CDLL, program: library.Program, weight: Tensor) -> Packed:
    """The weights as the core reads them, packed anew only if they may have changed.

    A tensor made under inference_mode has no version, so its weights are packed at each call; a
    change through ``.data`` is one that torch does not count either.
    """
    if weight.is_inference():
        return _pack(core, program, weight)
    layout = (weight.data_ptr(), weight.stride(), tuple(weight.shape), weight.dtype)
    options = (program.groups, program.weight_scale, core.transfuse_isa())
    key = (id(weight), weight._version, *layout, *options)
    with _lock:
        found = _kept.get(key)
        if found is not None and found[0]() is weight:
            _kept.move_to_end(key)
            return found[1]
    fresh = _pack(core, program, weight)
    with _lock:
        for old in [k for k, (ref, _) in _kept.items() if ref() is None or k[0] == id(weight)]:
            if old[1] != weight._version or _kept[old][0]() is None:
                del _kept[old]
        _kept[key] = weakref.ref(weight), fresh
        while sum(each.memory.nbytes for _, each in _kept.values()) > MOST and len(_kept) > 1:
            _kept.popitem(last=False)
    return fresh


def _pack(core: ctypes.CDLL, program: library.Program, weight: Tensor) -> Packed:
    size = core.transfuse_packed_bytes(program)
    memory = torch.empty(size + 64, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % 64 :][:size]
    ci, co, *taps = weight.stride()
    strides = library.Strides(ci, co, *(0,) * (3 - len(taps)), *taps)
    library.check(core, core.transfuse_pack(program, weight.data_ptr(), strides, memory.data_ptr()))
    return Packed(memory, not bool(weight.sum().isfinite()))
