"""The tap table of one axis, by brute force: every (output, tap) pair once, zeros around it."""

from itertools import product
from math import prod
from typing import Any

import pytest

from transfuse.backends.triton.engines.portable.tile import _copied
from transfuse.backends.triton.engines.portable.tiling import Tiling
from transfuse.backends.triton.tap_table import ONE, AxisTaps, TapTable, axis_taps
from transfuse.geometry import Axis, pooled

AXES = [
    Axis(n, k, s, p, d, op)
    for n, k, s, p, d in product((1, 2, 5), (1, 3, 4), (1, 2, 3, 4), (0, 1, 2), (1, 2, 3))
    for op in (0, max(s, d) - 1)
    if Axis(n, k, s, p, d, op).size >= 1
]
WINDOWS = [(1, 1, 0), (2, 2, 0), (3, 2, 1), (2, 1, 0), (1, 3, 0), (6, 6, 0)]


def axes() -> list[Any]:
    """Every axis with every window that it has room for."""
    found = []
    for axis, window in product(AXES, WINDOWS):
        kernel, stride, padding = window
        results = pooled(axis.size, kernel, stride, padding)
        if results and axis.size >= kernel - padding:
            found.append((axis, window, results))
    return found


LINES = axes()


def met(each: AxisTaps, covers: bool = False) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Result and member -> (input, kernel index), as a kernel goes about it."""
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for q, c, r in product(range(each.anchors), range(each.classes), range(each.members)):
        first, count, slot = each.entries[c * each.members + r]
        result = q * each.classes + c
        if result < (each.met if covers else each.results):
            taps = [(q * each.residues + first - t * each.step, slot + t) for t in range(count)]
            found = pairs.setdefault((result, r), [])
            found += [(i, each.order[slot]) for i, slot in taps if 0 <= i < each.inputs]
    return pairs


def test_every_pair_once() -> None:
    """Those of the definition, ``i*s = o + p - k*d``, for every output a window has in it."""
    for axis, window, results in LINES:
        each = axis_taps(axis, window, results, cover=False)
        found = met(each)
        for y, r in product(range(results), range(window[0])):
            o = window[1] * y - window[2] + r
            if 0 <= o < axis.size:
                right = {
                    (i, k)
                    for i, k in product(range(axis.n), range(axis.k))
                    if i * axis.stride == o + axis.padding - k * axis.dilation
                }
                assert len(found[y, r]) == len(right), (axis, window, y, r)
                assert set(found[y, r]) == right, (axis, window, y, r)


def test_without_a_window_classes_are_phases() -> None:
    for axis in AXES:
        each = axis_taps(axis, (1, 1, 0), axis.size, cover=False)
        pairs = met(each)
        for phase in axis.phases():
            for j in range(phase.count):
                right = {(j + at, k) for k, at in phase.taps if 0 <= j + at < axis.n}
                assert set(pairs[phase.start + j * axis.stride, 0]) == right, (axis, phase, j)
        assert sum(map(len, pairs.values())) == axis.pairs()


def test_a_statistic_covers_outputs_that_no_window_has() -> None:
    for axis, window, results in LINES:
        if window[0] == window[1] and not window[2]:
            each = axis_taps(axis, window, results, cover=True)
            outputs = {y * window[1] + r for y, r in met(each, covers=True)}
            assert outputs >= set(range(axis.size)), (axis, window)


def test_order_is_a_permutation() -> None:
    for axis, window, results in LINES:
        order = axis_taps(axis, window, results, cover=False).order
        assert sorted(order) == list(range(axis.k))


def test_bounds_and_counts() -> None:
    for axis, window, results in LINES:
        each = axis_taps(axis, window, results, cover=False)
        offsets = [
            (first - t * each.step) // each.residues
            for first, count, _ in each.entries
            for t in range(count)
        ]
        assert (each.low, each.high) == (min(offsets, default=0), max(offsets, default=0))
        triples = [
            q * each.residues + first - t * each.step
            for q in range(each.anchors)
            for first, count, _ in each.entries
            for t in range(count)
        ]
        assert each.reads == len(triples)
        assert each.found == sum(0 <= i < axis.n for i in triples)


def test_zeros_between_lines_serve_both() -> None:
    """In a flat copy a tap outside the input must find a zero, never a neighbour's input."""
    for axis, window, results in LINES:
        each = axis_taps(axis, window, results, cover=False)
        pitch = each.pitch
        assert pitch >= max(each.kept, each.anchors)
        for q, c, r in product(range(each.anchors), range(each.classes), range(each.members)):
            if q * each.classes + c >= each.met:
                continue
            first, count, _ = each.entries[c * each.members + r]
            for t in range(count):
                offset = first - t * each.step
                i, shift = q * each.residues + offset, q + offset // each.residues
                residue = i % each.residues
                at, row = divmod(pitch + shift, pitch)  # the middle one of three axes
                holds = row * each.residues + residue
                if 0 <= i < each.inputs:
                    assert (at, holds) == (1, i), (axis, window, q, c, r, t)
                else:
                    assert row >= each.kept or holds >= each.inputs, (axis, window, q, c, r, t)


