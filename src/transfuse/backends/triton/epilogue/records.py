"""What kernels know of the epilogue when they are compiled: plain integers and names."""

from dataclasses import dataclass
from math import prod

from transfuse.backends.triton.axes import Five, Three
from transfuse.backends.triton.epilogue.op_table import OpTable


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
    steps: OpTable
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
