"""Records that the functions of Hopper's kernels hand on: named tuples of values at run time."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from transfuse.backends.triton.draft import Draft, Place, gathered
from transfuse.backends.triton.engines.portable.tiling import used_rows
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.epilogue.records import Epilogue
from transfuse.backends.triton.lower import Segment
from transfuse.backends.triton.strides import Five, Three, linear, three


@dataclass(frozen=True)
class FixedEpilogue(Epilogue):
    """An epilogue compiled for one size: the channels a statistic is gathered for, whether rows
    follow each other as results do, where results go."""

    counted: int = 1
    linear: bool = False
    strides: Five = (0, 0, 0, 0, 0)
    part: int = 0


def fixed(
    draft: Draft, each: Segment, out: Place, arguments: OpArguments, ordered: bool
) -> FixedEpilogue:
    """The epilogue of a segment. ``ordered``: rows follow each other as results do."""
    at = gathered(each)
    return FixedEpilogue(
        **vars(draft.epilogue(each, out, arguments)),
        counted=1 if at is None else draft.lowered.statistics[at].channels,
        linear=ordered and linear(three(each.result.spatial, 1), out.strides),
        strides=out.strides,
        part=out.part,
    )


@dataclass(frozen=True)
class Block:
    """Where the anchors of a tile of rows lie, compiled for one size."""

    positions: int
    anchors: Three
    extent: Three
    cross: bool
    joined: int

    @property
    def tiles_of_sample(self) -> int:
        """Where tiles do not cross samples."""
        return -(-used_rows(self.anchors, self.extent) // self.positions)


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
