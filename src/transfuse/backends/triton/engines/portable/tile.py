"""What a kernel knows of its tiles when it is compiled: plain integers and names."""

from dataclasses import dataclass
from math import prod
from typing import Any

from transfuse.backends.triton.engines.portable.tiling import Tiling, crosses, joined, used_rows
from transfuse.backends.triton.engines.workload import Workload
from transfuse.backends.triton.strides import Box, Order, Three
from transfuse.backends.triton.tap_table import TapTable


@dataclass(frozen=True)
class Block:
    """Where the anchors of a tile lie, as ``anchors.py`` takes it.

    Names as in ``tap_table`` and ``tiling``; three numbers go by axis. ``extent``: rows of the copy
    along each axis; ``order``: the width classes of one tile.
    """

    form: str
    box: Box
    anchors: Three
    extent: Three
    cross: bool
    order: tuple[int, ...]

    @property
    def positions(self) -> int:
        return prod(self.box)

    @property
    def joined(self) -> int:
        return len(self.order)

    @property
    def joined_box(self) -> Box:
        """The box in results instead of anchors: width classes side by side."""
        return *self.box[:3], self.box[3] * self.joined

    @property
    def joined_anchors(self) -> Three:
        return *self.anchors[:2], self.anchors[2] * self.joined

    @property
    def joined_extent(self) -> Three:
        return *self.extent[:2], self.extent[2] * self.joined

    @property
    def tiles_of_sample(self) -> int:
        """Of the form ``rows``, where tiles do not cross samples."""
        return -(-used_rows(self.anchors, self.extent) // self.box[3])


@dataclass(frozen=True)
class Tile(Block):
    """A tile of a convolution.

    ``apart``: residues that lie apart in the copy; ``lift``: what makes every shift of a tap
    positive; ``kept``, ``rows``: channels of a group in the copies of the input and of the weights,
    padded.
    """

    classes: Three
    members: Three
    residues: Three
    apart: Three
    lift: Three
    step: Three
    low: int
    inputs: Three
    outputs: Three
    results: Three
    taps: Three
    window: str
    window_stride: Three
    window_padding: Three
    depthwise: bool
    groups: int
    group_channels: int
    group_outputs: int
    kept: int
    rows: int
    channels: int
    depth: int
    split: int

    @classmethod
    def of(cls, work: Workload, config: Tiling, window: str) -> "Tile":
        tap_table, depthwise = work.tap_table, work.depthwise
        extent, apart, low = copied(tap_table, config)
        padded = -(-work.channels // config.depth) * config.depth
        rows = -(-work.outputs // config.channels) * config.channels
        d, h, w = (len(line.order) for line in tap_table.axes)
        deep, high, wide = (max(1 << 16, -line.low) for line in tap_table.axes)
        return cls(
            form=config.form,
            box=config.box,
            anchors=tap_table.each("anchors"),
            extent=extent,
            cross=config.form == "rows" and crosses(work, config.box),
            order=_bit_reversed(joined(tap_table, config.form)),
            classes=tap_table.each("classes"),
            members=tap_table.each("members"),
            residues=tap_table.each("residues"),
            apart=apart,
            lift=(deep, high, wide),
            step=tap_table.each("step"),
            low=low,
            inputs=tap_table.each("inputs"),
            outputs=tap_table.each("outputs"),
            results=tap_table.each("results"),
            taps=(d, h, w),
            window=window,
            window_stride=tap_table.each("window_stride"),
            window_padding=tap_table.each("window_padding"),
            depthwise=depthwise,
            groups=work.groups,
            group_channels=work.channels,
            group_outputs=work.outputs,
            kept=1 if depthwise else padded,
            rows=work.outputs if depthwise else rows,
            channels=config.channels,
            depth=config.depth,
            split=config.split,
        )

    @property
    def lone(self) -> bool:
        """Whether all of a tile lies at one anchor, so that taps outside can be left out."""
        return self.form == "batch" and self.positions == self.box[3]

    @property
    def slots(self) -> int:
        return prod(self.taps)

    @property
    def blocks(self) -> int:
        """Blocks of the channels summed over."""
        return -(-self.kept // self.depth)

    @property
    def tiled(self) -> int:
        """Channels that blocks of a tile divide: a group's, or all where groups have one."""
        return self.group_outputs * (self.groups if self.depthwise else 1)

    @property
    def blocks_of_group(self) -> int:
        return -(-self.tiled // self.channels)

    @property
    def channel_blocks(self) -> int:
        return self.blocks_of_group * (1 if self.depthwise else self.groups)

    @property
    def whole(self) -> bool:
        """Whether every channel of every tile is a real one."""
        return self.tiled % self.channels == 0

    @property
    def share(self) -> int:
        """Members of a window that one program meets."""
        return prod(self.members) // self.split

    @property
    def of_tile(self) -> int:
        """Programs for one tile of anchors and one block of channels."""
        return prod(self.classes) // self.joined * self.split

    @property
    def order_of_results(self) -> Order:
        """How the positions of a tile follow each other."""
        run = 1
        if self.form == "rows" and self.classes[2] == self.joined:
            run = self.joined_extent[2]
        elif self.form == "box" and self.classes[2] == self.joined:
            run = self.joined_box[3]
        return Order(self.results, run, self.ordered)

    @property
    def ordered(self) -> bool:
        """Whether rows follow each other as results do."""
        return (
            self.form == "rows"
            and not self.cross
            and prod(self.classes) == self.joined
            and self.joined_extent[1:] == self.results[1:]
        )


@dataclass(frozen=True)
class Multiply:
    """How products are made: the type of sums, Triton's precision, and whether weights are taken to
    hold NaN or Inf."""

    acc: Any
    dot: str
    careful: bool


def copied(tap_table: TapTable, config: Tiling) -> tuple[Three, Three, int]:
    """Extent, residues apart and first depth of the copy of the input that tiles read."""
    if config.lone:
        return tap_table.each("inputs"), (1, 1, 1), 0
    residues = tap_table.each("residues")
    if config.form == "rows":
        return tap_table.each("pitch"), residues, 0
    extent = tap_table.each("kept")
    if config.form == "box":
        return extent, residues, 0
    return (tap_table.depth.haloed, *extent[1:]), residues, tap_table.depth.low


def _bit_reversed(count: int) -> tuple[int, ...]:
    bits = count.bit_length() - 1
    return tuple(int(f"{i:0{bits}b}"[::-1], 2) if bits else 0 for i in range(count))
