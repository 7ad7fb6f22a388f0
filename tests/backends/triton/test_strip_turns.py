"""The strip loop's warps and barriers: who shares tiles, who takes turns, run in plain Python."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="no Triton here")
pytest.importorskip("triton.experimental.gluon", reason="no Gluon in this Triton")

from transfuse.backends.triton.engines.hopper_strip import strip_layout, strip_turns  # noqa: E402
from transfuse.backends.triton.engines.hopper_strip.strip_geometry import (  # noqa: E402
    ResultLayout,
    StripGeometry,
)
from transfuse.backends.triton.engines.hopper_strip.strip_layout import (  # noqa: E402
    SHARED,
    StripTiling,
    halo_of,
)
from transfuse.backends.triton.engines.hopper_strip.strip_sizes import sizes  # noqa: E402
from transfuse.backends.triton.epilogue.op_table import OpTable  # noqa: E402
from transfuse.geometry import Axis  # noqa: E402

from .test_strip_layout import AFTER, CASES, CHANNELS, rows_of, strip_at, table_of  # noqa: E402

OUTPUTS, DEPTH = 6, 2
ONES = (1, 1, 1, 1, 1)
SHARE = StripTiling(1, 4, 8, DEPTH, 4, 3, 3, 8, store="tile")
OWN = replace(SHARE, own=True)


@dataclass(frozen=True)
class Loop:
    """A problem of integers, and what its tiles are to give."""

    geometry: StripGeometry
    config: StripTiling
    rows: Any  # input, a channel short of ``kept``
    weights: Any  # channels of the output, then slots of ``kept`` of the input

    @property
    def tiles(self) -> int:
        blocks = self.geometry.tiles(self.config.tile)
        return blocks * self.config.tiles_of_block(self.geometry)

    def sums(self, tile: Any, part: int) -> list[Any]:
        """By width class, positions times channels."""
        each, geometry = self.config, self.geometry
        block, cd, ch, channel = tile
        first = block * each.tile
        if not geometry.cross:
            per = geometry.tiles_of_sample(each.tile)
            first = block // per * geometry.sample + block % per * each.tile
        first += part * each.positions + geometry.low
        (fd, nd, sd), (fh, nh, sh) = geometry.entries[0][cd], geometry.entries[1][ch]
        found = [np.zeros((each.positions, each.channels)) for _ in range(geometry.joined)]
        for td in range(nd):
            for th in range(nh):
                line = (fd - td * geometry.step[0]) * geometry.extent[1] + fh - th * geometry.step[1]
                strip = strip_at(
                    self.rows, first + line * geometry.extent[2], each.positions + each.halo
                )
                for c, row, slot in geometry.taps:
                    at = ((sd + td) * geometry.slots[1] + sh + th) * geometry.slots[2] + slot
                    w = self.weights[channel : channel + each.channels].reshape(
                        -1, prod_of(geometry.slots), geometry.kept
                    )[:, at]
                    padded = np.zeros((each.channels, geometry.kept))
                    padded[: len(w)] = w
                    found[c] += strip[row : row + each.positions] @ padded.T
        return found


def prod_of(numbers: tuple[int, ...]) -> int:
    return int(np.prod(numbers))


def loop_of(name: str, config: StripTiling, cross: bool) -> Loop:
    batch, axes = CASES[name]
    kept = CHANNELS + 1  # two blocks of channels
    geometry = StripGeometry.of(table_of(axes), batch, OUTPUTS, kept, cross)
    held = geometry.held(DEPTH)
    config = replace(config, halo=halo_of(geometry.reach))
    if config.hold:
        config = replace(config, w_stages=held)
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (batch, CHANNELS, *(1,) * (3 - len(axes)), *(a.n for a in axes)))
    rows = np.pad(rows_of(x.astype(float), geometry), ((0, 0), (0, 1)))
    shape = OUTPUTS, prod_of(geometry.slots) * kept
    return Loop(geometry, config, rows, rng.integers(-3, 4, shape).astype(float))


def run(loop: Loop, multiprocessors: int, seed: int) -> None:
    """Every tile is finished once, with the right sums, whatever the order of events."""
    from .strip_machine import Machine, Rows

    config, geometry = loop.config, loop.geometry
    programs = config.programs(geometry, multiprocessors)
    told = sizes(geometry, config, ONES)
    static = geometry.pattern(config.channels, ONES), config, AFTER
    x, halo = (Rows(loop.rows, box) for box in (config.box, config.halo))
    w = Rows(loop.weights, config.channels)
    found = set()
    for program in range(min(programs, loop.tiles)):
        machine = Machine(program, min(programs, loop.tiles), seed)
        machine(x, halo, w, loop.tiles, told, static)
        for tile, part, sums in machine.finished:
            assert (*tile, part) not in found, "finished twice"
            found.add((*tile, part))
            for one, other in zip(sums, loop.sums(tile, part), strict=True):
                np.testing.assert_array_equal(one, other)
    assert len(found) == loop.tiles * config.sharing


EVEN, UNEVEN = "stride 2", "3d"
"""Classes that all have two taps along each axis; classes that have one or two."""

LOOPS = {
    "shared": (EVEN, SHARE),
    "shared, classes differ": (UNEVEN, SHARE),
    "shared, one tap each": ("kernel under stride", SHARE),
    "one consumer": (EVEN, replace(SHARE, consumers=1)),
    "held": (EVEN, replace(SHARE, hold=True)),
    "own": (EVEN, replace(OWN, hold=True)),
    "own, half the weights": (EVEN, replace(OWN, w_stages=8)),
    "own, most weights": (EVEN, replace(OWN, w_stages=11)),
    "own, all weights but one": (EVEN, replace(OWN, w_stages=15, x_stages=2)),
    "own, one class": ("asymmetric", replace(OWN, w_stages=30, x_stages=2)),
    "own, one axis": ("1d stride 2", replace(OWN, w_stages=5)),
}


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("name", LOOPS)
def test_order_of_events(name: str, cross: bool) -> None:
    case, config = LOOPS[name]
    loop = loop_of(case, config, cross)
    if config.own:
        assert strip_turns.fault(loop.config, loop.geometry, AFTER, RESULTS) == ""
    for seed, multiprocessors in enumerate((4, 9, 1000)):
        run(loop, multiprocessors, seed)


RESULTS = ResultLayout(ONES, 4)
