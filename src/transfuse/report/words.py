"""Numbers as a page shows them."""

from collections.abc import Callable
from math import floor, isfinite, log10

NONE = "-"
TO = "\N{EN DASH}"


def shown(value: float | None, form: Callable[[float], str]) -> str:
    """A value in its form, or the sign for none."""
    return NONE if value is None else form(value)


def number(value: float, like: float | None = None) -> str:
    """Three significant digits, or as many decimals as ``like``; no exponent, no cut wholes."""
    if not isfinite(value):
        return "∞" if value > 0 else "NaN"
    scale = abs(like or value)
    places = max(0, 2 - floor(log10(scale))) if scale else 0
    return f"{value:,.{places}f}"


def times(value: float) -> str:
    """A ratio: 0.94x, 1.85x, 12.3x."""
    return f"{number(value, max(value, 1))}x" if value >= 0.1 else f"{value:.2g}x"


def seconds(value: float) -> str:
    return f"{number(value)} s" if value >= 1 else f"{number(value * 1e3)} ms"


def si(value: float, unit: str) -> str:
    """A rate with its decimal prefix: ``21.3 GB/s``."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{number(value / factor)} {prefix}{unit}"
    return f"{number(value)} {unit}"
