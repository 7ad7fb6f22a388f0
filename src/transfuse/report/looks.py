"""How each variant is drawn, the same everywhere, so that the colour is never the only sign."""

from collections.abc import Iterable

from transfuse.bench.record import BASELINE, OURS, Row

LOOKS = (
    ("M8 3a5 5 0 1 0 .01 0z", ""),
    ("M3 3h10v10H3z", "6 3"),
    ("M8 2l6 6-6 6-6-6z", "2 3"),
    ("M8 2l6 11H2z", "6 3 2 3"),
    ("M8 14l6-11H2z", "10 4"),
    ("M6 2h4v4h4v4h-4v4H6v-4H2V6h4z", "10 4 2 4"),
    ("M8 2l6 4.4-2.3 7.1H4.3L2 6.4z", ""),
    ("M8 2l5.2 3v6L8 14l-5.2-3V5z", "6 3"),
)
"""The outline of a mark in a square of 16, and the dashes of a line. Colours: style.css."""


def distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def variants(rows: list[Row]) -> list[str]:
    """transfuse, even where it is absent, the baseline, then the others as they come."""
    found = distinct([OURS, *(row.variant for row in rows)])
    return sorted(found, key=lambda v: (v != OURS, v != BASELINE))


def marks(rows: list[Row]) -> dict[str, int]:
    """The look of each variant, by number; where there are more than looks, ours stays its own."""
    others = len(LOOKS) - 1
    return {name: at and 1 + (at - 1) % others for at, name in enumerate(variants(rows))}
