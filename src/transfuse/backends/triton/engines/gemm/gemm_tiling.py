"""Tiles of the matrix product."""

from collections.abc import Iterator
from dataclasses import dataclass

from transfuse.backends.triton.gpu import SHARED
from transfuse.backends.triton.lower import power


@dataclass(frozen=True)
class GemmTiling:
    """Rows and columns of a tile, the channels of a step, and how programs run."""

    anchors: int
    columns: int
    depth: int
    warps: int
    stages: int

    def __str__(self) -> str:
        tile = f"tile {self.anchors}x{self.columns} depth {self.depth}"
        return f"{tile} warps {self.warps} stages {self.stages}"


def tilings(
    anchors: int, columns: int, least: int, item: int, capability: int
) -> Iterator[GemmTiling]:
    """Tiles for so many rows and columns, ``least`` of these at a time; the first is the best."""
    depth = 128 // item
    wide = max(least, min(128, power(columns)), 16)
    tall = max(16, min(128, power(anchors)))
    for stages in (3, 2):
        if (tall + wide) * depth * item * stages <= SHARED.get(capability, 99_000):
            yield GemmTiling(tall, wide, depth, 4, stages)
