"""A chain as launches made ready once: what is left for a call is memory and addresses."""

import logging
from collections.abc import Iterator
from collections.abc import Sequence as Some
from functools import cached_property

from torch import Tensor

from transfuse.backends.triton import installed
from transfuse.backends.triton.draft import OUT, Draft, Place, X
from transfuse.backends.triton.engines.contract import Choose, Task
from transfuse.backends.triton.engines.ordered import serve
from transfuse.backends.triton.engines.served import Served
from transfuse.backends.triton.epilogue import stored_launch
from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.sequence import Sequence
from transfuse.log import once


class LaunchPlan(Sequence):
    """The launches of one lowered chain for tensors that lie in one way."""

    def __init__(self, draft: Draft, choose: Choose) -> None:
        self.draft, self.choose = draft.copy(), choose
        self.served = _write(draft, choose)  # the segments that convolve
        self.copied = frozenset(draft.copied)  # into the order of their tiles: input, weights
        super().__init__(draft.device, draft.launches, draft.scratch, draft.bytes)

    def by_triton(self, tensors: Some[Tensor], memory: list[int], stream: int) -> None:
        """As ever; with other kernels where Triton does not compile these, as the log says."""
        faults = [installed.uncompilable(each.kernel) for each in self.launches]
        if not any(faults):
            super().by_triton(tensors, memory, stream)
            return
        line = "Triton is to launch, and other kernels serve: %s"
        once(logging.WARNING, ("other kernels",), line, "; ".join({*faults} - {""}))
        self.compiled_here(tensors)

    def one_by_one(self, tensors: Some[Tensor]) -> Iterator[Launch]:
        """As ever; with the kernels that serve where Triton is to launch."""
        by_triton = self.ready and not self.direct
        if by_triton and any(installed.uncompilable(each.kernel) for each in self.launches):
            return self.compiled_here.one_by_one(tensors)
        return super().one_by_one(tensors)

    @cached_property
    def compiled_here(self) -> "LaunchPlan":
        """The same without kernels that the store alone has."""
        draft = self.draft.copy()
        draft.from_store = False
        return LaunchPlan(draft, self.choose)


def _write(draft: Draft, choose: Choose) -> list[Served]:
    """The launches of every segment in turn; which engine serves each that convolves."""
    served: list[Served] = []
    stored = Place(X, draft.x_strides)
    segments = draft.lowered.segments
    for at, segment in enumerate(segments):
        draft.segment = at
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
