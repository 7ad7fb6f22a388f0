"""The Hopper loop's numbers, checked by doing what its kernel does in plain NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from transfuse.backends.triton.engines.hopper_strip.strip_geometry import (
    ResultLayout,
    StripGeometry,
)
from transfuse.backends.triton.engines.hopper_strip.strip_layout import (
    StripTiling,
    configs,
    depth_of,
    halo_of,
    verdict,
)
from transfuse.backends.triton.epilogue.op_table import OpTable
from transfuse.backends.triton.epilogue.records import Epilogue
from transfuse.backends.triton.strides import WIDTH
from transfuse.backends.triton.tap_table import TapTable
from transfuse.geometry import Axis

CASES = {
    "1d": (2, (Axis(9, 5),)),
    "1d stride 2": (3, (Axis(7, 4, 2, 1, 1, 1),)),
    "asymmetric": (2, (Axis(6, 3), Axis(5, 7))),
    "stride 2": (2, (Axis(5, 4, 2, 1, 1, 1), Axis(6, 4, 2, 1, 1, 1))),
    "dilated": (1, (Axis(5, 3, 2, 1, 3, 1), Axis(6, 3, 2, 1, 2, 1))),
    "widely dilated": (2, (Axis(4, 2, 1, 1, 4), Axis(9, 3, 1, 1, 4))),
    "kernel under stride": (2, (Axis(4, 1, 2, 0, 1, 1), Axis(3, 1, 2, 0, 1, 1))),
    "stride 3 by 2": (1, (Axis(4, 5, 3, 0, 1, 2), Axis(5, 3, 2, 0, 1, 1))),
    "3d": (2, (Axis(3, 3, 2, 1, 1, 1),) * 3),
}
CHANNELS, OUTPUTS = 3, 2
NONE = OpTable()
AFTER = Epilogue(NONE, NONE, 0, "", "", summed=False, stored=True, inner=WIDTH, unit=4, wide=False)


def table_of(axes: tuple[Axis, ...]) -> TapTable:
    return TapTable.of(axes, ((1, 1, 0),) * len(axes), tuple(each.size for each in axes), False)


def rows_of(x: np.ndarray, geometry: StripGeometry) -> np.ndarray:
    """The input as the kernel reads it, with room for every row out of bounds."""
    d, h, w = x.shape[2:]
    rows = np.zeros((geometry.batch, *geometry.extent, CHANNELS))
    rows[:, :d, :h, :w] = x.transpose(0, 2, 3, 4, 1)
    return rows.reshape(-1, CHANNELS)


def strip_at(rows: np.ndarray, row: int, count: int) -> np.ndarray:
    """What a copy brings: zeros outside the tensor."""
    at = np.arange(row, row + count)
    inside = (at >= 0) & (at < len(rows))
    return np.where(inside[:, None], rows[np.clip(at, 0, len(rows) - 1)], 0.0)


def convolve(x: np.ndarray, w: np.ndarray, tap_table: TapTable, geometry: StripGeometry, tile: int):
    """The kernel's walk: block, class, strip, tap; then each valid position to its place."""
    rows = rows_of(x, geometry)
    packed = np.zeros((OUTPUTS, tap_table.slots, CHANNELS))
    for tap, slot in enumerate(tap_table.slot_of_tap()):
        packed[:, slot] = w.reshape(CHANNELS, OUTPUTS, -1)[:, :, tap].T
    out = np.full((geometry.batch, OUTPUTS, *geometry.results), np.nan)
    _, high, wide = geometry.extent
    for block in range(geometry.tiles(tile)):
        per = geometry.tiles_of_sample(tile)
        g0 = block * tile
        if not geometry.cross:
            g0 = block // per * geometry.sample + block % per * tile
        for cd in range(geometry.classes[0]):
            for ch in range(geometry.classes[1]):
                acc = np.zeros((geometry.joined, tile, OUTPUTS))
                fd, nd, sd = geometry.entries[0][cd]
                fh, nh, sh = geometry.entries[1][ch]
                for td in range(nd):
                    for th in range(nh):
                        line = (fd - td * geometry.step[0]) * high + fh - th * geometry.step[1]
                        start = g0 + geometry.low + line * wide
                        strip = strip_at(rows, start, tile + halo_of(geometry.reach))
                        for c, row, slot in geometry.taps:
                            at = ((sd + td) * geometry.slots[1] + sh + th) * geometry.slots[2]
                            acc[c] += strip[row : row + tile] @ packed[:, at + slot].T
                for p in range(tile):
                    g = g0 + p
                    n, at = divmod(g, geometry.sample)
                    if n >= geometry.batch or (not geometry.cross and n != block // per):
                        continue
                    y = [
                        at // (high * wide) * geometry.classes[0] + cd,
                        at // wide % high * geometry.classes[1] + ch,
                        at % wide * geometry.joined,
                    ]
                    for c in range(geometry.joined):
                        place = (y[0], y[1], y[2] + c)
                        if all(i < r for i, r in zip(place, geometry.results, strict=True)):
                            assert np.isnan(out[(n, slice(None), *place)]).all(), "stored twice"
                            out[(n, slice(None), *place)] = acc[c, p]
    return out


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_strips_views_and_places(name: str, cross: bool) -> None:
    batch, axes = CASES[name]
    tap_table = table_of(axes)
    assert verdict(tap_table, 64, 4, 1, False) == ""
    geometry = StripGeometry.of(tap_table, batch, OUTPUTS, CHANNELS, cross)
    rng = np.random.default_rng(0)
    rank = len(axes)
    x = rng.integers(-3, 4, (batch, CHANNELS, *(each.n for each in axes))).astype(float)
    w = rng.integers(-3, 4, (CHANNELS, OUTPUTS, *(each.k for each in axes))).astype(float)
    options = [tuple(getattr(each, name) for each in axes) for name in
               ("stride", "padding", "output_padding", "dilation")]  # fmt: skip
    stride, padding, output_padding, dilation = options
    function = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    expected = function(
        torch.from_numpy(x), torch.from_numpy(w), None, stride, padding, output_padding, 1, dilation
    ).numpy()
    x = x.reshape(batch, CHANNELS, *(1,) * (3 - rank), *x.shape[2:])
    found = convolve(x, w, tap_table, geometry, tile=16)
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_layouts_fit() -> None:
    tap_table = table_of((Axis(512, 3), Axis(512, 7)))
    geometry = StripGeometry.of(tap_table, 8, 64, 64, False)
    for itemsize in (2, 4):
        results = ResultLayout((64 * 514 * 518, 514 * 518, 0, 518, 1), itemsize)
        found = list(configs(geometry, itemsize, AFTER, results))
        assert found[0].positions == 256
        assert all(isinstance(each, StripTiling) and each.shared <= 227 * 1024 for each in found)
        assert all(each.accumulators(geometry) <= 128 for each in found)


def test_many_channels() -> None:
    """Blocks of 128 for each class, unless all channels must meet in one tile."""
    tap_table = table_of((Axis(8, 3, 3), Axis(20, 4, 2, 1)))
    geometry = StripGeometry.of(tap_table, 2, 300, 16, True)
    results = ResultLayout((300 * 1000, 1000, 0, 40, 1), 2)
    config = next(configs(geometry, 2, AFTER, results))
    assert config.channels == 128
    assert config.tiles_of_block(geometry) == 3 * 3
    softmax = replace(
        AFTER,
        after=OpTable(("softmax",), at=(0,), number=(0,), size=(1,), count=(1,), factor=(-1,)),
    )
    assert not list(configs(geometry, 2, softmax, results))


def test_blocks_of_channels() -> None:
    assert depth_of(64, 4) == 32
    assert depth_of(64, 2) == 64
    assert depth_of(32, 2) == 32
    assert depth_of(8, 4) == 16
    assert depth_of(96, 2) == 32  # three of 64 bytes, not two of 128


def test_refusals() -> None:
    tap_table = table_of((Axis(8, 3, 3),))
    assert "width classes" in verdict(tap_table, 64, 4, 1, False)
    tap_table = table_of((Axis(8, 3, 2),))
    assert "groups" in verdict(tap_table, 64, 4, 2, False)
    assert "window" in verdict(tap_table, 64, 4, 1, True)
    assert "tensor cores" in verdict(tap_table, 64, 8, 1, False)
    tap_table = table_of((Axis(400, 3, 1, 0, 200),))
    assert "beyond its tile" in verdict(tap_table, 64, 4, 1, False)
