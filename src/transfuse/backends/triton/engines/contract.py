"""What an engine answers: whether it serves a segment, with which tiles, and by which launches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from transfuse.backends.triton.draft import OUT, Draft, Place
from transfuse.backends.triton.engines.portable.tiling import Tiling
from transfuse.backends.triton.engines.workload import Workload
from transfuse.backends.triton.segments import Segment

Choose = Callable[[Segment, Workload], Tiling]
"""The portable tiles of a segment: tuned, counted, or as a test or the tuner wants them."""


@dataclass(frozen=True)
class Task:
    """A segment that convolves, to be served. ``between``: another segment reads its results."""

    draft: Draft
    segment: Segment
    between: bool
    choose: Choose

    @cached_property
    def work(self) -> Workload:
        return self.draft.workload(self.segment)

    @cached_property
    def tiling(self) -> Tiling:
        """The tiles of the portable engine."""
        return self.choose(self.segment, self.work)

    @cached_property
    def out(self) -> Place:
        """Where results go: between two segments they lie as portable tiles write them best."""
        if self.between:
            return self.draft.between(self.segment.result, self.tiling.form)
        return Place(OUT, self.draft.out_strides)


class Unsuited(Exception):
    """Why none of an engine's tiles suits a task."""


class Engine(Protocol):
    """One way to run a convolution and what follows it up to the next cut.

    Whatever describes its tiles is its own affair; ``str`` of it is what ``explain`` shows.
    """

    name: str

    def verdict(self, task: Task) -> str:
        """Why it does not serve a task, whatever the tiles; empty where it may."""

    def configs(self, task: Task) -> Iterator[Any]:
        """Tiles for a task, those to launch first; raises ``Unsuited`` where there are none."""

    def emit(self, task: Task, tiles: Any) -> None:
        """Put the launches of a task at the end of its draft."""

    def share(self, tiles: Any) -> float:
        """Of the products per second that a library for matrices reaches, about what tiles do."""
