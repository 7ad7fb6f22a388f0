"""The Hopper loop for a convolution that a window follows: two members of the window at once.

Anchors lie in boxes of depth, height, width and samples (the form ``batch``, copies by residue).
Width members come in pairs: their taps read the same few offsets, so that one copy of rows serves
both, and one copy of weights serves the boxes of two consumers. See ``window_kernel.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from transfuse.backends.triton.engines.hopper_strip.strip_layout import SHARED
from transfuse.backends.triton.strides import Box, Five, Three
from transfuse.backends.triton.tap_table import ONE, AxisTaps, TapTable
from transfuse.backends.triton.told import all_told

LIFT = 1 << 12
"""Inputs that a tap may lie before its anchor, residues apart. Offsets are told with so many more:
the kernel divides no negatives."""
Products = tuple[tuple[tuple[int, int], ...], ...]
"""For each copy of rows of a pair: (member of the pair, slot) of the products that read it."""


def pair_of(line: AxisTaps, pair: int) -> tuple[int, tuple[int, ...], Products]:
    """The highest offset of two members, how far below it copies lie, and their products."""
    members = [2 * pair, 2 * pair + 1]
    taps = [
        (first - t * line.step, at, slot + t)
        for at, member in enumerate(members)
        if member < line.members
        for first, count, slot in [line.entries[member]]
        for t in range(count)
    ]
    offsets = sorted({offset for offset, _, _ in taps}, reverse=True)
    top = offsets[0] if offsets else 0
    products = tuple(
        tuple((at, slot) for offset, at, slot in sorted(taps) if offset == copy) for copy in offsets
    )
    return top, tuple(top - offset for offset in offsets), products


@dataclass(frozen=True)
class WindowPattern:
    """What the kernel knows of a problem when it is compiled: nothing that depends on sizes."""

    residues: Three
    step: Three
    slots: Three
    members: Three
    pairs: int  # of width members
    below: tuple[int, ...]
    products: Products
    box: Box
    padded: int
    whole: bool  # channels fill the tile
    window: str

    @property
    def positions(self) -> int:
        return prod(self.box)


@dataclass(frozen=True)
class WindowGeometry:
    """A problem as the kernel meets it. An entry is (first, count, slot), by axis and member."""

    batch: int
    channels: int
    kept: int
    anchors: Three
    results: Three
    extent: Three  # rows of a residue along each axis
    residues: Three
    low: int  # the depth of row 0
    step: Three
    slots: Three
    members: Three
    entries: tuple[tuple[Three, ...], ...]
    tops: tuple[int, ...]  # by pair of width members: its highest offset
    below: tuple[int, ...]  # how far below it each copy of rows lies
    products: Products
    box: Box
    split: int  # programs that share the members
    window: str  # "max" or "sum"

    @classmethod
    def of(
        cls, tap_table: TapTable, batch: int, channels: int, kept: int, box: Box, split: int,
        window: str,
    ) -> "WindowGeometry":  # fmt: skip
        width = tap_table.width
        pairs = [pair_of(width, pair) for pair in range(-(-width.members // 2))]
        return cls(
            batch=batch,
            channels=channels,
            kept=kept,
            anchors=tap_table.each("anchors"),
            results=tap_table.each("results"),
            extent=(tap_table.depth.haloed, tap_table.height.kept, width.kept),
            residues=tap_table.each("residues"),
            low=tap_table.depth.low,
            step=tap_table.each("step"),
            slots=tuple(len(each.order) for each in tap_table.axes),  # type: ignore[arg-type]
            members=tap_table.each("members"),
            entries=tuple(each.entries for each in tap_table.axes),
            tops=tuple(top for top, _, _ in pairs),
            below=pairs[0][1],
            products=pairs[0][2],
            box=box,
            split=split,
            window=window,
        )

    @property
    def pattern(self) -> WindowPattern:
        """What is compiled."""
        return WindowPattern(
            residues=self.residues,
            step=self.step,
            slots=self.slots,
            members=self.members,
            pairs=len(self.tops),
            below=self.below,
            products=self.products,
            box=self.box,
            padded=self.padded,
            whole=self.channels == self.padded,
            window=self.window,
        )

    def sizes(self, strides: Five, part: int) -> list[object]:
        """What the kernel is told when it runs, in the order in which it takes it."""
        depth, height, width = (LIFT * residues for residues in self.residues)
        entries = [
            n
            for axis, lift in zip(self.entries, (depth, height), strict=False)
            for first, count, slot in axis
            for n in (first + lift, count, slot)
        ]
        tops = [top + width for top in self.tops]
        return [
            self.batch, self.channels, self.kept, self.extent[0], self.low, self.split,
            *self.boxes[1:], *self.results, *strides, part, all_told(entries), all_told(tops),
        ]  # fmt: skip

    @property
    def positions(self) -> int:
        return prod(self.box)

    @property
    def lines(self) -> int:
        """Members of depth and height that one program meets."""
        return self.members[0] * self.members[1] // self.split

    @property
    def boxes(self) -> tuple[int, int, int, int]:
        """Boxes along depth, height, width and samples."""
        sizes: Sequence[int] = (*self.anchors, self.batch)
        d, h, w, n = (-(-size // each) for size, each in zip(sizes, self.box, strict=True))
        return d, h, w, n

    @property
    def tiles(self) -> int:
        """Tiles of two boxes."""
        return -(-prod(self.boxes) // 2)

    @property
    def padded(self) -> int:
        """Channels of a tile."""
        return 64 if self.channels <= 64 else 128


@dataclass(frozen=True)
class Rings:
    """Stages of the two rings; ``depth`` channels of the input in one."""

    depth: int
    itemsize: int
    x_stages: int
    w_stages: int
    registers: int = 240

    @property
    def swizzle(self) -> int:
        return self.depth * self.itemsize

    def shared(self, geometry: WindowGeometry) -> int:
        rows = self.x_stages * 2 * geometry.positions + self.w_stages * geometry.padded
        return rows * self.swizzle


def rings(geometry: WindowGeometry, depth: int, itemsize: int) -> Rings | None:
    """The deepest that fit."""
    for x_stages, w_stages in ((4, 8), (3, 8), (3, 6), (2, 6), (2, 4)):
        found = Rings(depth, itemsize, x_stages, w_stages)
        if found.shared(geometry) <= SHARED - 8 * 1024:
            return found
    return None


SAMPLES = (32, 16, 8, 4, 2, 1)
"""Samples of a box: a build for each, so few serve all sizes."""


def boxes_of(tap_table: TapTable, positions: int) -> list[Box]:
    """Boxes to choose from: so many samples each, and about as many positions along each axis.

    The first has nothing but samples.
    """
    found: list[Box] = [(1, 1, 1, positions)]
    axes = [at for at, axis in enumerate(tap_table.axes) if axis != ONE] or [2]
    for samples in SAMPLES:
        sides = [1, 1, 1]
        for turn in range((positions // samples).bit_length() - 1):
            sides[axes[-1 - turn % len(axes)]] *= 2
        found.append((sides[0], sides[1], sides[2], samples))
    return found


def count(tap_table: TapTable, batch: int, box: Box) -> int:
    """Boxes that cover all anchors."""
    limits = (*tap_table.each("anchors"), batch)
    return prod(-(-n // each) for n, each in zip(limits, box, strict=True))


def box_of(tap_table: TapTable, batch: int, positions: int) -> Box:
    """The box that covers all anchors with the fewest copies; of equals, the most samples."""
    return min(boxes_of(tap_table, positions), key=lambda box: count(tap_table, batch, box))


def split_of(tap_table: TapTable, tiles: int, multiprocessors: int) -> int:
    """Shares of the members: enough programs that the last ones do not make the rest wait."""
    lines = tap_table.depth.members * tap_table.height.members
    for split in range(1, lines + 1):
        if lines % split == 0 and tiles * split >= 5 * multiprocessors:
            return split
    return lines


def choose(
    tap_table: TapTable, batch: int, channels: int, kept: int, depth: int, itemsize: int,
    window: str, multiprocessors: int, shares: bool = True,
) -> tuple[WindowGeometry, Rings] | None:  # fmt: skip
    """What to launch, if it fits. ``shares``: partial results may meet in another segment."""
    box = box_of(tap_table, batch, 128 if channels <= 64 else 64)
    geometry = WindowGeometry.of(tap_table, batch, channels, kept, box, 1, window)
    if shares:
        geometry = replace(geometry, split=split_of(tap_table, geometry.tiles, multiprocessors))
    found = rings(geometry, depth, itemsize)
    return None if found is None else (geometry, found)


def verdict(tap_table: TapTable, channels: int, groups: int, window: str, before: bool) -> str:
    """Why this loop does not serve, or nothing. ``before``: ops precede the window."""
    if groups != 1 or before or window not in ("max", "sum"):
        return "it takes one group and a maximum or sum right after the convolution"
    if tap_table.classes != 1:
        return f"{tap_table.classes} classes; it takes one"
    if channels > 128:
        return f"{channels} output channels; one tile holds 128"
    for line in tap_table.axes:
        last = (line.results - 1) * line.window_stride - line.window_padding + line.members
        if line.window_padding or last > line.outputs:
            return "windows reach past the outputs"
        if line.low < -LIFT:
            return f"taps reach {-line.low} inputs back; it takes {LIFT}"
    width = tap_table.width
    pairs = [pair_of(width, pair)[1:] for pair in range(-(-width.members // 2))]
    if any(pair != pairs[0] for pair in pairs) or not pairs[0][1]:
        return "pairs of width members differ in their taps"
    return ""
