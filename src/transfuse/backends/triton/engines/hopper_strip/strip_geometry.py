"""A problem as the loop of strips meets it: rows, classes and taps, as plain integers."""

from dataclasses import dataclass
from math import prod

from transfuse.backends.triton.engines.portable.tiling import used_rows
from transfuse.backends.triton.strides import Five, Three, linear
from transfuse.backends.triton.tap_table import ONE, TapTable


@dataclass(frozen=True)
class StripPattern:
    """What the kernel knows of a problem when it is compiled: nothing that depends on sizes."""

    rank: int
    classes: Three
    step: Three
    slots: Three
    taps: tuple[Three, ...]  # along the width: class, row of the strip, slot
    cross: bool
    thin: bool  # a line is one result
    linear: bool  # rows follow each other as results do
    whole: bool  # blocks divide the channels
    alone: bool  # one block has all channels

    @property
    def joined(self) -> int:
        """Width classes of one tile: all of them."""
        return self.classes[2]


@dataclass(frozen=True)
class ResultLayout:
    """How results lie, and the bytes of one."""

    strides: Five
    itemsize: int


@dataclass(frozen=True)
class StripGeometry:
    """A problem as the kernel meets it. An entry is (first, count, slot)."""

    rank: int
    batch: int
    channels: int  # of the output
    kept: int  # of the input, padded: one slot of the packed weights
    anchors: Three
    extent: Three  # rows along each axis
    results: Three
    classes: Three
    step: Three
    slots: Three  # taps of the kernel
    entries: tuple[tuple[Three, ...], ...]  # by axis and class
    cross: bool  # tiles run on from one sample into the next

    @classmethod
    def of(
        cls, tap_table: TapTable, batch: int, channels: int, kept: int, cross: bool
    ) -> "StripGeometry":
        return cls(
            rank=3 if tap_table.depth != ONE else 2 if tap_table.height != ONE else 1,
            batch=batch,
            channels=channels,
            kept=kept,
            anchors=tap_table.each("anchors"),
            extent=tap_table.each("pitch"),
            results=tap_table.each("results"),
            classes=tap_table.each("classes"),
            step=tap_table.each("step"),
            slots=tuple(len(each.order) for each in tap_table.axes),  # type: ignore[arg-type]
            entries=tuple(each.entries for each in tap_table.axes),
            cross=cross,
        )

    def pattern(self, channels: int, strides: Five) -> StripPattern:
        """What is compiled, for tiles of so many channels and results at these strides."""
        return StripPattern(
            rank=self.rank,
            classes=self.classes,
            step=self.step,
            slots=self.slots,
            taps=self.taps,
            cross=self.cross,
            thin=self.line == 1,
            linear=self.linear(strides),
            whole=self.channels % channels == 0,
            alone=self.channels <= channels,
        )

    @property
    def joined(self) -> int:
        """Width classes of one tile: all of them."""
        return self.classes[2]

    @property
    def line(self) -> int:
        """Results from one line of rows to the next."""
        return self.extent[2] * self.joined

    def linear(self, strides: Five) -> bool:
        """Whether rows follow each other as results do, at one stride."""
        wide = self.extent[1], self.line
        ordered = not self.cross and prod(self.classes) == self.joined and wide == self.results[1:]
        return ordered and linear(self.results, strides)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Width offsets of all taps of all classes."""
        return tuple(
            first - t * self.step[2] for first, count, _ in self.entries[2] for t in range(count)
        )

    @property
    def low(self) -> int:
        """The first row of a strip, from a tile's first anchor."""
        return min(self.offsets)

    @property
    def reach(self) -> int:
        """Rows of a strip beyond one per anchor."""
        return max(self.offsets) - self.low

    @property
    def taps(self) -> tuple[Three, ...]:
        """Width taps as (class, row of the strip, slot), classes in turn.

        Two accumulators fed in turn never wait for each other.
        """
        lists = [
            [(c, first - t * self.step[2] - self.low, slot + t) for t in range(count)]
            for c, (first, count, slot) in enumerate(self.entries[2])
        ]
        longest = max(len(each) for each in lists)
        return tuple(each[t] for t in range(longest) for each in lists if t < len(each))

    @property
    def sample(self) -> int:
        """Rows of one sample."""
        return prod(self.extent)

    def tiles(self, positions: int) -> int:
        """Tiles of ``positions`` anchors for one (depth, height) class."""
        if self.cross:
            return -(-self.batch * self.sample // positions)
        return self.batch * self.tiles_of_sample(positions)

    def tiles_of_sample(self, positions: int) -> int:
        """Those of one sample, where they do not cross into the next."""
        return -(-used_rows(self.anchors, self.extent) // positions)

    def held(self, depth: int) -> int:
        """Blocks of weights of one (depth, height) class; 0 if classes differ in work."""
        taps = {d[1] * h[1] for d in self.entries[0] for h in self.entries[1]}
        return taps.pop() * -(-self.kept // depth) * len(self.taps) if len(taps) == 1 else 0
