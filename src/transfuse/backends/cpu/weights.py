"""Packed weights, kept while their memory lives and its values stay the same."""

import ctypes
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from transfuse.backends.cpu import library

MOST = 2**29
"""Bytes kept at the most; the longest unused go first."""
PACKS = 4096
"""Packs kept at the most, so that looking through them takes no time."""
Key = tuple[int, object]
"""The address of weights, and how they are read: what ``layout`` gives."""


class Packed:
    """Weights as the core reads them.

    ``digest``: of the weights they were made from; ``careful``: whether these hold NaN or Inf;
    ``source``: their memory. Not their tensor: torch swaps and converts none that is referred to.
    """

    def __init__(
        self,
        key: Key,
        memory: Tensor,
        digest: tuple[int, int],
        careful: bool,
        source: UntypedStorage,
    ) -> None:
        self.key, self.memory, self.digest, self.careful = key, memory, digest, careful
        self.source = weakref.ref(source)
        # What each call needs of them, at hand.
        self.address, self.nbytes = memory.data_ptr(), memory.nbytes
        self._digest = library.Digest(*digest)
        self.digest_address = ctypes.addressof(self._digest)


_kept: OrderedDict[Key, Packed] = OrderedDict()
"""The longest unused first. What lies at an address may have changed: the digest tells.

No lock: a call may come from the collector or a signal's handler amid these very lines. Each step
on the dictionary is atomic instead.
"""


def layout(core: ctypes.CDLL, program: library.Program, weight: Tensor) -> object:
    """How a program reads weights: the same object for the same way."""
    # How the core lays them out depends on strides and sizes, too: its size tells.
    sizes = (*program.stride, *program.dilation, core.transfuse_packed_bytes(program))
    options = (program.groups, program.weight_scale, core.transfuse_isa(), *sizes)
    return _layout((tuple(weight.shape), weight.stride(), weight.dtype, *options))


@lru_cache(maxsize=4096)
def _layout(options: tuple[Any, ...]) -> object:
    return object()


def kept(key: Key) -> Packed | None:
    """What was packed from an address; whether it still holds, the digest tells."""
    found = _kept.get(key)
    if found is not None:
        try:  # noqa: SIM105 `suppress` takes longer than the rest
            _kept.move_to_end(key)
        except KeyError:  # another thread has let go of it
            pass
    return found


def packed(core: ctypes.CDLL, program: library.Program, weight: Tensor, threads: int) -> Packed:
    """The weights as the core reads them, packed anew only if they changed.

    Whether they did is seen by reading them: fused optimizers, ``.data``, NumPy and views of the
    storage all write to weights without raising a tensor's version.
    """
    key = weight.data_ptr(), layout(core, program, weight)
    whole = weight if dense(weight) else weight.contiguous()
    now, found = digest(core, whole, threads), kept(key)
    if found is not None and now == found.digest:
        return found
    fresh = _pack(key, core, program, weight.detach(), threads, now)
    _kept.pop(key, None)
    _kept[key] = fresh
    _bounded()
    return fresh


def _bounded() -> None:
    """Let go of packs whose weights are gone, then of the longest unused, down to the limits."""
    alive = []
    for each in list(_kept.values()):
        if each.source() is None:
            _kept.pop(each.key, None)
        else:
            alive.append(each)
    total = sum(each.nbytes for each in alive)
    for number, each in enumerate(alive[:-1]):
        if total <= MOST and len(alive) - number <= PACKS:
            return
        _kept.pop(each.key, None)
        total -= each.nbytes


def digest(core: ctypes.CDLL, dense: Tensor, threads: int) -> tuple[int, int]:
    """128 bits of a tensor's bytes, in the order of its memory."""
    found = library.Digest()
    status = core.transfuse_digest(dense.data_ptr(), dense.nbytes, threads, found)
    library.check(core, status)
    return found[0], found[1]


def dense(weight: Tensor) -> bool:
    """Whether elements lie side by side, in whatever order."""
    return _dense(tuple(weight.shape), weight.stride())


@lru_cache(maxsize=4096)
def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _pack(
    key: Key,
    core: ctypes.CDLL,
    program: library.Program,
    weight: Tensor,
    threads: int,
    digested: tuple[int, int],
) -> Packed:
    """``digested``: of the weights as they were just now."""
    whole = weight if dense(weight) else weight.contiguous()
    memory, finite = pack(core, program, whole, _used_room), library.finite(core, whole)
    if digest(core, whole, threads) != digested:
        # Another thread writes to them meanwhile: a copy, for digest and packing alike.
        whole = whole.clone()
        memory, finite = pack(core, program, whole), library.finite(core, whole)
        digested = digest(core, whole, threads)
    return Packed(key, memory, digested, not finite, weight.untyped_storage())


def _room(size: int) -> Tensor:
    """So many bytes, aligned to lines of the caches."""
    memory = torch.empty(size + 64, dtype=torch.uint8, device="cpu")
    return memory[-memory.data_ptr() % 64 :][:size]


def _used_room(size: int) -> Tensor:
    """That of a pack whose weights are gone, if there is one: no call reads it any more.

    Weights that are computed for each call, as by ``weight_norm``, find its pages there.
    """
    for each in list(_kept.values()):
        if each.nbytes == size and each.source() is None and _kept.pop(each.key, None) is each:
            return each.memory
    return _room(size)


def pack(
    core: ctypes.CDLL,
    program: library.Program,
    weight: Tensor,
    room: Callable[[int], Tensor] = _room,
) -> Tensor:
    """Weights in memory of their own, as the core reads them."""
    memory = room(core.transfuse_packed_bytes(program))
    ci, co, *taps = weight.stride()
    strides = library.Strides(ci, co, *(0,) * (3 - len(taps)), *taps)
    status = core.transfuse_pack(program, weight.data_ptr(), strides, memory.data_ptr())
    library.check(core, status)
    return memory
