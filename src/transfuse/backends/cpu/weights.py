"""Packed weights, kept by their values: while their memory lives, and some for longer.

Weights that are computed for each call, as by ``weight_norm``, are the same values every time as
long as nobody trains: the pack of the last call serves, wherever they lie now.
"""

import ctypes
import weakref
from functools import lru_cache
from itertools import count
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from transfuse.backends.cpu import library

MOST = 2**29
"""Bytes kept at the most; the longest unused go first."""
GONE = 2**26
"""Bytes kept at the most of packs whose weights are gone; enough for a vocoder's."""
PACKS = 4096
"""Packs kept at the most, so that looking through them takes no time."""
Digested = tuple[int, int]
Place = tuple[int, object]
"""The address of weights, and how they are read: what ``layout`` gives."""
Content = tuple[Digested, object]
"""The digest of weights, and how they are read."""


class Packed:
    """Weights as the core reads them.

    ``content``: of the weights they were made from; ``careful``: whether these hold NaN or Inf;
    ``source``: the memory in which they were last found. Not their tensor: torch swaps and converts
    none that is referred to. ``used``: when a call last asked for them, in asks counted.
    """

    def __init__(
        self, content: Content, memory: Tensor, careful: bool, source: UntypedStorage
    ) -> None:
        self.content, self.memory, self.careful = content, memory, careful
        self.source, self.used = weakref.ref(source), next(_asks)
        # What each call needs of them, at hand.
        self.address, self.nbytes = memory.data_ptr(), memory.nbytes
        self._digest = library.Digest(*content[0])
        self.digest_address = ctypes.addressof(self._digest)


_asks = count()
_kept: dict[Content, Packed] = {}
"""Packs by the values they were made from.

No lock: a call may come from the collector or a signal's handler amid these very lines. Each step
on the dictionary is atomic instead, and a call refers to the pack it reads, whoever lets go of it.
A plain one: an ``OrderedDict`` that replaces a pack frees the old one before it has linked the new,
and freeing memory of torch lets another thread in.
"""
_places: dict[Place, Content] = {}
"""What was last found at an address. It may have changed: the digest tells."""


def layout(core: ctypes.CDLL, program: library.Program, weight: Tensor) -> object:
    """How a program reads weights: the same object for the same way."""
    # How the core lays them out depends on strides and sizes, too: its size tells.
    sizes = (*program.stride, *program.dilation, core.transfuse_packed_bytes(program))
    options = (program.groups, program.weight_scale, core.transfuse_isa(), *sizes)
    return _layout((tuple(weight.shape), weight.stride(), weight.dtype, *options))


@lru_cache(maxsize=4096)
def _layout(options: tuple[Any, ...]) -> object:
    return object()


def kept(place: Place) -> Packed | None:
    """What was packed from an address; whether it still holds, the digest tells."""
    found = _kept.get(_places.get(place))  # type: ignore[arg-type]  # None: nothing is
    if found is not None:
        found.used = next(_asks)
    return found


def packed(core: ctypes.CDLL, program: library.Program, weight: Tensor, threads: int) -> Packed:
    """The weights as the core reads them, packed anew only if there is no pack of their values.

    Which these are is seen by reading them: fused optimizers, ``.data``, NumPy and views of the
    storage all write to weights without raising a tensor's version.
    """
    place = weight.data_ptr(), layout(core, program, weight)
    whole = weight if dense(weight) else weight.contiguous()
    storage, last = weight.untyped_storage(), _places.get(place)
    content = digest(core, whole, threads), place[1]
    _places[place] = content
    found = kept(place)
    if found is None:
        found = _pack(content, core, program, weight.detach(), threads)
        _kept[found.content], _places[place] = found, found.content
        _bounded()
    elif found.source() is not storage:
        found.source = weakref.ref(storage)
    if last is not None and last != found.content:
        written = _kept.get(last)
        if written is not None and written.source() is storage:  # over: no call will ask for it
            _kept.pop(last, None)
    if len(_places) >= 4 * PACKS:  # weights that are computed for each call may lie anywhere
        _places.clear()
    return found


def _bounded() -> None:
    """Let go of the longest unused, down to the limits; the last one stays."""
    _drop([each for each in _by_use() if each.source() is None], GONE, PACKS)
    every = _by_use()  # none, where another thread has let go of all
    _drop(every[:-1], MOST - sum(each.nbytes for each in every[-1:]), PACKS - 1)


def _by_use() -> list[Packed]:
    """The longest unused first."""
    return sorted(list(_kept.values()), key=lambda each: each.used)  # noqa: C414 atomic


def _drop(packs: list[Packed], most: int, count: int) -> None:
    """Of these let go of the first, until the others are so few."""
    total = sum(each.nbytes for each in packs)
    for number, each in enumerate(packs):
        if total <= most and len(packs) - number <= count:
            return
        _kept.pop(each.content, None)
        total -= each.nbytes


def digest(core: ctypes.CDLL, dense: Tensor, threads: int) -> Digested:
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
    content: Content, core: ctypes.CDLL, program: library.Program, weight: Tensor, threads: int
) -> Packed:
    """``content``: of the weights as they were just now."""
    whole = weight if dense(weight) else weight.contiguous()
    memory, finite = pack(core, program, whole, threads), library.finite(core, whole)
    if digest(core, whole, threads) != content[0]:
        # Another thread writes to them meanwhile: a copy, for digest and packing alike.
        whole = whole.clone()
        memory, finite = pack(core, program, whole, threads), library.finite(core, whole)
        content = digest(core, whole, threads), content[1]
    return Packed(content, memory, not finite, weight.untyped_storage())


def _room(size: int) -> Tensor:
    """So many bytes, aligned to lines of the caches."""
    memory = torch.empty(size + 64, dtype=torch.uint8, device="cpu")
    return memory[-memory.data_ptr() % 64 :][:size]


def pack(core: ctypes.CDLL, program: library.Program, weight: Tensor, threads: int) -> Tensor:
    """Weights in memory of their own, as the core reads them."""
    memory = _room(core.transfuse_packed_bytes(program))
    ci, co, *taps = weight.stride()
    strides = library.Strides(ci, co, *(0,) * (3 - len(taps)), *taps)
    status = core.transfuse_pack(program, weight.data_ptr(), strides, threads, memory.data_ptr())
    library.check(core, status)
    return memory
