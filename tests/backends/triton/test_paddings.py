"""The GPU where outputs begin before the first tap and end beyond the last: taps and kernels.

Problems that torch has no options for; the definition is ``scatter``.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch

from transfuse.backends.triton.engines.hopper_window import window_layout
from transfuse.backends.triton.engines.portable.tile import Tiled
from transfuse.backends.triton.engines.portable.tiling import Tiling
from transfuse.backends.triton.engines.workload import Workload
from transfuse.backends.triton.tap_table import TapTable, axis_taps
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.geometry import Axis, pooled
from transfuse.problem import DTYPES, Problem
from transfuse.reference import scatter
from transfuse.stages import conv_transpose, max_pool

AXES = [
    Axis(n, k, s, p, d, op)
    for n, k, s, p, d in product((1, 3), (1, 3), (1, 2, 3), (-7, -2, 4), (1, 3))
    for op in (-6, -1, 2, 11)
    if Axis(n, k, s, p, d, op).size >= 1
]
WINDOWS = [(1, 1, 0), (2, 2, 0), (3, 2, 1)]


def test_taps_meet_every_pair_and_zeros_elsewhere() -> None:
    """``i*s = o + p - k*d``; in a flat copy a tap outside the input finds no neighbour's input."""
    for axis, (kernel, stride, padding) in product(AXES, WINDOWS):
        results = pooled(axis.size, kernel, stride, padding)
        if not results or axis.size < kernel - padding:
            continue
        each = axis_taps(axis, (kernel, stride, padding), results, cover=False)
        for y, r in product(range(results), range(kernel)):
            o = stride * y - padding + r
            if not 0 <= o < axis.size:
                continue
            q, c = divmod(y, each.classes)
            first, count, slot = each.entries[c * each.members + r]
            met = set()
            for t in range(count):
                offset = first - t * each.step
                i, shift = q * each.residues + offset, q + offset // each.residues
                assert each.low <= offset // each.residues <= each.high
                at, row = divmod(each.pitch + shift, each.pitch)  # the middle one of three lines
                if 0 <= i < axis.n:
                    assert (at, row * each.residues + i % each.residues) == (1, i), axis
                    met.add((i, each.order[slot + t]))
                else:
                    assert row >= each.kept or row * each.residues + i % each.residues >= axis.n
            assert met == {
                (i, k)
                for i, k in product(range(axis.n), range(axis.k))
                if i * axis.stride == o + axis.padding - k * axis.dilation
            }, (axis, y, r)


LINES = [
    "n1 ci3 co4 i5 k3 p-2 op-3",
    "n2 ci2 co5 i4 k4 s2 p-3 op2",
    "n2 ci3 co5 i3x4 k3 s2 p-1x2 op-3x2",
    "n1 ci2 co3 i2x3 k2x5 s1x4 d3x1 p-5x-2 op1x-6",
    "n1 ci2 co3 i2x2x3 k3x2x1 s2x1x3 p-1x1x-2 op-2x0x-4",
    "n1 ci2 co3 i3 k2 s3 p7 op14",  # from beyond the last tap on
    "n1 ci2 co3 i3 k2 s2 p-9 op-16",  # up to the first
    "n2 ci6 co4 i3x2 k3 s2 p-1 op-3 g2",
    "n1 ci3 co6 i5 k4 s3 d2 p-4 op3 g3",
]
TILES: dict[str, tuple[Any, ...]] = {
    "rows": ("rows", (1, 1, 1, 16), 8),
    "box": ("box", (1, 2, 2, 4), 8),
    "batch": ("batch", (1, 2, 2, 2), 8),
    "lone": ("batch", (1, 1, 1, 2), 8),
}


def cases() -> Iterator[Any]:
    for i, each in enumerate(LINES):
        problem = Problem.parse(f"{each} {DTYPES[i % 4]}")
        for form in TILES:
            if problem.groups != problem.in_channels or form == "rows":
                quick = form in ("rows", ("box", "batch")[i % 2])
                marks = [] if quick else [pytest.mark.long]
                yield pytest.param(problem, form, marks=marks, id=f"{problem} {form}")


@pytest.mark.parametrize(("problem", "form"), list(cases()))
def test_integers_bit_for_bit(problem: Problem, form: str, interpreter: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = problem.input.dims, problem.weight, (problem.out_channels,)
    x, w, b = (torch.randint(-3, 4, shape, generator=generator).double() for shape in shapes)
    exact = scatter(problem, x, w, b)
    dtype = ELEMENTS[problem.dtype].dtype
    tensors = x.to(dtype), w.to(dtype), {"b": b.to(dtype)}
    chain = Chain(conv_transpose(problem.rank, "b"))
    answer = interpreter(chain, problem, *tensors, tiles=TILES[form])
    assert torch.equal(answer["results"][0], exact.to(dtype)), answer["launches"]
    if min(exact.shape[2:]) >= 2:
        answer = interpreter(
            Chain(*chain.stages, max_pool(2)), problem, *tensors, tiles=TILES[form]
        )
        expected = max_pool(2).apply(exact, {}).to(dtype)
        assert torch.equal(answer["results"][0], expected), answer["launches"]


FAR = Axis(9, 3, 1, -400_000, 1, -400_000)
"""Its outputs begin 400,000 positions before the first input."""


def taps_of(axis: Axis, pool: int) -> TapTable:
    return TapTable.of((axis,), ((pool, pool, 0),), (axis.size // pool,), False)


def test_shifts_far_back_are_divided_as_positives() -> None:
    taps = taps_of(FAR, 2)
    work = Workload(taps, 1, 3, 4, 1, 4, False, False, True, False, False)
    tile = Tiled.of(work, Tiling("rows", (1, 1, 1, 16), 8, 16, 4, 2), "max").tile
    for each, lift, apart in zip(taps.axes, tile.lift, tile.apart, strict=True):
        for first, count, _ in each.entries:
            assert first - max(0, count - 1) * each.step + lift * apart >= 0


def test_the_hopper_loop_with_a_window_says_how_far_back_it_takes() -> None:
    near = Axis(9, 3, 1, -400, 1, -400)
    assert window_layout.verdict(taps_of(near, 2), 64, 1, "max", False) == ""
    refusal = window_layout.verdict(taps_of(FAR, 2), 64, 1, "max", False)
    assert refusal == "taps reach 200001 inputs back; it takes 4096"
