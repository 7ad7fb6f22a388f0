"""The copies a convolution reads: how input and weights lie in them. Plain integers and names.

``Copies`` are the numbers; of these, and of how tensors lie, ``PackedInput`` and ``PackedWeights``
hold what the kernel is compiled for, ``InputSizes`` and ``WeightSizes`` what it is told.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from transfuse.backends.triton.epilogue.op_table import OpTable
from transfuse.backends.triton.segments import power
from transfuse.backends.triton.strides import CHANNELS, WIDTH, Five, Three, inner

PADDED = 16
"""Channels of a group are padded to a multiple of it, unless a group has one."""


@dataclass(frozen=True)
class Copies:
    """Rows of channels: (residue, sample, depth, height, width), or samples innermost; and rows of
    output channels with a slot of ``kept`` input channels for each tap.

    ``extent`` are the sizes of the copy of the input, whose first depth is ``low``.
    """

    extent: Three
    residues: Three
    low: int
    samples_last: bool
    taps: Three
    groups: int
    group_channels: int
    group_outputs: int
    kept: int
    rows: int

    @property
    def channels(self) -> int:
        """Of a row of the input."""
        return self.groups * self.kept

    @property
    def plane(self) -> int:
        return self.extent[1] * self.extent[2]

    @property
    def slots(self) -> int:
        return prod(self.taps)

    def input_rows(self, batch: int) -> int:
        return prod(self.residues) * batch * prod(self.extent)

    @property
    def weight_sizes(self) -> tuple[int, int]:
        return self.groups * self.rows, self.slots * self.kept

    def strides(self, batch: int) -> Five:
        """Rows of the input from one residue, sample, depth, line, position to the next."""
        d, h, w = self.extent
        if self.samples_last:
            return batch * d * h * w, 1, batch * h * w, batch * w, batch
        return batch * d * h * w, d * h * w, h * w, w, 1

    def axes(self, batch: int, form: str) -> tuple[int, ...]:
        """The copy of the input as the five axes that a form reads."""
        residues, (d, h, w) = prod(self.residues), self.extent
        if form == "rows":
            return 1, 1, 1, self.input_rows(batch), self.channels
        if form == "box":
            return residues * batch, d, h, w, self.channels
        return residues * d, h, w, batch, self.channels


@dataclass(frozen=True)
class PackedInput:
    """What ``pack`` is compiled for, of the input.

    ``inner``: the axis along which it lies side by side; ``unit``: so many of them, or of those of
    a window's line, are one aligned piece; ``run``: elements of a window that lie side by side and
    are loaded at once; ``padded``: the copy's channels are a multiple of ``PADDED``; ``grouped``:
    they are those of several groups; ``whole``: blocks of them hold real channels alone.
    """

    inner: int
    unit: int
    pool: str
    kernel: Three
    stride: Three
    padding: Three
    run: int
    residues: Three
    low: int
    samples_last: bool
    padded: bool
    grouped: bool
    whole: bool
    block_c: int
    block_p: int
    before: OpTable
    after: OpTable
    tf32: bool
    wide: bool  # offsets within a sample of the input pass 32 bits
    far: bool  # those within a plane of the copy do

    @property
    def members(self) -> int:
        """Loads for one window."""
        return prod(self.kernel) // self.run

    @property
    def samples(self) -> int:
        """Samples of one program: side by side in the copy, if they are innermost there."""
        return 4 if self.samples_last else 1

    @property
    def plain(self) -> bool:
        """Nothing is done with the input: what is not there is loaded as 0 and stays 0."""
        return not (self.pool or self.before.ops or self.after.ops)


class InputSizes(NamedTuple):
    """What ``pack`` is told of the input. Divisors: ``channel_blocks``, ``plane_blocks``, ``deep``
    (the copy's depth), ``sample_blocks``, ``line`` and ``kept``. ``width``: the copy's channels,
    where these are padded a ``PADDED``\\ th of them."""

    batch: Any
    block: Any
    strides: Any
    source: Any
    inputs: Any
    channel_blocks: Any
    plane_blocks: Any
    deep: Any
    sample_blocks: Any
    plane: Any
    line: Any
    kept: Any
    group_channels: Any
    width: Any


@dataclass(frozen=True)
class PackedWeights:
    """What ``pack`` is compiled for, of the weights."""

    taps: Three
    padded: bool
    block_t: int
    block_c: int
    tf32: bool

    @property
    def slots(self) -> int:
        return prod(self.taps)

    @property
    def tap_blocks(self) -> int:
        return -(-self.slots // self.block_t)


class WeightSizes(NamedTuple):
    """What ``pack`` is told of the weights. Divisors: ``channel_blocks``, ``rows``. ``kept``: where
    channels are padded a ``PADDED``\\ th of those of a slot."""

    programs: Any
    strides: Any
    channel_blocks: Any
    rows: Any
    group_channels: Any
    group_outputs: Any
    kept: Any


def block_of(channels: int) -> tuple[int, int]:
    """Channels and positions of one program; not by the size of a plane, for the sake of builds."""
    block_c = min(power(channels), 64)
    return block_c, min(1024, 4096 // block_c)


def unit_of(copies: Copies, strides: Five, inputs: int, run: int, most: int) -> int:
    """How many neighbours are one aligned piece of the input, wherever they start: ``most``, or 2.

    Along width, ``inputs`` are those of a line, each of them of a ``run`` of elements.
    """
    if inner(strides) == CHANNELS:
        channels = copies.group_channels
        if copies.groups > 1 and channels != copies.kept:  # blocks are not of neighbours
            return 1
        sizes: tuple[int, ...] = strides[0], *strides[2:], channels
    elif inner(strides) == WIDTH and copies.residues[2] == 1:
        sizes = *strides[:4], copies.extent[2] * run, inputs * run
    else:
        return 1
    return next((unit for unit in (most, 2) if not any(size % unit for size in sizes)), 1)
