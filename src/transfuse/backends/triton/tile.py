"""What a kernel knows of its tiles when it is compiled: plain integers and names."""

from dataclasses import dataclass
from math import prod

from transfuse.backends.triton.config import Config, Shape, crosses, joined, used_rows
from transfuse.backends.triton.copies import Five
from transfuse.backends.triton.lattice import Lattice, Three
from transfuse.backends.triton.lower import Table

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Block:
    """Where the anchors of a tile lie, as ``kernels/tiles.py`` takes it.

    Names as in ``lattice`` and ``config``; three numbers go by axis. ``extent``: rows of the copy
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
    def of(cls, shape: Shape, config: Config, window: str) -> "Tile":
        lattice, depthwise = shape.lattice, shape.depthwise
        extent, apart, low = copied(lattice, config)
        padded = -(-shape.channels // config.depth) * config.depth
        rows = -(-shape.outputs // config.channels) * config.channels
        d, h, w = (len(line.order) for line in lattice.lines)
        deep, high, wide = (max(1 << 16, -line.low) for line in lattice.lines)
        return cls(
            form=config.form,
            box=config.box,
            anchors=lattice.each("anchors"),
            extent=extent,
            cross=config.form == "rows" and crosses(shape, config.box),
            order=_bit_reversed(joined(lattice, config.form)),
            classes=lattice.each("classes"),
            members=lattice.each("members"),
            residues=lattice.each("residues"),
            apart=apart,
            lift=(deep, high, wide),
            step=lattice.each("step"),
            low=low,
            inputs=lattice.each("inputs"),
            outputs=lattice.each("outputs"),
            results=lattice.each("results"),
            taps=(d, h, w),
            window=window,
            window_stride=lattice.each("window_stride"),
            window_padding=lattice.each("window_padding"),
            depthwise=depthwise,
            groups=shape.groups,
            group_channels=shape.channels,
            group_outputs=shape.outputs,
            kept=1 if depthwise else padded,
            rows=shape.outputs if depthwise else rows,
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
    def ordered(self) -> bool:
        """Whether rows follow each other as results do."""
        return (
            self.form == "rows"
            and not self.cross
            and prod(self.classes) == self.joined
            and self.joined_extent[1:] == self.results[1:]
        )


@dataclass(frozen=True)
class After:
    """What follows the sums of a tile, and where results go."""

    before: Table
    after: Table
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
class Finish:
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
    steps: Table
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


def copied(lattice: Lattice, config: Config) -> tuple[Three, Three, int]:
    """Extent, residues apart and first depth of the copy of the input that tiles read."""
    if config.lone:
        return lattice.each("inputs"), (1, 1, 1), 0
    residues = lattice.each("residues")
    if config.form == "rows":
        return lattice.each("pitch"), residues, 0
    extent = lattice.each("kept")
    if config.form == "box":
        return extent, residues, 0
    return (lattice.depth.haloed, *extent[1:]), residues, lattice.depth.low


def _bit_reversed(count: int) -> tuple[int, ...]:
    bits = count.bit_length() - 1
    return tuple(int(f"{i:0{bits}b}"[::-1], 2) if bits else 0 for i in range(count))
