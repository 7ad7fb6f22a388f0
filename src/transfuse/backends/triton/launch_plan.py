"""A chain as launches made ready once: what is left for a call is memory and addresses."""

import torch
from torch import Tensor

from transfuse.backends.triton.draft import OUT, Draft, Place, X
from transfuse.backends.triton.engines.contract import Choose, Task
from transfuse.backends.triton.engines.ordered import serve
from transfuse.backends.triton.engines.served import Served
from transfuse.backends.triton.epilogue import stored_launch
from transfuse.backends.triton.parameters import ParameterBuffers, watched


class LaunchPlan:
    """The launches of one lowered chain for tensors that lie in one way."""

    def __init__(self, draft: Draft, choose: Choose) -> None:
        self.served = _write(draft, choose)  # the segments that convolve
        self.device, self.launches = draft.device, draft.launches
        self.scratch, self.bytes = draft.scratch, draft.bytes
        self.ready = False
        self.buffers: ParameterBuffers | None = None

    def __call__(self, tensors: list[Tensor]) -> None:
        """Run on x, weight, out and the operands."""
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

    def _first(self, tensors: list[Tensor], scratch: Tensor) -> None:
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


def _write(draft: Draft, choose: Choose) -> list[Served]:
    """The launches of every segment in turn; which engine serves each that convolves."""
    served: list[Served] = []
    stored = Place(X, draft.x_strides)
    segments = draft.lowered.segments
    for at, segment in enumerate(segments):
        between = segment.stores and at + 1 < len(segments)
        if segment.convolves:
            task = Task(draft, segment, between, choose)
            served.append(serve(task))
            out = task.out
        else:
            out = draft.between(segment.result) if between else Place(OUT, draft.out_strides)
            stored_launch.add(draft, segment, stored, out)
        if segment.stores:
            stored = out
    return served
