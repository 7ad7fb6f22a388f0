"""Tiles of the matrix product."""

from collections.abc import Iterator
from dataclasses import dataclass

from transfuse.backends.triton.gpu import SHARED, Gpu

WARPS = 4
"""One warpgroup: where there are more, Triton 3.6 lets one of them overwrite what another reads."""
AT_ONCE = 2
"""Programs that run at once on a multiprocessor."""


@dataclass(frozen=True)
class GemmTiling:
    """Rows and columns of a tile, the channels of a step, the steps that are loaded ahead."""

    rows: int
    anchors: int
    depth: int
    stages: int

    def __str__(self) -> str:
        tile = f"tile {self.rows}x{self.anchors} depth {self.depth}"
        return f"{tile} stages {self.stages}"


def tilings(rows: int, anchors: int, least: int, item: int, gpu: Gpu) -> Iterator[GemmTiling]:
    """Tiles for so many rows, ``least`` of them at a time, and anchors; the first is the best."""
    depth = 128 // item
    shared = SHARED.get(gpu.capability, 99_000)
    found = []
    for tall in (128, 64):
        for wide in (128, 64):
            tiles = -(-rows // tall) * -(-anchors // wide)
            rounds = -(-tiles // (AT_ONCE * gpu.multiprocessors))
            stages = next(
                (n for n in (3, 2) if (tall + wide) * depth * item * n <= shared // AT_ONCE), 0
            )
            if tall >= least and stages:
                # A tile half as large takes more than half as long.
                found.append(
                    (rounds * (tall + 32) * (wide + 32), GemmTiling(tall, wide, depth, stages))
                )
    for _, each in sorted(found, key=lambda pair: pair[0]):
        yield each
