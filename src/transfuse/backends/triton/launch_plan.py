"""A chain as launches made ready once: what is left for a call is memory and addresses."""

from transfuse.backends.triton.draft import OUT, Draft, Place, X
from transfuse.backends.triton.engines.contract import Choose, Task
from transfuse.backends.triton.engines.ordered import serve
from transfuse.backends.triton.engines.served import Served
from transfuse.backends.triton.epilogue import stored_launch
from transfuse.backends.triton.sequence import Sequence


class LaunchPlan(Sequence):
    """The launches of one lowered chain for tensors that lie in one way."""

    def __init__(self, draft: Draft, choose: Choose) -> None:
        self.served = _write(draft, choose)  # the segments that convolve
        super().__init__(draft.device, draft.launches, draft.scratch, draft.bytes)


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
