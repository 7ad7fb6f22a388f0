"""A route made executable: sweeps and the core in turn, over scratch memory of one call."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from transfuse.backends.base import Executable, Kernels, Part, Run, in_parts, settled
from transfuse.backends.memory import INPUT, RESULT, Memory, touched
from transfuse.elements import ELEMENTS
from transfuse.route import Route
from transfuse.stages import Stage
from transfuse.stages.running import write
from transfuse.sweeping import Buffer, Leg, Move

MOST = 256
"""Layouts of tensors that one executable keeps itself ready for."""


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

    def parts(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor
    ) -> Iterator[Part]:
        return in_parts(self.whole, x, weight, operands, out.view(self.values))

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
        y = self.kernels.empty(self.dims, x.dtype, self.last, x.device) if out is None else out
        if y.numel():
            for _ in self._run(x, weight, operands, y, self._at_once):
                continue
        return y

    def parts(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor
    ) -> Iterator[Part]:
        """A call, leg by leg."""
        return self._run(x, weight, operands, out, partial(in_parts, self.core))

    def _at_once(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor
    ) -> Iterator[Part]:
        """The core as one part."""
        self.core(x, weight, operands, out)
        yield Part(0)

    def _run(
        self,
        x: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        y: Tensor,
        core: Callable[..., Iterator[Part]],
    ) -> Iterator[Part]:
        """All legs in turn, parts by their numbers among all passes; ``core`` runs the core."""
        device, passes = x.device, count()
        given = {name: t.resolve_neg() for name, t in operands.items()}
        key = self._key((x, y, *given.values()))
        settled = self.settled.get(key)
        if settled is None:
            if len(self.settled) >= MOST:
                self.settled.clear()
            settled = self.settled[key] = self._settle(x, given, y)
        scratch = self.kernels.empty((settled.size,), torch.uint8, False, device)
        slots = settled.slots((x, *given.values(), y), scratch)
        for run in settled.before:
            run(slots)
            yield Part(next(passes))
        source = settled.tensor(self.before.buffer, slots) if self.before.legs else x
        first = last = next(passes)
        result = settled.tensor(self.result, slots)
        for part in core(source, weight, self._inner(operands), result):
            last = first + part.at
            yield part._replace(at=last)
        passes = count(last + 1)
        for run in settled.after:
            run(slots)
            yield Part(next(passes))
        if self.route.rest:
            values = settled.tensor(self.after.buffer, slots)
            for _ in self._rest(values, operands, y):
                yield Part(next(passes))
        for move in self.moves:
            found = (settled.tensor(each, slots) for each in (move.mean, move.var))
            move.write(operands, *found)

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

    def _rest(self, values: Tensor, operands: Mapping[str, Tensor], y: Tensor) -> Iterator[Stage]:
        """The stages that only torch has, in the compute type, one after another."""
        wide = self.element.compute
        env = {k: v.to(torch.promote_types(v.dtype, wide)) for k, v in operands.items()}
        values = values.to(wide)
        updated: dict[str, Tensor] = {}
        for stage in self.route.rest:
            values = stage.apply(values, env)
            updated.update((name, env[name]) for name in stage.updates)
            if stage is self.route.rest[-1]:
                y.copy_(values)
            yield stage
        write(operands, updated)

    def _settle(self, x: Tensor, given: Mapping[str, Tensor], y: Tensor) -> _Settled:
        """Slots, strides and kernels for tensors that lie as these do."""
        problem = self.route.problem
        memory = Memory(
            {INPUT: x, **given, RESULT: y},
            {id(self.before.buffer): self.kernels.source(problem)},
            self.kernels.between(problem),
            self.last,
        )
        legs: list[Leg | None] = [*self.before.legs, None, *self.after.legs]
        if not self.route.rest:  # or torch has the last word, and the sweeps a buffer of their own
            memory.known[id(self.after.buffer)] = memory.given[RESULT]
        convolves = [self.result], [self.before.buffer]
        kept = [self.after.buffer, *(b for move in self.moves for b in (move.mean, move.var))]
        memory.lay([convolves if leg is None else touched(leg) for leg in legs], kept)
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
        self.legs, self.known = legs, known
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
        legs, known, empty = self.legs, self.known, self.legs.kernels.empty
        y = empty(legs.dims, x.dtype, legs.last, x.device) if out is None else out
        given = (x, *operands.values(), y)
        if _unaligned(given) != self.aligned:
            return legs(x, weight, operands, y)
        scratch = empty((known.size,), torch.uint8, False, x.device)
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
