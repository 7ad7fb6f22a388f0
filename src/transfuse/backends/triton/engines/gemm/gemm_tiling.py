"""Tiles of the matrix product: few kinds, since a kernel is built for each."""

from dataclasses import dataclass

from transfuse.backends.triton.gpu import SHARED, Gpu
from transfuse.backends.triton.segments import power

WARPS = 4
"""One warpgroup: where there are more, Triton 3.6 lets one of them overwrite what another reads."""


@dataclass(frozen=True)
class GemmTiling:
    """Rows of a tile, ``held`` phases of so many channels, and its anchors; the channels of a step,
    the steps that are loaded ahead, and the programs that run at once on a multiprocessor."""

    channels: int
    held: int
    anchors: int
    depth: int
    stages: int
    at_once: int

    @property
    def rows(self) -> int:
        return self.channels * self.held

    def __str__(self) -> str:
        tile = f"tile {self.rows}x{self.anchors} depth {self.depth}"
        return f"{tile} stages {self.stages}"

    def row_blocks(self, outputs: int, phases: int) -> int:
        """Tiles that share their anchors, of so many channels and phases."""
        return -(-outputs // self.channels) * -(-phases // self.held)


def tiling(
    outputs: int, phases: int, anchors: int, inner: bool, staged: bool, item: int, gpu: Gpu
) -> GemmTiling | None:
    """The tiles for so many channels, phases of these and anchors; None where none will do.

    ``inner``: results have their channels innermost, so that a tile holds many of these; else it
    holds all phases of a channel, whose results are neighbours. ``staged``: all of a tile is turned
    around in shared memory before it is stored, which leaves no room for a second program.
    """
    rows = outputs * phases
    # Half as many rows where the last tile would be half empty.
    tall = 64 if -(-rows // 128) * 128 > 1.2 * (-(-rows // 64) * 64) else 128
    if not inner and 2 * phases > tall:
        tall = 128
    held = min(phases, tall // 2, tall // min(power(outputs), tall)) if inner else phases
    channels = tall // max(held, 1)
    if channels < 2:
        return None
    found = GemmTiling(channels, held, 128, 128 // item, *((4, 1) if staged else (3, 2)))
    tiles = found.row_blocks(outputs, phases) * -(-anchors // found.anchors)
    if tiles < gpu.multiprocessors and tall == 128:
        found = GemmTiling(channels, held, 64, 128 // item, 3, 3)
    return _fitting(found, item, SHARED.get(gpu.capability, 99_000))


def _fitting(found: GemmTiling, item: int, shared: int) -> GemmTiling | None:
    """The same tiles with as many stages as fit shared memory."""
    step = (found.rows + found.anchors) * found.depth * item
    left = shared - found.rows * found.anchors * item
    stages = min(found.stages, left // step)
    if stages < 2:
        return None
    at_once = max(1, min(found.at_once, shared // (stages * step)))
    return GemmTiling(found.channels, found.held, found.anchors, found.depth, stages, at_once)
