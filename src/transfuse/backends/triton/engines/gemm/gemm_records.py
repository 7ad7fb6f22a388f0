"""What the kernels of the matrix product know: when they are compiled, and when they run."""

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from transfuse.backends.triton.strides import Three


@dataclass(frozen=True)
class GemmTile:
    """A tile of the product, as far as code depends on it.

    Rows are ``anchors``, columns the ``phases`` of so many ``channels``; a step multiplies
    ``depth`` of the channels summed over. ``taps`` inputs along the last axis meet in an output.
    """

    anchors: int
    channels: int
    depth: int
    phases: Three
    taps: int
    channels_last: bool  # the input has its channels innermost; else its positions
    crosses: bool  # rows run on from one sample into the next
    packed: bool  # weights are packed, columns as rows; else they lie as they were given
    channels_inner: bool  # columns of a tile: channels of a phase, or else phases of a channel
    tf32: bool
    whole: bool  # every channel of every tile is a real one
    cropped: bool  # some outputs of some anchors are no results
    unit: int  # results that are one aligned piece of memory

    @property
    def columns(self) -> int:
        return self.channels * prod(self.phases)


class GemmSizes(NamedTuple):
    """What the kernel is told when it runs.

    Divisors: blocks of columns, blocks of a sample's anchors, then anchors of a sample, of a plane
    and of a line. Output ``s*a + r - back`` of an axis is phase ``r`` of anchor ``a``, and tap
    ``j`` reads input ``first + a - j`` there.
    """

    columns: Any
    blocks: Any
    sample: Any
    plane: Any
    line: Any
    anchors: Any
    first: Any
    channels: Any
    outputs: Any
    results: Any
    back: Any


@dataclass(frozen=True)
class Columns:
    """How weights are packed: rows of ``kept`` channels for each tap of each column of the product,
    in the order of the columns of tiles."""

    phases: Three
    taps: Three
    channels: int  # of a tile
    channels_inner: bool
    tf32: bool
    block: int = 32
    depth: int = 64

    @property
    def columns(self) -> int:
        return self.channels * prod(self.phases)


class ColumnSizes(NamedTuple):
    """What ``pack_columns`` is told when it runs: blocks of channels summed over (a divisor), the
    channels of output and input, those kept, and the rows that are packed."""

    depths: Any
    outputs: Any
    channels: Any
    kept: Any
    rows: Any


class CarefulSizes(NamedTuple):
    """What ``multiply_carefully`` is told when it runs.

    Divisors: programs of a sample, blocks of its positions, positions of a plane and of a line.
    ``source`` and ``strides`` are those of input and weights.
    """

    copied: Any
    programs: Any
    of_sample: Any
    blocks: Any
    plane: Any
    line: Any
    positions: Any
    channels: Any
    outputs: Any
    padding: Any
    inputs: Any
    source: Any
    strides: Any
