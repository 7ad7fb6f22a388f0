"""A route made executable: sweeps and the core in turn, over scratch memory of one call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from transfuse.backends.base import Executable, settled
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem
from transfuse.route import Route
from transfuse.stages.running import write
from transfuse.sweeping import Buffer, Leg, Move, Seen
from transfuse.sweeps import Sweep, View

ALIGN = 64
"""Bytes: where buffers begin in scratch memory."""
MOST = 256
"""Layouts of tensors that one executable keeps itself ready for."""

Run = Callable[[Sequence[Tensor]], None]


class Kernels(Protocol):
    """What a backend brings for its legs."""

    def core(self, chain: Chain, problem: Problem) -> Executable:
        """The convolution with the stages around it that its kernel holds."""
        ...

    def sweep(self, sweep: Sweep, device: torch.device) -> Run:
        """A sweep made ready to run on tensors, by the slots of its views."""
        ...

    def by_address(self, device: torch.device) -> bool:
        """Whether a sweep that ran once asks no more of tensors than where they lie."""
        ...

    def source(self, problem: Problem) -> torch.dtype:
        """The type in which the core reads what sweeps before it made."""
        ...

    def between(self, problem: Problem) -> torch.dtype:
        """The type in which values are stored between two legs."""
        ...

    def empty(
        self, dims: Sequence[int], dtype: torch.dtype, last: bool, device: torch.device
    ) -> Tensor:
        """Memory for a result, channels innermost where ``last``, or for scratch."""
        ...


def executable(route: Route, kernels: Kernels) -> Executable:
    """The legs of a route as one executable; the core's own where that is all."""
    core = kernels.core(route.core, route.inner)
    whole = core if route.alone else _Legs(route, kernels, core)
    values = route.chain.shapes(route.problem)[-1].dims
    form = route.chain.result(route.problem)
    return whole if values == form else _Formed(whole, kernels, values, form)


@dataclass(frozen=True)
class _Formed:
    """A result of other axes than its values have: some left out, some joined.

    Such axes can always be seen again, whatever the strides.
    """

    whole: Executable
    kernels: Kernels
    values: tuple[int, ...]
    form: tuple[int, ...]

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        y = self.kernels.empty(self.form, x.dtype, False, x.device) if out is None else out
        self.whole(x, weight, operands, y.view(self.values))
        return y

    def like(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None
    ) -> Executable:
        y = self.kernels.empty(self.form, x.dtype, False, x.device) if out is None else out
        whole = settled(self.whole, x, weight, operands, y.view(self.values))
        return _Formed(whole, self.kernels, self.values, self.form)


@dataclass(frozen=True)
class _Settled:
    """Legs for tensors that lie in one way: what runs in turn, on which memory.

    Slots are the tensors given, by name, then the result, then scratch memory. ``places``: begin,
    bytes and type of each part of it; ``tensors``: dims and strides of buffers that torch sees.
    """

    before: tuple[Run, ...]
    after: tuple[Run, ...]
    places: tuple[tuple[int, int, torch.dtype], ...]
    size: int
    tensors: Mapping[int, tuple[int, Tensor]]

    def tensor(self, buffer: Buffer, slots: Sequence[Tensor]) -> Tensor:
        """A buffer as a tensor."""
        slot, like = self.tensors[id(buffer)]
        at = slots[slot]
        return at.as_strided(like.shape, like.stride(), at.storage_offset() + like.storage_offset())

    def slots(self, given: Sequence[Tensor], scratch: Tensor) -> list[Tensor]:
        """The tensors of all slots."""
        parts = (scratch[at : at + size].view(kind) for at, size, kind in self.places)
        return [*given, *parts]


class _Part:
    """A part of scratch memory, as far as a sweep that ran before looks at it."""

    __slots__ = ("address",)

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


