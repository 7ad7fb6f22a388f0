"""What kernels know of the epilogue: names and small numbers when they are compiled, and records of
what they are told when they run (named tuples: Triton and its interpreter both take them).

Integers in records are as ``told.told`` tells them, unless a kernel has made them plain.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from transfuse.backends.triton.epilogue.op_table import OpTable


class Operands(NamedTuple):
    """The tensors and the numbers of a launch, as its op tables point at them, and the strides of
    tensors that have more than a value per channel."""

    tensors: Any
    numbers: Any
    strides: Any = None


class Channels(NamedTuple):
    """The output channels of a tile by number; ``live`` tells real ones from padding."""

    number: Any
    live: Any


class Coordinates(NamedTuple):
    """The positions of a tile: sample, depth, height, width of each."""

    n: Any
    d: Any
    h: Any
    w: Any


class Destination(NamedTuple):
    """Where results go: the strides of the output, how far the results of one share of a window's
    members lie from those of the next, and whether neighbours are stored together (1 or 0)."""

    strides: Any
    part: Any
    even: Any


class Gathered(NamedTuple):
    """Where partials of a statistic go: from one of their three numbers to the next, how many tiles
    share one, and how many channels there are partials of."""

    plane: Any
    tiles: Any
    counted: Any


@dataclass(frozen=True)
class Epilogue:
    """What follows the sums of a tile, and how results lie, as far as code depends on it."""

    before: OpTable
    after: OpTable
    sign: int
    early: str  # the statistic gathered before the window, and
    late: str  # the one gathered last
    summed: bool
    stored: bool
    inner: int  # the axis along which results lie side by side
    unit: int  # those of 16 bytes
    wide: bool
    only_gathers: bool = False  # so that width classes need not meet


@dataclass(frozen=True)
class StoredEpilogue:
    """What the kernel ``finish`` knows when it is compiled."""

    block_c: int
    block_p: int
    pieces: int  # of ``block_p`` positions each, in one tile
    runs: tuple[OpTable, ...]
    late: str
    over_batch: bool
    summed: bool
    stored: bool
    window: str
    sign: int
    shared: bool  # several shares of the members of a window meet
    source_inner: int
    inner: int
    unit: int  # results of 16 bytes
    wide: bool
    linear: (
        bool  # positions follow each other at one stride, where they come from and where they go
    )
    whole: bool  # blocks hold real channels alone


class StoredSizes(NamedTuple):
    """What ``finish`` is told when it runs. Divisors: the tiles of a sample's channels, the groups
    of these, the positions of a plane and of a line."""

    batch: Any
    tiles: Any
    groups: Any
    plane: Any
    line: Any
    positions: Any
    group: Any
    channels: Any
    source: Any
    parts: Any
    part: Any
