"""Consumers that have tiles of their own: which layouts allow it, and for which chains it pays.

Consumers that share a tile multiply together and finish it together, and the tensor cores rest
meanwhile. With a tile for each, one multiplies while the other finishes. They then meet their
weights one after the other, so these must stay in shared memory or be read twice: all weights of a
class of depth and height stay, or at least half of them, walked forth and back (``strip_feed.py``).
"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from transfuse.backends.triton.engines.hopper_strip import strip_layout
from transfuse.backends.triton.engines.hopper_strip.strip_geometry import (
    ResultLayout,
    StripGeometry,
)
from transfuse.backends.triton.engines.hopper_strip.strip_layout import SHARED, StripTiling
from transfuse.backends.triton.epilogue.records import Epilogue
from transfuse.backends.triton.segments import Node
from transfuse.maths.primitives import PRIMITIVES

MOST_PROGRAMS = 16
"""Tiles for one block of anchors: a program stays with one of them, so there must be one each."""

SPECIAL = {
    "softmax": 1, "sigmoid": 2, "sigmoid_slope": 2, "tanh": 2, "space_apply": 1, "bounded_apply": 1
}  # fmt: skip
"""Special functions that a tile op takes for each result, or a part of a map."""

MOST_SUMS = 128
"""Registers of a thread that may hold sums: with more, the rest of its work does not fit."""

STORED, GATHERED = 6, 6
"""Instructions of a result that is stored, and of one whose statistic is gathered, at least."""

LEAST, MOST = 0.25, 1.5
"""Work of finishing a result, as a share of its products, for which consumers have own tiles. With
more work, products are short, and held weights feed both consumers at once as fast."""


def fault(
    config: StripTiling, geometry: StripGeometry, after: Epilogue, results: ResultLayout
) -> str:
    """Why consumers cannot have tiles of their own in a layout; empty where they can."""
    if config.consumers != 2:
        return "one consumer shares its tiles with nobody"
    if config.tiles_of_block(geometry) > MOST_PROGRAMS:
        return f"{config.tiles_of_block(geometry)} tiles for each block, of {MOST_PROGRAMS}"
    held = geometry.held(config.depth)
    if held == 0:
        return "classes differ in work, and so do the turns of a consumer"
    stay = config.w_stages
    if stay != held if config.hold else not stay < held <= 2 * stay:
        return f"{stay} of {held} blocks of weights stay"
    if config.accumulators(geometry) > MOST_SUMS:
        return f"{config.accumulators(geometry)} registers of sums, of {MOST_SUMS}"
    if config.room(geometry, after, results) > SHARED:
        return f"{config.room(geometry, after, results)} bytes of shared memory, of {SHARED}"
    return ""


def configs(
    geometry: StripGeometry, itemsize: int, after: Epilogue, results: ResultLayout
) -> Iterator[StripTiling]:
    """Layouts that fit and pay: large tiles first, then most weights that stay, then deep rings."""
    if not pays(geometry, itemsize, after):
        return
    for base in strip_layout.bases(geometry, itemsize, strip_layout.axis_of(after)):
        best = strip_layout.store_of(geometry, base, after, results)
        held = geometry.held(base.depth)
        rings = [(x, w) for w in range(held, (held - 1) // 2, -1) for x in (5, 4, 3)]
        rings += [(2, w) for w in range(held, (held - 1) // 2, -1)]
        for x_stages, w_stages in rings:
            hold = w_stages == held
            each = replace(best, x_stages=x_stages, w_stages=w_stages, hold=hold, own=True)
            near = strip_layout.near(geometry, each, results)
            if near and not fault(each, geometry, after, results):
                yield each


def pays(geometry: StripGeometry, itemsize: int, after: Epilogue) -> bool:
    """Whether finishing results takes so long beside their products that it is to overlap them."""
    return LEAST <= finishing(after) / products(geometry, itemsize) <= MOST


def finishing(after: Epilogue) -> float:
    """Clocks of a multiprocessor for one result, 128 instructions and 16 special functions each."""
    maps = sum(specials(each) for each in after.after.expr if each is not None)
    special = maps + sum(SPECIAL.get(op, 0) for op in after.after.ops)
    instructions = STORED * after.stored + GATHERED * bool(after.late)
    return instructions / 128 + special / 16


def specials(expr: Node) -> int:
    """Special functions of a map."""
    row = PRIMITIVES.get(expr.op)
    return SPECIAL.get(expr.op, row.special if row else 0) + sum(map(specials, expr.parts))


def products(geometry: StripGeometry, itemsize: int) -> float:
    """Clocks of a multiprocessor's tensor cores for one result."""
    taps = (sum(count for _, count, _ in axis) / len(axis) for axis in geometry.entries)
    return geometry.kept * prod(taps) * itemsize / 4096
