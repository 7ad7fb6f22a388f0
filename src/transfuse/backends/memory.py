"""Where buffers lie: the tensors of a call, and scratch memory that steps share."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from transfuse.reverse.steps import Step
from transfuse.sweeping import Buffer, Leg, Seen
from transfuse.sweeps import Sweep, View

ALIGN = 64
"""Bytes: where buffers begin in scratch memory."""
INPUT, RESULT = "", "="
"""What the input and the result of a call are called among its tensors; no operand is."""

Touched = tuple[Sequence[Buffer], Sequence[Buffer]]
"""The buffers that a step writes and those that it reads."""


def touched(step: Step) -> Touched:
    """Those of a sweep or task."""
    return [seen.buffer for seen in step.writes], [seen.buffer for _, seen in step.reads]


class Memory:
    """Where each buffer of some steps lies, and how.

    Slots are the ``tensors`` of the call by name, in their order, and scratch memory. ``types``:
    those of buffers that are not stored in the type ``between`` steps. ``last``: channels
    innermost.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        types: Mapping[int, torch.dtype],
        between: torch.dtype,
        last: bool,
    ) -> None:
        self.types, self.between, self.last = types, between, last
        self.given = {name: (at, _likeness(t)) for at, (name, t) in enumerate(tensors.items())}
        self.known: dict[int, tuple[int, Tensor]] = {}  # slot and likeness of a buffer
        self.places: list[tuple[int, int, torch.dtype]] = []
        self.size = 0

    def lay(self, steps: Sequence[Touched], kept: Sequence[Buffer]) -> None:
        """A place for every buffer, used again once its last reader is through.

        Those ``kept`` are read after all steps.
        """
        begins: dict[int, int] = {}
        ends: dict[int, int] = {}
        buffers: dict[int, Buffer] = {}
        for at, (written, read) in enumerate(steps):
            for buffer in map(whole, (*written, *read)):
                buffers[id(buffer)] = buffer
                begins.setdefault(id(buffer), at)
                ends[id(buffer)] = at
        for each in map(whole, kept):
            ends[id(each)] = len(steps)
        taken: list[tuple[int, int, int, int]] = []  # first byte, end, first step, last step
        for key, buffer in buffers.items():
            if buffer.foreign or key in self.known:
                continue
            dtype = self.types.get(key, self.between)
            like = _dense(buffer, dtype, self.last)
            size = -(-prod(buffer.dims) * dtype.itemsize // ALIGN) * ALIGN
            at = 0
            for begin, until, first, last in sorted(taken):
                apart = ends[key] < first or last < begins[key]
                if not apart and begin < at + size and at < until:
                    at = until
            taken.append((at, at + size, begins[key], ends[key]))
            self.known[key] = len(self.given) + len(self.places), like
            self.places.append((at, size, dtype))
            self.size = max(self.size, at + size)

    def apart(self, slots: Iterable[int]) -> bool:
        """Whether no two of these slots share scratch memory."""
        first = len(self.given)
        found = sorted(self.places[each - first][:2] for each in {*slots} if each >= first)
        return all(at + size <= after for (at, size), (after, _) in pairwise(found))

    def sweep(self, leg: Leg) -> Sweep:
        outs = tuple(map(self.view, leg.writes))
        return leg.make(outs, {name: self.view(seen) for name, seen in leg.reads})

    def view(self, seen: Seen) -> View:
        slot, like = self.of(seen.buffer)
        found = seen.look(like)
        return View(
            slot, like.dtype, tuple(found.shape), tuple(found.stride()), int(found.storage_offset())
        )

    def of(self, buffer: Buffer) -> tuple[int, Tensor]:
        if buffer.foreign:
            return self.given[INPUT if buffer.input else buffer.given]
        if id(buffer) not in self.known and buffer.part_of is not None:
            whole, first = buffer.part_of
            slot, like = self.of(whole)
            self.known[id(buffer)] = slot, like.narrow(1, first, buffer.dims[1])
        return self.known[id(buffer)]


def _likeness(tensor: Tensor) -> Tensor:
    """A tensor that lies in the same way, without memory."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def whole(buffer: Buffer) -> Buffer:
    """The buffer that one is a part of."""
    while buffer.part_of is not None:
        buffer = buffer.part_of[0]
    return buffer


def _dense(buffer: Buffer, dtype: torch.dtype, last: bool) -> Tensor:
    form = memory_format(buffer.dims, last and not buffer.statistic)
    return torch.empty(buffer.dims, dtype=dtype, device="meta", memory_format=form)


def memory_format(dims: Sequence[int], last: bool) -> torch.memory_format:
    """Channels innermost where ``last`` and torch has a name for it."""
    known = {4: torch.channels_last, 5: torch.channels_last_3d}
    return known.get(len(dims) if last else 0, torch.contiguous_format)


def laid(tensor: Tensor, last: bool) -> Tensor:
    """The tensor in torch's form of memory, with the very strides that it has there.

    Along an axis of one any stride is as good, and ``contiguous`` leaves what there is, as after
    ``reshape``. Torch 2.13 reads it nevertheless in convolutions of float64: gradients by weights
    are wrong then, or it raises.
    """
    form = memory_format(tensor.shape, last)
    dense = tensor.contiguous(memory_format=form)
    if 1 not in dense.shape:
        return dense
    like = torch.empty(dense.shape, dtype=dense.dtype, device="meta", memory_format=form)
    return dense.as_strided(dense.shape, like.stride())
