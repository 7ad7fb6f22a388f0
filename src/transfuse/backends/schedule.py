"""Steps on the tensors of a call by name: sweeps and what torch does between them, in turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transfuse.backends.base import Kernels, Run
from transfuse.backends.memory import Memory, touched, whole
from transfuse.reverse.steps import Step, TensorStep
from transfuse.sweeping import Buffer
from transfuse.sweeps import Sweep, View, views

MOST = 256
"""Layouts of tensors that one schedule keeps itself ready for."""


@dataclass(frozen=True)
class _Settled:
    """Steps for tensors that lie in one way, and the parts of scratch memory that they share."""

    runs: tuple[Run, ...]
    places: tuple[tuple[int, int, torch.dtype], ...]
    size: int


class Schedule:
    """Steps in turn over scratch memory of one call; ``between``: its type; ``last``: channels
    innermost there."""

    def __init__(
        self, steps: Sequence[Step], kernels: Kernels, between: torch.dtype, last: bool
    ) -> None:
        self.steps, self.kernels, self.between, self.last = steps, kernels, between, last
        self._settled: dict[object, _Settled] = {}

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory that a call takes."""
        memory = Memory({}, {}, self.between, self.last)
        memory.lay([touched(step) for step in self.steps], [])
        return memory.size

    def __call__(self, tensors: Mapping[str, Tensor]) -> None:
        """Run on these tensors, results among them."""
        given = {name: each.resolve_neg() for name, each in tensors.items()}
        first = next(iter(given.values()))
        # Kernels of the GPU are compiled for addresses that are multiples of 16, or for any.
        alike = ((name, t.stride(), t.dtype, t.data_ptr() & 15 > 0) for name, t in given.items())
        key = (first.device, *alike)
        settled = self._settled.get(key)
        if settled is None:
            if len(self._settled) >= MOST:
                self._settled.clear()
            settled = self._settled[key] = self._settle(given, first.device)
        scratch = self.kernels.empty((settled.size,), torch.uint8, False, first.device)
        parts = (scratch[at : at + size].view(kind) for at, size, kind in settled.places)
        slots = [*given.values(), *parts]
        for run in settled.runs:
            run(slots)

    def _settle(self, given: Mapping[str, Tensor], device: torch.device) -> _Settled:
        memory = Memory(given, {}, self.between, self.last)
        memory.lay([touched(step) for step in self.steps], [])
        runs: list[Run] = []
        waiting: list[Sweep] = []
        for step in self.steps:
            if isinstance(step, TensorStep):
                runs += self.kernels.sweeps(waiting, device)
                runs.append(self._on_tensors(step, memory))
                waiting = []
                continue
            sweep = memory.sweep(step)
            if not memory.apart(slot for each in (*waiting, sweep) for slot in views(each)):
                runs += self.kernels.sweeps(waiting, device)
                waiting = []
            waiting.append(sweep)
        runs += self.kernels.sweeps(waiting, device)
        return _Settled(tuple(runs), tuple(memory.places), memory.size)

    @staticmethod
    def _on_tensors(step: TensorStep, memory: Memory) -> Run:
        outs = [memory.view(seen) for seen in step.writes]
        reads = [(name, seen.buffer, memory.view(seen)) for name, seen in step.reads]

        def run(slots: Sequence[Tensor]) -> None:
            values = {
                # A tensor of the call is itself: what is kept of it is found by that.
                name: slots[view.slot] if buffer.foreign and not buffer.dims else _at(view, slots)
                for name, buffer, view in reads
            }
            step.run([_at(view, slots) for view in outs], values)

        return run


def _at(view: View, slots: Sequence[Tensor]) -> Tensor:
    memory = slots[view.slot]
    return memory.as_strided(view.sizes, view.strides, memory.storage_offset() + view.offset)


def alive(
    steps: Sequence[Step], wanted: Sequence[Buffer], known: Sequence[Buffer] = ()
) -> list[Step]:
    """The steps that it takes to fill the buffers wanted from those known, in their order."""
    needed, filled = {id(whole(buffer)) for buffer in wanted}, {id(each) for each in known}
    found = []
    for step in reversed(steps):
        written, read = touched(step)
        if any(id(whole(buffer)) in needed for buffer in written):
            needed |= {id(whole(buffer)) for buffer in read} - filled
            found.append(step)
    return found[::-1]
