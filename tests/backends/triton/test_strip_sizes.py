"""The integers that the kernel of strips is told: what it does with them, done in plain Python."""

import random
from itertools import product

import pytest

from transfuse.backends.triton.engines.hopper_records import StripSizes
from transfuse.backends.triton.engines.hopper_strip.strip_geometry import StripGeometry
from transfuse.backends.triton.engines.hopper_strip.strip_layout import StripTiling
from transfuse.backends.triton.engines.hopper_strip.strip_sizes import divisor, sizes
from transfuse.backends.triton.strides import Five
from transfuse.geometry import Axis

from .test_strip_layout import CASES, CHANNELS, OUTPUTS, table_of

MISSING = {
    "one wide": (3, (Axis(9, 3), Axis(1, 1))),
    "one high": (2, (Axis(5, 2, 2), Axis(1, 1), Axis(7, 3))),
    "one deep": (2, (Axis(1, 1), Axis(5, 3), Axis(7, 4, 2, 1))),
}
TILING = StripTiling(0, 16, 8, 16, 2, 2, 2, 8)


def quotient(n: int, by: tuple[int, int]) -> int:
    """As ``strip_store.quotient``: a product of 32 bits each, its upper half shifted."""
    magic, shift = by
    assert 0 <= n < 2**31
    assert -(2**31) <= magic < 2**31
    return (n * (magic % 2**32) >> 32) >> shift


def test_divisors() -> None:
    draw = random.Random(0)
    numbers = [2, 3, 5, 7, 2**16 - 1, 2**16, 2**16 + 1, 2**30, 2**31 - 1]
    numbers += [draw.randrange(2, 2 ** draw.randrange(2, 32)) for _ in range(300)]
    for number in numbers:
        by = divisor(number)
        near = [number * k + off for k in (1, 2, 2**31 // number) for off in (-1, 0, 1)]
        for n in [0, 1, 2**31 - 1, *near, *(draw.randrange(2**31) for _ in range(20))]:
            if 0 <= n < 2**31:
                assert quotient(n, by) == n // number, (n, number)


def test_one_is_no_divisor() -> None:
    with pytest.raises(AssertionError, match="1 is no divisor"):
        divisor(1)


def told(geometry: StripGeometry, strides: Five) -> StripSizes:
    """The record that the kernel makes of its arguments, whose tells are undone."""
    (*first, depth, height, width), rest = split(sizes(geometry, TILING, strides), 14)
    by, (*five, span, entries) = split(rest, 10)
    pairs = zip(by[::2], by[1::2], strict=True)
    plain = [(n - 3) // 2 for n in entries]
    return StripSizes(*first, (depth, height, width), *pairs, tuple(five), span, plain)


def split(values: list, at: int) -> tuple[list, list]:
    return values[:at], values[at:]


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("name", [*CASES, *MISSING])
def test_places(name: str, cross: bool) -> None:
    """Every result is met once, where it lies, and its taps start at the row of its anchor."""
    batch, axes = (CASES | MISSING)[name]
    geometry = StripGeometry.of(table_of(axes), batch, OUTPUTS, CHANNELS, cross)
    d, h, w = geometry.results
    strides = (OUTPUTS * d * h * w, d * h * w, h * w, w, 1)
    pattern, tell = geometry.pattern(TILING.channels, strides), told(geometry, strides)
    tile, joined = TILING.tile, geometry.joined
    met: dict[int, int] = {}
    for block, cd, ch in product(
        range(geometry.tiles(tile)), range(geometry.classes[0]), range(geometry.classes[1])
    ):
        if cross:
            n0 = quotient(block * tile, tell.by_sample)
            start = block * tile
            begin = (block * tile - n0 * tell.sample) * joined
        else:
            n0 = quotient(2 * block, tell.by_tiles)
            inside = (block - n0 * tell.tiles_of_sample) * tile
            start, begin = n0 * tell.sample + inside, inside * joined
        fd, nd, _ = tell.entries[3 * cd : 3 * cd + 3]
        fh, nh, _ = tell.entries[3 * (geometry.classes[0] + ch) :][:3]
        assert (nd, nh) == (geometry.entries[0][cd][1], geometry.entries[1][ch][1])
        row = start + tell.low + (fd * tell.high + fh) * tell.wide
        lines = geometry.entries[0][cd][0] * geometry.extent[1] + geometry.entries[1][ch][0]
        assert row == start + geometry.low + lines * geometry.extent[2]
        for p in range(tile * joined):
            at, n = begin + p, n0
            there = at < tell.space
            if cross:
                ahead = quotient(at, tell.by_space)
                at, n = at - ahead * tell.space, n0 + ahead
                there = n < tell.batch
            y = [0, 0, 0]
            if pattern.rank > 2:
                y[0] = quotient(at, tell.by_area)
                at -= y[0] * tell.area
            if pattern.rank > 1:
                y[1] = at if pattern.thin else quotient(at, tell.by_line)
                at -= y[1] * tell.line
            y = [y[0] * geometry.classes[0] + cd, y[1] * geometry.classes[1] + ch, at]
            if pattern.linear:
                assert there == (begin + p < d * h * w)
            elif not all(i < n for i, n in zip(y, tell.results, strict=True)):
                there = False
            if there:
                place = n * tell.strides[0] + sum(
                    i * s for i, s in zip(y, tell.strides[2:], strict=True)
                )
                anchor = ((n * geometry.extent[0] + y[0] // geometry.classes[0]) * tell.high
                          + y[1] // geometry.classes[1]) * tell.wide + y[2] // joined  # fmt: skip
                assert place not in met, "met twice"
                assert place - n0 * tell.strides[0] + (OUTPUTS - 1) * tell.strides[1] < tell.span
                assert start + p // joined == anchor
                met[place] = p
    assert len(met) == batch * d * h * w


def test_padding_changes_no_pattern() -> None:
    """Padding by whole strides moves rows, and leaves what is compiled as it is."""
    found = set()
    for padding in (0, 2, 4):
        axes = (Axis(9, 6, 2, padding), Axis(30, 7, 2, padding, 1))
        geometry = StripGeometry.of(table_of(axes), 2, OUTPUTS, CHANNELS, True)
        found.add(geometry.pattern(16, (0, 0, 0, 0, 1)))
    assert len(found) == 1
