"""Tiles of a convolution: what a kernel is compiled for, and the numbers that it is told."""

from dataclasses import dataclass
from math import prod
from typing import Any

from transfuse.backends.triton.arguments import Scalar
from transfuse.backends.triton.engines.portable.tile_records import TileSizes
from transfuse.backends.triton.engines.portable.tiling import (
    LEAST,
    Tiling,
    crosses,
    joined,
    tiles,
    used_rows,
)
from transfuse.backends.triton.engines.workload import Workload
from transfuse.backends.triton.packing.packed_layout import Copies
from transfuse.backends.triton.segments import power
from transfuse.backends.triton.strides import Box, Order, Three
from transfuse.backends.triton.tap_table import TapTable
from transfuse.backends.triton.told import UNDIVIDED, Divisor, all_told, divisor, told


@dataclass(frozen=True)
class Tile:
    """What a kernel is compiled for: the tiling, and what kernel, stride, padding, dilation and
    window say of taps. Nothing of batch, sizes or numbers of channels, but for ``whole``: whether
    every channel of every tile is a real one.

    Names as in ``tap_table`` and ``tiling``; three numbers go by axis. ``order``: the width classes
    of one tile; ``apart``: residues that lie apart in the copy, whose first depth is ``low``;
    ``lift``: what makes every shift of a tap positive; ``beside``: of groups of one channel, so
    many outputs read neighbours, one aligned piece.
    """

    form: str
    box: Box
    order: tuple[int, ...]
    classes: Three
    members: Three
    residues: Three
    apart: Three
    lift: Three
    step: Three
    low: int
    taps: Three
    window: str
    window_stride: Three
    window_padding: Three
    depthwise: bool
    beside: int
    whole: bool
    channels: int
    depth: int

    @property
    def positions(self) -> int:
        return prod(self.box)

    @property
    def joined(self) -> int:
        return len(self.order)

    @property
    def lone(self) -> bool:
        """Whether all of a tile lies at one anchor, so that taps outside can be left out."""
        return self.form == "batch" and self.positions == self.box[3]

    @property
    def slots(self) -> int:
        return prod(self.taps)

    @property
    def of_tile(self) -> int:
        """Tiles for the same anchors: one for each class, but for width classes that are joined."""
        return prod(self.classes) // self.joined


