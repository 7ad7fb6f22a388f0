"""Records that the functions of Hopper's kernels hand on: named tuples of values at run time."""

from typing import Any, NamedTuple


class Ring(NamedTuple):
    """A ring of buffers in shared memory: a producer fills a slot, the consumers empty it.

    ``full`` and ``empty`` are barriers, one for each slot.
    """

    slots: Any
    full: Any
    empty: Any


class Results(NamedTuple):
    """Where results go and what they meet on the way: the output, the epilogue's operands. For a
    statistic, where partials lie, from one of their numbers to the next, how many tiles share one,
    and how many channels there are partials of."""

    out: Any
    operands: Any
    partials: Any = None
    plane: Any = None
    sharing: Any = None
    counted: Any = None


class StripSizes(NamedTuple):
    """What a build of the strips does not know: the sizes of a problem.

    A ``line`` is a line of the copy in results, an ``area`` the lines of one depth, a ``space``
    those of a sample. ``by_...`` has what ``quotient`` divides by (``by_tiles``: by twice as many).
    ``strides`` of samples, channels, depth, height and width; the first two count vectors.
    """

    batch: Any
    channels: Any  # of the output
    kept: Any  # of the input, padded: one slot of the packed weights
    high: Any  # lines of one depth
    wide: Any  # rows of a line
    sample: Any  # rows of a sample
    tiles_of_sample: Any  # where tiles do not cross samples
    low: Any  # the first row of a strip, from a tile's first anchor
    line: Any
    area: Any
    space: Any
    results: Any  # depth, height, width
    by_line: Any
    by_area: Any
    by_space: Any
    by_sample: Any
    by_tiles: Any
    strides: Any
    span: Any  # elements from a sample's first result on that a tile may reach
    entries: Any  # first, count, slot of each class of depth, then of height


class Halves(NamedTuple):
    """Addresses as lower and upper half, and one of their type."""

    low: Any
    high: Any
    like: Any


class StripTile(NamedTuple):
    """A tile of strips: its block of anchors, classes of depth and height, first channel."""

    block: Any
    cd: Any
    ch: Any
    channel: Any


class WindowSizes(NamedTuple):
    """What a build of the windows does not know: the sizes of a problem.

    ``boxes`` along height, width and samples; ``strides`` of samples, channels, depth, height and
    width; ``part`` from the results of one share of the members to those of the next.
    """

    batch: Any
    channels: Any  # of the output
    kept: Any  # of the input, padded: one slot of the packed weights
    haloed: Any  # rows of a residue along the depth
    low: Any  # the depth of row 0
    split: Any  # programs that share the members
    boxes: Any
    results: Any  # depth, height, width
    strides: Any
    part: Any
    entries: Any  # first, count, slot of each member of depth, then of height
    tops: Any  # by pair of width members: its highest offset
