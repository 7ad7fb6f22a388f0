"""What kernels know of the epilogue: plain integers and names when they are compiled, and the
records that their functions hand on (named tuples: Triton and its interpreter both take them)."""

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from transfuse.backends.triton.epilogue.op_table import OpTable
from transfuse.backends.triton.strides import Five, Three


class Operands(NamedTuple):
    """The tensors and the numbers of a launch, as its op tables point at them."""

    tensors: Any
    numbers: Any


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


@dataclass(frozen=True)
class Epilogue:
    """What follows the sums of a tile, and where results go."""

    before: OpTable
    after: OpTable
    sign: int
    early: str  # the statistic gathered before the window, and
    late: str  # the one gathered last
    counted: int  # channels a statistic is gathered for
    summed: bool
    stored: bool
    linear: bool
    wide: bool
    strides: Five
    part: int  # from the results of one share of the members to those of the next
    only_gathers: bool = False  # so that width classes need not meet


@dataclass(frozen=True)
class StoredEpilogue:
    """What the kernel ``finish`` knows when it is compiled."""

    sizes: Three
    channels: int
    group: int
    block_c: int
    block_p: int
    source_strides: Five
    source_linear: bool
    strides: Five
    linear: bool
    wide: bool
    ops: OpTable
    late: str
    over_batch: bool
    counted: int
    summed: bool
    stored: bool
    window: str
    sign: int
    parts: int
    part: int

    @property
    def positions(self) -> int:
        return prod(self.sizes)

    @property
    def tiles(self) -> int:
        return -(-self.positions // self.block_p)

    @property
    def groups(self) -> int:
        return -(-self.channels // self.group)
