"""Launches in order, made ready once: what is left for a call is memory and addresses."""

from collections.abc import Sequence as Some

import torch
from torch import Tensor

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
        scratch = torch.empty(self.bytes, dtype=torch.uint8, device=self.device)
        if not self.ready:
            self._first(tensors, scratch)
            return
        given, base = [tensor.data_ptr() for tensor in tensors], scratch.data_ptr()
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        if self.buffers is not None and not watched():
            self.buffers(given, base, stream)
            return
        memory = [*given, *(base + at for at, _, _ in self.scratch)]
        for launch in self.launches:
            launch.again(memory, stream)

    def _first(self, tensors: Some[Tensor], scratch: Tensor) -> None:
        """The first call compiles, from tensors; later ones need no more than addresses."""
        memory = list(tensors)
        for at, size, dtype in self.scratch:
            memory.append(scratch[at : at + size * dtype.itemsize].view(dtype))
        # All are compiled before the first one runs: where one is miscompiled, nothing is written.
        for launch in self.launches:
            launch.compile(memory)
        for launch in self.launches:
            launch.first(memory)
        if self.device.type == "cuda":
            given, offsets = [t.data_ptr() for t in tensors], [at for at, _, _ in self.scratch]
            self.buffers = ParameterBuffers.of(self.launches, given, offsets, scratch.data_ptr())
            self.ready = True
