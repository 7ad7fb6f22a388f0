"""Records that the functions of Hopper's kernels hand on: named tuples of values at run time."""

from typing import Any, NamedTuple


class Ring(NamedTuple):
    """A ring of buffers in shared memory: a producer fills a slot, the consumers empty it.

    ``full`` and ``empty`` are barriers, one for each slot.
    """

    slots: Any
    full: Any
    empty: Any


class Results(NamedTuple):
    """Where results go and what they meet on the way: the output, the samples there are, the
    epilogue's operands. For a statistic, where partials lie, from one of their numbers to the next,
    and how many tiles share one."""

    out: Any
    batch: Any
    operands: Any
    partials: Any = None
    plane: Any = None
    counted: Any = None


class StripTile(NamedTuple):
    """A tile of strips: its block of anchors, classes of depth and height, first channel."""

    block: Any
    cd: Any
    ch: Any
    channel: Any
