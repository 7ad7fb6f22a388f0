"""Launches in order, made ready once: what is left for a call is memory and addresses."""

from collections.abc import Iterator
from collections.abc import Sequence as Some
from typing import Any

import torch
from torch import Tensor

from transfuse import settings
from transfuse.backends.triton import machine_code
from transfuse.backends.triton.build import Build
from transfuse.backends.triton.gpu import aimed, capability
from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.parameters import ParameterBuffers, watched


class Sequence:
    """Launches over tensors by number; scratch memory comes after those that a call is given.

    ``scratch`` has the start, the elements and their type of each piece, in ``bytes`` of memory.
    """

    def __init__(
        self,
        device: torch.device,
        launches: list[Launch],
        scratch: Some[tuple[int, int, torch.dtype]],
        bytes: int,
    ) -> None:
        self.device, self.launches, self.scratch, self.bytes = device, launches, scratch, bytes
        self.ready = False
        self.buffers: ParameterBuffers | None = None

    def __call__(self, tensors: Some[Tensor]) -> None:
        """Run on tensors of these numbers."""
        given = [tensor.data_ptr() for tensor in tensors]
        if self.at(given):
            return
        scratch = torch.empty(self.bytes, dtype=torch.uint8, device=self.device)
        if not self.ready:
            if self._made_ready(tensors, scratch):
                self(tensors)
            return
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        self.by_triton(tensors, self._addresses(given, scratch.data_ptr()), stream)

    def at(self, given: Some[int]) -> bool:
        """Run on tensors at these addresses; whether it could: it must be ready to, and nobody
        watch."""
        if self.buffers is None or watched():
            return False
        # A tensor would take longer to make, and longest where torch fills what is not initialised.
        scratch = _memory(self.bytes, device=self.device) if self.bytes else None
        base = 0 if scratch is None else scratch.data_ptr()
        self.buffers(given, base, torch._C._cuda_getCurrentRawStream(self.device.index))
        return True

    def one_by_one(self, tensors: Some[Tensor]) -> Iterator[Launch]:
        """A call like an earlier one, or an interpreted one, that stops after each launch."""
        scratch = torch.empty(self.bytes, dtype=torch.uint8, device=self.device)
        if not self.ready:
            memory = self._memory(tensors, scratch)
            for launch in self.launches:
                launch.interpret(memory)
                yield launch
            return
        given, base = [tensor.data_ptr() for tensor in tensors], scratch.data_ptr()
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        if self.buffers is not None and self.direct:
            yield from self.buffers.one_by_one(given, base, stream)
            return
        for launch, run in [(each, each.by_triton()) for each in self.launches]:
            run(self._addresses(given, base), stream)
            yield launch

    @property
    def direct(self) -> bool:
        """Whether the driver is asked to launch, not Triton."""
        return self.buffers is not None and not watched()

    def _addresses(self, given: list[int], base: int) -> list[int]:
        """Those of the tensors given, then of scratch memory."""
        return [*given, *(base + at for at, _, _ in self.scratch)]

    def _memory(self, tensors: Some[Tensor], scratch: Tensor) -> list[Tensor]:
        """The tensors given, then scratch memory."""
        pieces = (
            scratch[at : at + size * dtype.itemsize].view(dtype) for at, size, dtype in self.scratch
        )
        return [*tensors, *pieces]

    def by_triton(self, tensors: Some[Tensor], memory: list[int], stream: int) -> None:
        """Run by Triton's own launcher, on these tensors: their addresses, then the scratch's."""
        for launch in [each.by_triton() for each in self.launches]:  # all compiled before any runs
            launch(memory, stream)

    def build(self, memory: Some[Tensor], capability: int) -> list[Build]:
        """What its launches are compiled from, for tensors such as these and scratch memory."""
        return [launch.build(memory, capability) for launch in self.launches]

    def foresee(self, kinds: Some[torch.dtype]) -> None:
        """Begin to compile for a call on tensors of these types, which are aligned as torch's are.

        Sequences that a call runs in turn are compiled side by side.
        """
        if self.device.type == "cuda":
            kinds = [*kinds, *(dtype for _, _, dtype in self.scratch)]
            memory = [torch.empty(1, dtype=kind, device="meta") for kind in kinds]
            machine_code.foresee(self.build(memory, capability(self.device)), self.device.index)

    def _made_ready(self, tensors: Some[Tensor], scratch: Tensor) -> bool:
        """The first call builds, from tensors; later ones need no more than addresses.

        Whether there is anything left to do: not for an interpreter, nor where there is no GPU.
        """
        memory = self._memory(tensors, scratch)
        if settings.interpreted():
            for launch in self.launches:
                launch.interpret(memory)
            return False
        # All are compiled before the first one runs: where one is miscompiled, nothing is written.
        aim = aimed()
        builds = self.build(memory, aim.gpu.capability if aim else capability(self.device))
        if aim:
            aim.builds.extend(builds)
            return False
        if self.device.type != "cuda":
            machine_code.entries(builds)
            return False
        offsets = [at for at, _, _ in self.scratch]
        self.buffers = ParameterBuffers.of(self.launches, self.device.index, len(tensors), offsets)
        self.ready = True
        return True


_memory: Any = torch.UntypedStorage
