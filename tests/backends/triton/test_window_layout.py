"""The Hopper loop with a window, its numbers checked by doing what its kernel does in NumPy."""

from itertools import product
from math import prod

import numpy as np
import pytest
import torch

from transfuse.backends.triton.engines.hopper_window.window_layout import (
    WindowGeometry,
    choose,
    rings,
    verdict,
)
from transfuse.backends.triton.tap_table import TapTable
from transfuse.geometry import Axis

CASES = {
    "pool 6 of stride 2": ((Axis(9, 5, 2, 2),) * 3, 6),
    "pool 2 of stride 1": ((Axis(7, 5, 1, 1), Axis(8, 5, 1, 1)), 2),
    "pool 2 of stride 2": ((Axis(5, 3, 2, 1, 1, 1),) * 2, 2),
    "pool 4, dilated": ((Axis(9, 3, 1, 0, 2),), 4),
}
CHANNELS, OUTPUTS, BATCH = 3, 2, 3


def table_of(axes: tuple[Axis, ...], pool: int) -> TapTable:
    results = tuple((each.size - pool) // pool + 1 for each in axes)
    return TapTable.of(axes, ((pool, pool, 0),) * len(axes), results, False)


def copy_of(x: np.ndarray, geometry: WindowGeometry) -> np.ndarray:
    """[residues * depth, height, width, samples, channels], the first axis with its halo."""
    copy = np.zeros((prod(geometry.residues), *geometry.extent, BATCH, CHANNELS))
    for n, (d, h, w) in product(range(BATCH), np.ndindex(*x.shape[2:])):
        at = [divmod(i, r) for i, r in zip((d, h, w), geometry.residues, strict=True)]
        (qd, rd), (qh, rh), (qw, rw) = at
        residue = (rd * geometry.residues[1] + rh) * geometry.residues[2] + rw
        if 0 <= qd - geometry.low < geometry.extent[0]:
            copy[residue, qd - geometry.low, qh, qw, n] = x[n, :, d, h, w]
    return copy.reshape(-1, *copy.shape[2:])


def read(copy: np.ndarray, at: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray:
    """A box; zeros outside the copy."""
    found = np.zeros((*box, CHANNELS))
    for i in np.ndindex(*box):
        place = tuple(a + b for a, b in zip(at, i, strict=True))
        if all(0 <= a < n for a, n in zip(place, copy.shape[:4], strict=True)):
            found[i] = copy[place]
    return found.reshape(-1, CHANNELS)


def pooled(
    x: np.ndarray, w: np.ndarray, tap_table: TapTable, geometry: WindowGeometry
) -> np.ndarray:
    """The kernel's walk: box, line of members, pair, tap, copy, product; shares meet at the end."""
    copy = copy_of(x, geometry)
    packed = np.zeros((OUTPUTS, tap_table.slots, CHANNELS))
    for tap, slot in enumerate(tap_table.slot_of_tap()):
        packed[:, slot] = w.reshape(CHANNELS, OUTPUTS, -1)[:, :, tap].T
    out = np.full((BATCH, OUTPUTS, *geometry.results), -np.inf)
    for box in range(2 * geometry.tiles):
        rest, n0 = divmod(box, geometry.boxes[3])
        rest, w0 = divmod(rest, geometry.boxes[2])
        d0, h0 = divmod(rest, geometry.boxes[1])
        corner = [a * b for a, b in zip((d0, h0, w0, n0), geometry.box, strict=True)]
        best = np.full((geometry.positions, OUTPUTS), -np.inf)
        for line in range(geometry.lines * geometry.split):
            fd, nd, sd = geometry.entries[0][line // geometry.members[1]]
            fh, nh, sh = geometry.entries[1][line % geometry.members[1]]
            for top in geometry.tops:
                acc = np.zeros((2, geometry.positions, OUTPUTS))
                for td, th, i in product(range(nd), range(nh), range(len(geometry.below))):
                    offsets = (fd - td * geometry.step[0], fh - th * geometry.step[1])
                    offsets = (*offsets, top - geometry.below[i])
                    parts = [divmod(o, r) for o, r in zip(offsets, geometry.residues, strict=True)]
                    (od, rd), (oh, rh), (ow, rw) = parts
                    deep = (rd * geometry.residues[1] + rh) * geometry.residues[2] + rw
                    deep = deep * geometry.extent[0] + od - geometry.low
                    at = (deep + corner[0], corner[1] + oh, corner[2] + ow, corner[3])
                    rows = read(copy, at, geometry.box)
                    for member, slot in geometry.products[i]:
                        row = ((sd + td) * geometry.slots[1] + sh + th) * geometry.slots[2]
                        acc[member] += rows @ packed[:, row + slot].T
                best = np.maximum(best, acc.max(0))
        for p, (i, j, k, n) in enumerate(np.ndindex(*geometry.box)):
            place = (corner[0] + i, corner[1] + j, corner[2] + k)
            if corner[3] + n < BATCH and all(
                a < b for a, b in zip(place, geometry.results, strict=True)
            ):
                out[(corner[3] + n, slice(None), *place)] = best[p]
    return out


@pytest.mark.parametrize("name", CASES)
def test_pairs_of_members(name: str) -> None:
    axes, pool = CASES[name]
    rank = len(axes)
    tap_table = table_of(axes, pool)
    assert verdict(tap_table, OUTPUTS, 1, "max", False) == ""
    box = (2 if rank > 2 else 1, 2 if rank > 1 else 1, 2, 2)
    split = tap_table.depth.members
    geometry = WindowGeometry.of(tap_table, BATCH, OUTPUTS, CHANNELS, box, split, "max")
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (BATCH, CHANNELS, *(each.n for each in axes))).astype(float)
    w = rng.integers(-3, 4, (CHANNELS, OUTPUTS, *(each.k for each in axes))).astype(float)
    options = [tuple(getattr(each, name) for each in axes) for name in
               ("stride", "padding", "output_padding", "dilation")]  # fmt: skip
    stride, padding, output_padding, dilation = options
    y = getattr(torch.nn.functional, f"conv_transpose{rank}d")(
        torch.from_numpy(x), torch.from_numpy(w), None, stride, padding, output_padding, 1, dilation
    )
    expected = getattr(torch.nn.functional, f"max_pool{rank}d")(y, pool).numpy()
    x = x.reshape(BATCH, CHANNELS, *(1,) * (3 - rank), *x.shape[2:])
    found = pooled(x, w, tap_table, geometry)
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_pairs_share_their_copies() -> None:
    """Of kernel 5 at stride 2, three copies of rows serve five products."""
    geometry = WindowGeometry.of(
        table_of((Axis(32, 5, 2, 2),) * 3, 6), 16, 64, 32, (2, 2, 2, 16), 6, "max"
    )
    assert [len(each) for each in geometry.products] == [2, 2, 1]
    found = rings(geometry, 32, 4)
    assert found is not None
    assert found.shared(geometry) < 227 * 1024
    assert geometry.tiles == 63


def test_choice() -> None:
    """Boxes that waste nothing, and enough shares for every multiprocessor."""
    tap_table = table_of((Axis(32, 5, 2, 2),) * 3, 6)
    found = choose(tap_table, 16, 64, 32, 32, 4, "max", 132)
    assert found is not None
    geometry, _ = found
    assert geometry.box == (2, 2, 2, 16)
    assert geometry.split == 12
    alone = choose(tap_table, 16, 64, 32, 32, 4, "max", 132, shares=False)
    assert alone is not None
    assert alone[0].split == 1


def test_refusals() -> None:
    plain = table_of((Axis(9, 5, 2, 2),) * 2, 6)
    assert "channels" in verdict(plain, 129, 1, "max", False)
    assert "one group" in verdict(plain, 64, 2, "max", False)
    assert "one group" in verdict(plain, 64, 1, "max", True)
    assert "classes" in verdict(table_of((Axis(9, 5, 2),) * 2, 3), 64, 1, "max", False)
