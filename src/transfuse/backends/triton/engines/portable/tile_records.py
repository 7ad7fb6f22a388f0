"""Records that the portable kernel's functions hand on: named tuples of values at run time."""

from typing import Any, NamedTuple


class TileSizes(NamedTuple):
    """What a kernel is told of its tiles, all of it as ``told.py`` tells integers.

    Names as in ``tile.Tiled`` and ``tap_table``. Divisors: ``channel_blocks``, ``blocks_of_group``,
    ``split``, ``group_channels``, ``group_outputs`` and those of ``grid``, by which ``anchors.py``
    divides the number of a tile. ``share``: members of a window that one program meets; ``copy``:
    rows of the copied input from one residue, sample, depth, line, position to the next; ``deep``:
    its extent along depth; ``width``: its channels, ``beside`` of them at a time.
    """

    batch: Any
    programs: Any
    channel_blocks: Any
    blocks_of_group: Any
    split: Any
    share: Any
    grid: Any
    copy: Any
    deep: Any
    inputs: Any
    outputs: Any
    results: Any
    tiled: Any
    group_channels: Any
    group_outputs: Any
    kept: Any
    rows: Any
    width: Any


class Factors(NamedTuple):
    """What is multiplied: input and weights as descriptors (or addresses) and as plain addresses,
    and the tap table."""

    x: Any
    w: Any
    rows: Any
    weights: Any
    table: Any


class Cell(NamedTuple):
    """Results that are computed together: a tile of anchors, its first sample, and the classes of
    depth, height and width."""

    tile: Any
    n0: Any
    cd: Any
    ch: Any
    cw: Any


class ChannelBlock(NamedTuple):
    """The channels of a tile: the epilogue's record of them, where their weights begin, the group
    whose inputs they read, and the sign by which a window turns them over."""

    channels: Any
    row: Any
    group: Any
    flip: Any


class Into(NamedTuple):
    """Where the results of a segment go, and the partials of its statistic."""

    out: Any
    to: Any
    partials: Any
    gathered: Any


class Stored(NamedTuple):
    """What is stored of a tile: its group, the block of its channels, its share of a window."""

    group: Any
    of_group: Any
    share: Any


class Taps(NamedTuple):
    """The taps of one (class, member): first offset, count and first slot along each axis."""

    fd: Any
    nd: Any
    sd: Any
    fh: Any
    nh: Any
    sh: Any
    fw: Any
    nw: Any
    sw: Any
