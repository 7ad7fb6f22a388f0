"""What the kernels of the matrix product know: when they are compiled, and when they run."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from transfuse.backends.triton.strides import Three

CAREFUL_POSITIONS, CAREFUL_CHANNELS = 64, 16
"""Of a tile of the careful launch."""


@dataclass(frozen=True)
class GemmTile:
    """A tile of the product, as far as code depends on it.

    Rows are ``held`` of the ``phases`` of so many ``channels``, columns are ``anchors``; a step
    multiplies ``depth`` of the channels summed over. Along each axis ``taps`` inputs meet in an
    output.
    """

    anchors: int
    channels: int
    held: int
    depth: int
    phases: Three
    taps: Three
    channels_last: bool  # the input has its channels innermost; else its positions
    crosses: bool  # anchors run on from one sample into the next
    packed: bool  # weights are packed, by rows; else they lie as they were given
    channels_inner: bool  # rows: all channels of a phase, or else all phases of a channel
    tf32: bool  # the input is rounded to it on its way
    whole: bool  # every channel of every tile is a real one
    cropped: bool  # some outputs of some anchors are no results
    unit: int  # results that are one aligned piece of memory

    @property
    def rows(self) -> int:
        return self.channels * self.held


class GemmSizes(NamedTuple):
    """What the kernel is told when it runs.

    Divisors: blocks of rows and those of one block of phases, blocks of a sample's anchors, steps
    of a tap, then anchors of a sample, of a plane and of a line. ``phase_rows``: from one block of
    phases to the next. Output ``s*a + r - back`` of an axis is phase ``r`` of anchor
    ``a``; the first anchor's first tap reads input ``first``.
    """

    tiles: Any
    rows: Any
    channel_blocks: Any
    phase_rows: Any
    blocks: Any
    steps: Any
    sample: Any
    plane: Any
    line: Any
    anchors: Any
    first: Any
    outputs: Any
    results: Any
    back: Any


@dataclass(frozen=True)
class PhaseWeights:
    """How weights are packed: for every tap of every row of the product the channels summed over.
    Rows are all channels of each phase, or else all phases of each channel."""

    phases: Three
    taps: Three
    channels_inner: bool
    tf32: bool
    block: int = 32
    depth: int = 64


class PhaseWeightSizes(NamedTuple):
    """What ``pack_phases`` is told when it runs: blocks of channels summed over (a divisor), the
    channels of output and those that a phase has rows for (a divisor), those of input and those
    kept of them (a ``PADDED``\\ th), and the rows that are packed."""

    depths: Any
    outputs: Any
    padded: Any
    channels: Any
    kept: Any
    rows: Any


class CarefulSizes(NamedTuple):
    """What ``multiply_carefully`` is told when it runs.

    Divisors: programs of a sample, blocks of its positions, positions of a plane and of a line.
    ``source`` and ``strides`` are those of input and weights.
    """

    copied: Any
    programs: Any
    of_sample: Any
    blocks: Any
    plane: Any
    line: Any
    positions: Any
    channels: Any
    outputs: Any
    padding: Any
    inputs: Any
    source: Any
    strides: Any
