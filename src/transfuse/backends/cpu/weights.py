"""Packed weights, kept while their tensor lives and its values stay the same."""

import ctypes
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from transfuse.backends.cpu import library

MOST = 2**29
"""Bytes kept at the most, packed weights and their originals; the longest unused go first."""

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers to compare elements by: NaN is not equal to itself."""


@dataclass(frozen=True)
class Packed:
    memory: Tensor
    original: Tensor
    careful: bool
    """Whether the weights hold NaN or Inf."""

    @property
    def address(self) -> int:
        return self.memory.data_ptr()

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes + self.original.nbytes


_kept: OrderedDict[tuple[Any, ...], tuple["weakref.ref[Tensor]", Packed]] = OrderedDict()
_lock = Lock()


def packed(core: ctypes.CDLL, program: library.Program, weight: Tensor) -> Packed:
    """The weights as the core reads them, packed anew only if they changed.

    Whether they did is seen by comparing them: fused optimizers, ``.data``, NumPy and views of the
    storage all write to weights without raising a tensor's version.
    """
    # How the core lays them out depends on strides and sizes, too: its size tells.
    layout = (*program.stride, *program.dilation, core.transfuse_packed_bytes(program))
    options = (program.groups, program.weight_scale, core.transfuse_isa(), *layout)
    key = (id(weight), tuple(weight.shape), weight.stride(), weight.dtype, *options)
    bits = weight.detach().view(BITS[weight.element_size()])
    with _lock:
        found = _kept.get(key)
        if found is not None:
            _kept.move_to_end(key)
    if found is not None and found[0]() is weight and torch.equal(bits, found[1].original):
        return found[1]
    fresh = _pack(core, program, weight, bits)
    with _lock:
        for old in [key for key, (alive, _) in _kept.items() if alive() is None]:
            del _kept[old]
        _kept[key] = weakref.ref(weight), fresh
        while len(_kept) > 1 and sum(each.nbytes for _, each in _kept.values()) > MOST:
            _kept.popitem(last=False)
    return fresh


def _pack(core: ctypes.CDLL, program: library.Program, weight: Tensor, bits: Tensor) -> Packed:
    original = bits.clone()
    size = core.transfuse_packed_bytes(program)
    memory = torch.empty(size + 64, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % 64 :][:size]
    ci, co, *taps = original.stride()
    strides = library.Strides(ci, co, *(0,) * (3 - len(taps)), *taps)
    # From the copy: what another thread writes meanwhile does not get between the two.
    library.check(
        core, core.transfuse_pack(program, original.data_ptr(), strides, memory.data_ptr())
    )
    return Packed(memory, original, not bool(original.view(weight.dtype).sum().isfinite()))
