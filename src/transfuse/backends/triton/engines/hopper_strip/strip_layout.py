"""The convolution's loop written for Hopper: which problems it takes, how it is laid out.

One *strip* of input rows, loaded once for each tap of depth and height and each block of
channels, feeds every width tap of every width class: a tap is the same rows read from another
start. See ``strip_kernel.py``. Pure integers; nothing here imports Triton.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
from math import gcd

from transfuse.backends.triton.arguments import Swizzled
from transfuse.backends.triton.engines.hopper_strip.strip_geometry import (
    ResultLayout,
    StripGeometry,
)
from transfuse.backends.triton.epilogue.op_table import OpTable
from transfuse.backends.triton.epilogue.records import Epilogue
from transfuse.backends.triton.strides import CHANNELS, Five
from transfuse.backends.triton.tap_table import TapTable

SHARED = 227 * 1024
"""Bytes of shared memory one program may take."""

MOST_TAPS = 32
"""Width taps of all classes: they are unrolled."""


@dataclass(frozen=True)
class StripTiling:
    """How a tile is laid out. ``axis`` is the one of channels."""

    axis: int
    channels: int  # of the tile: those of the packed weights
    positions: int  # anchors of one consumer
    depth: int  # channels of the input in one block
    itemsize: int
    x_stages: int
    w_stages: int
    halo: int  # rows of the box that completes a strip; 0: none
    store: str = "rows"  # a warp along a row, along "channels", or as the "tile" lies
    vector: int = 1  # neighbours that one thread stores at once
    registers: int = 240
    hold: bool = False  # the weights of one (depth, height) class stay in shared memory
    consumers: int = 2  # warpgroups that multiply; with one, two programs share a multiprocessor
    own: bool = False  # consumers have tiles of their own, and take turns to multiply

    @property
    def sharing(self) -> int:
        """Consumers of one tile."""
        return 1 if self.own else self.consumers

    @property
    def back(self) -> bool:
        """Whether weights that do not all fit are walked forth and back, see ``strip_kernel``."""
        return self.own and not self.hold

    @property
    def stays(self) -> bool:
        """Whether a program stays with one class of depth and height, whose weights it keeps."""
        return self.hold or self.own

    @property
    def tile(self) -> int:
        """Anchors of one tile."""
        return self.sharing * self.positions

    @property
    def box(self) -> int:
        """Rows of one copy to shared memory."""
        return min(256, self.tile)

    @property
    def strip(self) -> int:
        return self.tile + self.halo

    @property
    def swizzle(self) -> int:
        return self.depth * self.itemsize

    @property
    def shared(self) -> int:
        """Bytes of the two rings: strips and weights."""
        row = self.depth * self.itemsize
        return row * (self.x_stages * self.strip + self.w_stages * self.channels)

    def bias(self, alone: bool, ops: OpTable) -> int:
        """Where the operand stands that sums start from instead of zero; -1: there is none.

        All tiles must share it (``alone``: one block has all channels). In 16 bits the result of a
        convolution is rounded coarsely anyway; in tf32, sums that start from a large bias would
        lose bits of their products.
        """
        fits = self.itemsize == 2 and alone
        return ops.at[0] if fits and ops.ops[:1] == ("add",) else -1

    def room(self, geometry: StripGeometry, after: Epilogue, results: ResultLayout) -> int:
        """Bytes of shared memory in all, at most: rings, the bias and ones, changes of layout."""
        bias = 32 * (2 * self.positions + self.channels)
        room = self.shared + scratch(self, results.itemsize, geometry.joined) * self.consumers // 2
        alone = geometry.channels <= self.channels
        return room + (bias if self.bias(alone, after.after) >= 0 else 0)

    def tiles_of_block(self, geometry: StripGeometry) -> int:
        """Tiles for one block of anchors: by class of depth and height, and by channels."""
        return geometry.classes[0] * geometry.classes[1] * -(-geometry.channels // self.channels)

    def partials(self, geometry: StripGeometry) -> int:
        """Partials of a statistic that one tile leaves."""
        return self.sharing * geometry.classes[0] * geometry.classes[1]

    @property
    def layout(self) -> Swizzled:
        """How a strip lies in shared memory."""
        return Swizzled(self.swizzle, 8 * self.itemsize)

    def programs(self, geometry: StripGeometry, multiprocessors: int) -> int:
        """As many as run at once; a program that holds weights stays with its class."""
        if self.stays:
            multiprocessors -= multiprocessors % self.tiles_of_block(geometry)
        return multiprocessors * (3 - self.consumers)

    def accumulators(self, geometry: StripGeometry) -> int:
        """Registers of a thread that hold sums."""
        return self.channels * self.positions * geometry.joined // 128


def verdict(tap_table: TapTable, channels: int, itemsize: int, groups: int, window: bool) -> str:
    """Why this loop does not serve, or nothing. ``window``: a pool follows the convolution."""
    if groups != 1:
        return f"{groups} groups; it takes one"
    if window:
        return "a window follows the convolution"
    if tap_table.width.classes > 2:
        return f"{tap_table.width.classes} width classes; it joins at most 2"
    if itemsize not in (2, 4):
        return "tensor cores take 16-bit types and tf32"
    geometry = StripGeometry.of(tap_table, 1, channels, 1, cross=True)
    if len(geometry.taps) > MOST_TAPS:
        return f"{len(geometry.taps)} width taps; it unrolls {MOST_TAPS}"
    if not any(bases(geometry, itemsize, 0)):
        return f"a strip with {geometry.reach} rows beyond its tile fits no shared memory"
    return ""


def depth_of(kept: int, itemsize: int) -> int:
    """Channels of one block: 64 or 128 bytes, whichever wastes fewer."""
    row = kept * itemsize
    wide, slim = -row % 128, -row % 64
    return (64 if row <= 64 or slim < wide else 128) // itemsize


def halo_of(reach: int) -> int:
    """Rows of the box that completes a strip: a power of two, whole swizzle atoms."""
    if reach == 0:
        return 0
    return 1 << max(3, (reach - 1).bit_length())


def axis_of(after: Epilogue) -> int:
    """The axis of channels: last where they are summed up, so that a warp holds all of them."""
    innermost = after.inner == CHANNELS and not after.late
    return 1 if innermost or {"softmax", "sum"} & set(after.after.ops) else 0


def configs(
    geometry: StripGeometry, itemsize: int, after: Epilogue, results: ResultLayout
) -> Iterator[StripTiling]:
    """Layouts that fit, as they are asked for, the likely best first: large tiles, held weights,
    deep rings.

    ``itemsize`` of what is multiplied.
    """
    if geometry.channels > 128 and {"softmax", "sum"} & set(after.after.ops):
        return
    for base in bases(geometry, itemsize, axis_of(after)):
        # A program that holds weights stays with one of these: there must be a program for each.
        held = geometry.held(base.depth) if base.tiles_of_block(geometry) <= 16 else 0
        rings = [(x, held, True) for x in (4, 3) if held]
        rings += [(x, w, False) for x in (3, 2, 4) for w in (8, 7, 6, 4, 3)]
        best = store_of(geometry, base, after, results)
        for config in dict.fromkeys((best, replace(best, store="tile", vector=1))):
            for x_stages, w_stages, hold in rings:
                each = replace(config, x_stages=x_stages, w_stages=w_stages, hold=hold)
                if each.room(geometry, after, results) <= SHARED and near(geometry, each, results):
                    yield each


def bases(geometry: StripGeometry, itemsize: int, axis: int) -> Iterator[StripTiling]:
    """Tiles of the usual sizes, with the shallowest rings that work."""
    padded = 64 if geometry.channels <= 64 else 128
    depth, halo = depth_of(geometry.kept, itemsize), halo_of(geometry.reach)
    most = 128 * 128 // (padded * geometry.joined)
    for positions in (most, most // 2):
        base = StripTiling(axis, padded, positions, depth, itemsize, 2, 3, halo, store="tile")
        if 64 <= positions <= 256 >= halo and base.shared + scratch(base, 4, 1) <= SHARED:
            yield base


def near(geometry: StripGeometry, config: StripTiling, results: ResultLayout) -> bool:
    """Whether rows, and offsets from the first result of a tile's first sample, fit 32 bits."""
    if geometry.batch * geometry.sample + config.tile >= 2**31:
        return False
    return span(geometry, config, results.strides) <= 2**31