class _Legs:
    """Sweeps, core, sweeps and torch's rest on tensors that lie in any way."""

    def __init__(self, route: Route, kernels: Kernels, core: Executable) -> None:
        self.route, self.kernels, self.core = route, kernels, core
        self.before, self.result, self.after = route.sweeps()
        problem = route.problem
        self.element = ELEMENTS[problem.dtype]
        self.last = problem.layout == "channels_last"
        self.inner_names = {name for stage in route.core.stages for name in stage.operands}
        self.moves: list[Move] = [*self.before.moves, *self.after.moves]
        self.settled: dict[object, _Settled] = {}
        self.dims = route.chain.shapes(problem)[-1].dims

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        if x.is_neg() or (out is not None and out.is_neg()):
            y = self(x.resolve_neg(), weight, operands)
            return y if out is None else out.copy_(y)
        device, dtype = x.device, x.dtype
        y = self.kernels.empty(self.dims, dtype, self.last, device) if out is None else out
        if not y.numel():
            return y
        given = {name: t.resolve_neg() for name, t in operands.items()}
        key = self._key((x, y, *given.values()))
        settled = self.settled.get(key)
        if settled is None:
            if len(self.settled) >= MOST:
                self.settled.clear()
            settled = self.settled[key] = self._settle(x, given, y)
        scratch = torch.empty(settled.size, dtype=torch.uint8, device=device)
        slots = settled.slots((x, *given.values(), y), scratch)
        for run in settled.before:
            run(slots)
        source = settled.tensor(self.before.buffer, slots) if self.before.legs else x
        self.core(source, weight, self._inner(operands), settled.tensor(self.result, slots))
        for run in settled.after:
            run(slots)
        if self.route.rest:
            self._rest(settled.tensor(self.after.buffer, slots), operands, y)
        for move in self.moves:
            self._move(move, settled, slots, operands)
        return y

    def _inner(self, operands: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Those of the core."""
        return {name: operands[name] for name in operands if name in self.inner_names}

    def like(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None
    ) -> Executable:
        """What runs again on tensors that lie so; this itself where more than sweeps follow."""
        y = self.kernels.empty(self.dims, x.dtype, self.last, x.device) if out is None else out
        tensors = (x, y, *operands.values())
        if self.route.rest or self.moves or any(each.is_neg() for each in tensors):
            return self
        known = self.settled.get(self._key(tensors))
        if known is None or not y.numel() or not self.kernels.by_address(x.device):
            return self
        return _Again(self, known, x, weight, operands, y)

    @staticmethod
    def _key(tensors: Sequence[Tensor]) -> tuple[object, ...]:
        # Kernels of the GPU are compiled for addresses that are multiples of 16, or for any.
        alike = ((t.stride(), t.dtype, t.data_ptr() & 15 > 0) for t in tensors)
        return (tensors[0].device, *alike)

    def _rest(self, values: Tensor, operands: Mapping[str, Tensor], y: Tensor) -> None:
        """The stages that only torch has, in the compute type."""
        wide = self.element.compute
        env = {k: v.to(torch.promote_types(v.dtype, wide)) for k, v in operands.items()}
        values = values.to(wide)
        updated: dict[str, Tensor] = {}
        for stage in self.route.rest:
            values = stage.apply(values, env)
            updated.update((name, env[name]) for name in stage.updates)
        y.copy_(values)
        write(operands, updated)

    def _move(
        self, move: Move, settled: _Settled, slots: Sequence[Tensor], operands: Mapping[str, Tensor]
    ) -> None:
        # Of statistics by sample the mean over samples counts, as in torch's instance norm.
        found = (settled.tensor(each, slots).double() for each in (move.mean, move.var))
        mean, var = (each.reshape(each.shape[0], -1).mean(0) for each in found)
        write(operands, move.running.moved(operands, mean, var, move.count))

    def _settle(self, x: Tensor, given: Mapping[str, Tensor], y: Tensor) -> _Settled:
        """Slots, strides and kernels for tensors that lie as these do."""
        problem = self.route.problem
        memory = _Memory(
            _likeness(x),
            {name: _likeness(each) for name, each in given.items()},
            {id(self.before.buffer): self.kernels.source(problem)},
            self.kernels.between(problem),
            self.last,
        )
        legs: list[Leg | None] = [*self.before.legs, None, *self.after.legs]
        if not self.route.rest:  # or torch has the last word, and the sweeps a buffer of their own
            memory.known[id(self.after.buffer)] = memory.out, _likeness(y)
        kept = {id(b) for move in self.moves for b in (move.mean, move.var)}
        memory.lay(legs, self.before.buffer, self.result, self.after.buffer, kept)
        for buffer in (self.before.buffer, self.result, self.after.buffer):
            memory.of(buffer)
        runs = [
            None if leg is None else self.kernels.sweep(memory.sweep(leg), x.device) for leg in legs
        ]
        core = runs.index(None)
        return _Settled(
            tuple(run for run in runs[:core] if run),
            tuple(run for run in runs[core + 1 :] if run),
            tuple(memory.places),
            memory.size,
            memory.known,
        )


class _Again:
    """Sweeps, core and sweeps on tensors that lie as earlier ones did, at like addresses."""

    def __init__(
        self,
        legs: _Legs,
        known: _Settled,
        x: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        y: Tensor,
    ) -> None:
        self.legs, self.known, self.y = legs, known, (tuple(y.shape), y.stride())
        self.aligned = _unaligned((x, *operands.values(), y))
        self.starts = [at for at, _, _ in known.places]
        scratch = torch.empty(known.size, dtype=torch.uint8, device=x.device)
        slots = known.slots((x, *operands.values(), y), scratch)
        source = known.tensor(legs.before.buffer, slots) if legs.before.legs else x
        result = known.tensor(legs.result, slots)
        self.core = settled(legs.core, source, weight, legs._inner(operands), result)

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        y = x.new_empty_strided(*self.y) if out is None else out
        given = (x, *operands.values(), y)
        legs, known = self.legs, self.known
        if _unaligned(given) != self.aligned:
            return legs(x, weight, operands, y)
        scratch = x.new_empty(known.size, dtype=torch.uint8)
        base = scratch.data_ptr()
        slots: list[Any] = [*given, *[_Part(base + at) for at in self.starts]]
        for run in known.before:
            run(slots)
        source = self._tensor(legs.before.buffer, given, scratch) if legs.before.legs else x
        result = self._tensor(legs.result, given, scratch)
        self.core(source, weight, legs._inner(operands), result)
        for run in known.after:
            run(slots)
        return y

    def _tensor(self, buffer: Buffer, given: Sequence[Tensor], scratch: Tensor) -> Tensor:
        """A buffer as a tensor."""
        slot, like = self.known.tensors[id(buffer)]
        if slot < len(given):
            at = given[slot]
            first = at.storage_offset()
        else:
            begin, _, kind = self.known.places[slot - len(given)]
            at, first = scratch.view(kind), begin // kind.itemsize
        return at.as_strided(like.shape, like.stride(), first + like.storage_offset())


def _unaligned(tensors: Sequence[Tensor]) -> int:
    """Which addresses are no multiples of 16, a bit for each."""
    found = 0
    for tensor in tensors:
        found += found + (tensor.data_ptr() & 15 > 0)
    return found


class _Memory:
    """Where each buffer of some legs lies, and how.

    Slots are the input, the tensors ``given``, the result, ``out``, and scratch memory. ``types``:
    those of buffers that are not stored in the type ``between`` legs. ``last``: channels innermost.
    """

    def __init__(
        self,
        x: Tensor,
        given: Mapping[str, Tensor],
        types: Mapping[int, torch.dtype],
        between: torch.dtype,
        last: bool,
    ) -> None:
        self.x, self.given = x, given
        self.types, self.between, self.last = types, between, last
        self.names, self.out = [*given], 1 + len(given)
        self.known: dict[int, tuple[int, Tensor]] = {}  # slot and likeness of a buffer
        self.places: list[tuple[int, int, torch.dtype]] = []
        self.size = 0

    def lay(
        self,
        legs: Sequence[Leg | None],
        source: Buffer,
        result: Buffer,
        end: Buffer,
        kept: set[int],
    ) -> None:
        """A place for every buffer, used again once its last reader is through.

        The leg that is None is the core: it reads ``source`` and writes ``result``.
        """
        begins: dict[int, int] = {}
        ends: dict[int, int] = {}
        buffers: dict[int, Buffer] = {}
        for at, leg in enumerate(legs):
            written = [result] if leg is None else [seen.buffer for seen in leg.writes]
            read = [source] if leg is None else [seen.buffer for _, seen in leg.reads]
            for buffer in map(_whole, (*written, *read)):
                buffers[id(buffer)] = buffer
                begins.setdefault(id(buffer), at)
                ends[id(buffer)] = at
        for each in (_whole(end), *(b for b in buffers.values() if id(b) in kept)):
            ends[id(each)] = len(legs)
        taken: list[tuple[int, int, int, int]] = []  # first byte, end, first leg, last leg
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
            self.known[key] = self.out + 1 + len(self.places), like
            self.places.append((at, size, dtype))
            self.size = max(self.size, at + size)

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
        if buffer.input:
            return 0, self.x
        if buffer.given:
            return 1 + self.names.index(buffer.given), self.given[buffer.given]
        if id(buffer) not in self.known and buffer.part_of is not None:
            whole, first = buffer.part_of
            slot, like = self.of(whole)
            self.known[id(buffer)] = slot, like.narrow(1, first, buffer.dims[1])
        return self.known[id(buffer)]


def _likeness(tensor: Tensor) -> Tensor:
    """A tensor that lies in the same way, without memory."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _whole(buffer: Buffer) -> Buffer:
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