def test_halo_holds_every_shift() -> None:
    for axis, window, results in LINES:
        each = axis_taps(axis, window, results, cover=False)
        for q, (first, count, _) in product(range(each.anchors), each.entries):
            for t in range(count):
                row = q + (first - t * each.step) // each.residues - each.low
                assert 0 <= row < each.haloed


@pytest.mark.parametrize("box", [(1, 2, 2, 4), (2, 2, 2, 2), (1, 1, 1, 16)])
@pytest.mark.parametrize("form", ["rows", "box", "batch"])
def test_copies_hold_every_input(form: str, box: tuple[int, int, int, int]) -> None:
    axes = (Axis(3, 2, 2), Axis(4, 3, 1, 1), Axis(5, 3, 3, 0, 2))
    tap_table = TapTable.of(axes, ((2, 2, 0),) * 3, (2, 2, 7), cover=False)
    extent, residues, low = _copied(tap_table, Tiling(form, box, 16, 16, 4, 2))
    for axis, (n, e, r) in enumerate(zip((3, 4, 5), extent, residues, strict=True)):
        if axis or form != "batch":  # of depth, what the results need
            assert e * r >= n
    assert low <= 0


def test_three_axes() -> None:
    axes = (Axis(4, 3, 2, 1), Axis(5, 2))
    tap_table = TapTable.of(axes, ((1, 1, 0),) * 2, tuple(a.size for a in axes), cover=False)
    assert tap_table.depth == ONE
    assert tap_table.each("inputs") == (1, 4, 5)
    assert tap_table.classes == 2
    assert tap_table.slots == 6
    slots = tap_table.slot_of_tap()
    assert sorted(slots) == list(range(6))
    order = tap_table.height.order
    for i, j in product(range(3), range(2)):
        slot = slots[i * 2 + j]
        assert (order[slot // 2], tap_table.width.order[slot % 2]) == (i, j)
    assert len(tap_table.flat) == 3 * sum(len(each.entries) for each in tap_table.axes)


@pytest.mark.parametrize(
    ("axes", "leaves"),
    [
        ((Axis(5, 2, 2), Axis(3, 3, 3)), False),
        ((Axis(5, 1), Axis(3, 1)), False),
        ((Axis(5, 2), Axis(3, 1)), True),
        ((Axis(5, 2, 2, 0, 1, 1),), True),
        ((Axis(5, 4, 2, 1),), True),
    ],
)
def test_taps_leave_the_input(axes: tuple[Axis, ...], leaves: bool) -> None:
    """Kernel = stride: every tap of every output finds its input."""
    sizes = tuple(axis.size for axis in axes)
    tap_table = TapTable.of(axes, ((1, 1, 0),) * len(axes), sizes, cover=False)
    assert tap_table.leaves == leaves
    assert prod(each.reads for each in tap_table.axes) >= prod(axis.pairs() for axis in axes)