def span(geometry: StripGeometry, config: StripTiling, strides: Five) -> int:
    """Elements from the first result of a tile's first sample to the last it may store."""
    samples = config.tile // geometry.sample + 2
    sizes = (samples, geometry.channels, *geometry.results)
    return 1 + sum((n - 1) * abs(s) for n, s in zip(sizes, strides, strict=True))


def scratch(config: StripTiling, stored: int, joined: int) -> int:
    """Bytes of shared memory that the compiler takes to change layouts, for two consumers."""
    wide = stored == 4
    if config.store == "rows":
        if config.vector == 4:
            return (65 if wide else 18) * 1024
        return 34 * 1024
    if config.store == "channels":
        whole = config.vector * stored == 16 and wide and joined == 2
        return (66 if config.vector == 1 else 34 if whole else 18) * 1024
    return 6 * 1024


def store_of(
    geometry: StripGeometry, config: StripTiling, after: Epilogue, results: ResultLayout
) -> StripTiling:
    """The way to store that suits results."""
    if after.summed or not after.stored:
        return replace(config, store="tile")
    if after.inner == CHANNELS:
        if after.late:  # channels first, and partials beside them: no registers are left
            return replace(config, store="tile")
        samples, _, *others = results.strides
        vector = gcd(16 // results.itemsize, geometry.channels, samples, *others)
        return replace(config, store="channels", vector=vector)
    return replace(config, store="rows", vector=vector_of(geometry, results))


def vector_of(geometry: StripGeometry, results: ResultLayout) -> int:
    """Neighbours of a row that may be stored at once: all of them aligned, all valid or none."""
    strides = results.strides
    if strides[4] != 1:
        return 1
    if geometry.linear(strides):
        numbers = [geometry.sample * geometry.joined, *strides[:2]]
    else:
        numbers = [geometry.line, geometry.results[2], *strides[:4]]
    found = gcd(16 // results.itemsize, *numbers)
    # Each is a build of its own, so a few stand for all.
    if results.itemsize == 4:
        offered = (4, 1) if geometry.cross else (4, 2, 1)
    elif geometry.cross:
        offered = (4, 1)
    else:
        offered = (8, 4, 1) if geometry.linear(strides) else (8, 2, 1)
    return next(vector for vector in offered if found % vector == 0)


def choose(
    geometry: StripGeometry, itemsize: int, after: Epilogue, results: ResultLayout
) -> StripTiling | None:
    """The layout to take; none if none fits. Measured on an H200 where it names rings."""
    # How results are stored matters more than how deep the rings are.
    found = configs(geometry, itemsize, after, results)
    by_store = groupby(found, key=lambda each: (each.positions, each.store))
    alike = [each for _, first in islice(by_store, 1) for each in first]
    plain = [each for each in alike if not each.hold]
    if not plain:
        return None
    x_stages, w_stages = (3, 6) if geometry.joined == 2 else (2, 8)
    if {"softmax", "sum"} & set(after.after.ops) and geometry.joined == 2:
        # The epilogue takes as long as the products. Weights that are held need no barriers; else
        # two small programs share a multiprocessor, and one multiplies while the other finishes.
        for each in alike:
            if each.hold and each.x_stages == 3:
                return each
        alone = replace(plain[0], x_stages=3, w_stages=4, consumers=1)
        if itemsize == 2 and twice(alone.room(geometry, after, results)):
            return alone
        x_stages, w_stages = 3, 7
    for each in plain:
        if (each.x_stages, each.w_stages) == (x_stages, w_stages):
            return each
    return plain[0]


def twice(room: int) -> bool:
    """Whether two programs that take so much fit a multiprocessor; each costs a kilobyte more."""
    return 2 * (room + 1024) <= SHARED + 1024
