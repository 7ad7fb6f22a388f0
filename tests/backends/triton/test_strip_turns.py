"""The strip loop's warps and barriers: who shares tiles, who takes turns, run in plain Python."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="no Triton here")
pytest.importorskip("triton.experimental.gluon", reason="no Gluon in this Triton")

from transfuse.backends.triton.engines.hopper_strip import strip_layout, strip_turns
from transfuse.backends.triton.engines.hopper_strip.strip_geometry import (
    ResultLayout,
    StripGeometry,
)
from transfuse.backends.triton.engines.hopper_strip.strip_layout import (
    SHARED,
    StripTiling,
    halo_of,
)
from transfuse.backends.triton.engines.hopper_strip.strip_sizes import sizes
from transfuse.backends.triton.epilogue.op_table import OpTable
from transfuse.backends.triton.epilogue.records import Epilogue
from transfuse.geometry import Axis

from .strip_machine import Machine, Rows
from .test_strip_layout import AFTER, CASES, CHANNELS, rows_of, strip_at, table_of

OUTPUTS, DEPTH = 6, 2
ONES = (1, 1, 1, 1, 1)
RESULTS = ResultLayout(ONES, 4)
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
                line = (
                    (fd - td * geometry.step[0]) * geometry.extent[1] + fh - th * geometry.step[1]
                )
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


def softmax() -> Epilogue:
    ops = ("add", "softmax", "add", "sigmoid")
    zeros = (0,) * len(ops)
    none = (None,) * len(ops)
    return replace(AFTER, after=OpTable(ops, zeros, zeros, expr=none))


def layer(
    channels: int, outputs: int, *axes: Axis, itemsize: int = 4
) -> tuple[StripGeometry, ResultLayout]:
    geometry = StripGeometry.of(table_of(axes), 8, outputs, channels, True)
    d, h, w = geometry.results
    return geometry, ResultLayout((outputs * d * h * w, d * h * w, h * w, w, 1), itemsize)


DOUBLING = (Axis(64, 4, 2, 1, 1, 1),) * 2


def faults(itemsize: int, channels: int = 64, **changes: Any) -> str:
    """Why a softmax behind a layer that doubles its input cannot have its consumers take turns."""
    geometry, results = layer(channels, 128, *DOUBLING, itemsize=itemsize)
    (base, *_) = strip_layout.bases(geometry, itemsize, 1)
    base = strip_layout.store_of(geometry, base, softmax(), results)
    return strip_turns.fault(replace(base, own=True, **changes), geometry, softmax(), results)


def test_what_fits() -> None:
    assert faults(4, x_stages=3, w_stages=10) == ""
    assert faults(2, x_stages=3, w_stages=8, hold=True) == ""
    assert f"bytes of shared memory, of {SHARED}" in faults(4, x_stages=4, w_stages=10)
    assert "bytes of shared memory" in faults(4, w_stages=16, hold=True)
    assert "bytes of shared memory" in faults(4, channels=128, w_stages=16)
    assert faults(4, w_stages=7) == "7 of 16 blocks of weights stay"
    assert faults(4, w_stages=16) == "16 of 16 blocks of weights stay"
    assert faults(4, w_stages=8, hold=True) == "8 of 16 blocks of weights stay"
    assert "256 registers of sums" in faults(2, w_stages=8, positions=128, hold=True)
    assert "one consumer" in faults(2, w_stages=8, consumers=1, hold=True)


def test_classes_that_differ_in_work() -> None:
    geometry, results = layer(64, 64, *(Axis(64, 3, 2, 1, 1, 1),) * 2)
    why = strip_turns.fault(replace(OWN, channels=64), geometry, AFTER, results)
    assert "classes differ in work" in why
    geometry, results = layer(64, 640, *DOUBLING)
    assert "20 tiles for each block" in strip_turns.fault(
        replace(OWN, channels=64), geometry, AFTER, results
    )


def test_where_it_pays() -> None:
    """Where finishing takes long beside the products, and only layouts that fit."""
    for itemsize, channels in ((2, 128), (4, 64)):
        geometry, results = layer(channels, 128, *DOUBLING, itemsize=itemsize)
        found = list(strip_turns.configs(geometry, itemsize, softmax(), results))
        assert found
        for each in found:
            assert each.own
            assert each.room(geometry, softmax(), results) <= SHARED
        shared = list(strip_layout.configs(geometry, itemsize, softmax(), results))
        assert shared
        assert not any(each.own for each in shared)
        many, results = layer(1024, 128, *DOUBLING, itemsize=itemsize)
        assert not strip_turns.pays(many, itemsize, softmax())
        assert not list(strip_turns.configs(many, itemsize, softmax(), results))
    few, _ = layer(64, 128, *DOUBLING, itemsize=2)
    assert not strip_turns.pays(few, 2, softmax())
    wide, _ = layer(64, 64, Axis(512, 3), Axis(512, 7))
    assert not strip_turns.pays(wide, 2, AFTER)