@dataclass(frozen=True)
class Tiled:
    """A segment that is cut into tiles, which read ``copies``.

    ``lines``: of the form ``rows``, the rows that tiles run over along each axis; ``cross``: they
    run on from one sample into the next; ``split``: programs that share the members of a window.
    """

    tile: Tile
    work: Workload
    copies: Copies
    lines: Three
    cross: bool
    split: int

    @classmethod
    def of(cls, work: Workload, config: Tiling, window: str) -> "Tiled":
        """Tiles as a tiling has them, to be read by boxes of the copies."""
        copies = _copies(work, config)
        cross = config.form == "rows" and crosses(work, config.box)
        order = _bit_reversed(joined(work.tap_table, config.form))
        tile = _tile(work, config, copies, order, window)
        return cls(tile, work, copies, copies.extent, cross, config.split)

    def carefully(self) -> "Tiled":
        """Tiles of the same results from the same copies, alike for all sizes and forms: anchors of
        one sample in a row, class by class.
        """
        channels = max(LEAST, power(self.tiled))
        if not self.work.all_channels:
            channels = min(channels, 64)
        config = Tiling("rows", (1, 1, 1, 8192 // channels), channels, LEAST, 32, 1)
        tile = _tile(self.work, config, self.copies, (0,), self.tile.window)
        anchors = self.work.tap_table.each("anchors")
        return Tiled(tile, self.work, self.copies, anchors, False, self.split)

    @property
    def tiled(self) -> int:
        """Channels that blocks of a tile divide: a group's, or all where groups have one."""
        return _tiled(self.work)

    @property
    def blocks_of_group(self) -> int:
        return -(-self.tiled // self.tile.channels)

    @property
    def channel_blocks(self) -> int:
        return self.blocks_of_group * (1 if self.tile.depthwise else self.work.groups)

    @property
    def of_tile(self) -> int:
        """Programs for one tile of anchors and one block of channels."""
        return self.tile.of_tile * self.split

    @property
    def tiles(self) -> int:
        """Tiles of anchors."""
        if self.tile.form != "rows":
            return tiles(self.work, self.tile.form, self.tile.box, False)
        return self._tiles_of_unit * (1 if self.cross else self.work.batch)

    @property
    def programs(self) -> int:
        return self.tiles * self.of_tile * self.channel_blocks

    @property
    def _tiles_of_unit(self) -> int:
        """Of the form ``rows``: tiles of a sample, or of all, where they cross."""
        if self.cross:
            return -(-self.work.batch * prod(self.lines) // self.tile.box[3])
        anchors = self.work.tap_table.each("anchors")
        return -(-used_rows(anchors, self.lines) // self.tile.box[3])

    @property
    def order(self) -> Order:
        """How the positions of a tile follow each other."""
        tile, run = self.tile, 1
        if tile.classes[2] == tile.joined and tile.form != "batch":
            run = tile.joined * (self.lines[2] if tile.form == "rows" else tile.box[3])
        return Order(self.work.tap_table.each("results"), run, self.ordered)

    @property
    def ordered(self) -> bool:
        """Whether rows follow each other as results do."""
        tile = self.tile
        lines = self.lines[1], self.lines[2] * tile.joined
        results = self.work.tap_table.each("results")
        one = tile.form == "rows" and not self.cross and tile.of_tile == 1
        return one and lines == results[1:]

    @property
    def sizes(self) -> TileSizes:
        """What a kernel is told of all this."""
        table, work = self.work.tap_table, self.work
        members = prod(table.each("members"))
        return TileSizes(
            batch=told(work.batch),
            programs=told(self.programs),
            channel_blocks=divisor(self.channel_blocks),
            blocks_of_group=divisor(self.blocks_of_group),
            split=divisor(self.split),
            share=told(members // self.split),
            grid=self._grid,
            copy=all_told(self.copies.strides(work.batch)),
            deep=told(self.copies.extent[0]),
            inputs=all_told(table.each("inputs")),
            outputs=all_told(table.each("outputs")),
            results=all_told(table.each("results")),
            tiled=told(self.tiled),
            group_channels=divisor(work.channels),
            group_outputs=divisor(work.outputs),
            kept=told(self.copies.kept),
            rows=told(self.copies.rows),
            width=told(work.groups * self.copies.kept // self.tile.beside),
        )

    @property
    def _grid(self) -> tuple[Divisor, ...]:
        """What a tile's number is divided by, as ``anchors.py`` does for each form."""
        box, anchors = self.tile.box, self.work.tap_table.each("anchors")
        if self.tile.form == "rows":
            _, height, width = self.lines
            sample = divisor(prod(self.lines)) if self.cross else UNDIVIDED
            return divisor(self._tiles_of_unit), sample, divisor(height * width), divisor(width)
        if self.tile.form == "box":
            d, h, w = (-(-n // b) for n, b in zip(anchors, box[1:], strict=True))
            return divisor(w), divisor(h), divisor(d)
        _, h, w, n = (-(-n // b) for n, b in zip((*anchors, self.work.batch), box, strict=True))
        return divisor(n), divisor(w), divisor(h)


@dataclass(frozen=True)
class Multiply:
    """How products are made: the type of sums, Triton's precision, and whether one by one, since a
    group has one channel, or weights may hold NaN or Inf."""

    sums: Scalar
    dot: str
    singly: bool

    @property
    def acc(self) -> Any:
        return self.sums.type


def _tile(
    work: Workload, config: Tiling, copies: Copies, order: tuple[int, ...], window: str
) -> Tile:
    table = work.tap_table
    deep, high, wide = (max(1 << 16, -line.low) for line in table.axes)
    return Tile(
        form=config.form,
        box=config.box,
        order=order,
        classes=table.each("classes"),
        members=table.each("members"),
        residues=table.each("residues"),
        apart=copies.residues,
        lift=(deep, high, wide),
        step=table.each("step"),
        low=copies.low,
        taps=copies.taps,
        window=window,
        window_stride=table.each("window_stride"),
        window_padding=table.each("window_padding"),
        depthwise=work.depthwise,
        beside=_beside(work),
        whole=_tiled(work) % config.channels == 0,
        channels=config.channels,
        depth=config.depth,
    )


def _beside(work: Workload) -> int:
    return 8 if work.depthwise and work.outputs == 1 and work.groups % 8 == 0 else 1


def _tiled(work: Workload) -> int:
    return work.outputs * (work.groups if work.depthwise else 1)


def _copies(work: Workload, config: Tiling) -> Copies:
    """The copies that tiles of this form read."""
    table = work.tap_table
    extent, residues, low = _copied(table, config)
    padded = -(-work.channels // config.depth) * config.depth
    rows = -(-work.outputs // config.channels) * config.channels
    d, h, w = (len(line.order) for line in table.axes)
    return Copies(
        extent=extent,
        residues=residues,
        low=low,
        samples_last=config.form == "batch",
        taps=(d, h, w),
        groups=work.groups,
        group_channels=work.channels,
        group_outputs=work.outputs,
        kept=1 if work.depthwise else padded,
        rows=work.outputs if work.depthwise else rows,
    )


def _copied(tap_table: TapTable, config: Tiling) -> tuple[Three, Three, int]:
    """Extent, residues apart and first depth of the copy of the input."""
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
