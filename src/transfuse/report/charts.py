"""What the page draws: bars of speed and memory, the roofline, curves of time over size.

Bars are laid out by the browser, in percent; curves and points lie in a picture of fixed size,
which the browser scales.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import floor, log, log2, log10
from typing import TypeVar

from transfuse.bench.record import OURS, Run
from transfuse.report.looks import LOOKS
from transfuse.report.views import ResultRow, finite
from transfuse.report.words import NONE, number, shown, si, times

T = TypeVar("T")


@dataclass(frozen=True)
class Bar:
    """From ``start`` on ``width`` long, with a whisker likewise, in percent of the room."""

    view: ResultRow
    text: str
    start: float = 0.0
    width: float = 0.0
    whisker: tuple[float, float] | None = None


@dataclass(frozen=True)
class Bars:
    """Bars of the cases of one operator and set, and the ticks of their axis."""

    title: str
    about: str
    cases: list[list[Bar]]
    ticks: list[tuple[float, str]]
    one: float | None = None


def speed(views: list[ResultRow]) -> list[Bars]:
    """Ratios on a logarithmic axis, the same for all: 2x and 0.5x are equally long."""
    compared = [v for v in views if not v.row.axis and v.ratio[1] and v.ratio[1] > 0]
    if not compared:
        return []
    low = min(0.9, *(0.9 * _float(v.ratio[1]) for v in compared))
    high = max(1.1, *(1.1 * _float(v.ratio[2]) for v in compared))

    def place(ratio: float) -> float:
        return 100 * (log2(ratio) - log2(low)) / (log2(high) - log2(low))

    def bar(view: ResultRow) -> Bar:
        middle, first, last = (place(_float(each)) for each in view.ratio)
        start, end = sorted((place(1), middle))
        mark = "?" if view.outcome == "not compared" else ""
        text = shown(view.ratio[0], times) + mark
        return Bar(view, text, start, end - start, (first, last - first))

    ticks = [(place(tick), f"{tick:g}x") for tick in ticked(low, high, fewest=2)]
    return [
        Bars(title, about, [[bar(v) for v in case] for case in cases], ticks, place(1))
        for title, about, cases in _panels(compared)
    ]


def memory(views: list[ResultRow]) -> list[Bars]:
    """Peaks of what was timed, beside the most of their case; a dash for what is not known."""
    return [
        Bars(title, about, [_peaks(case) for case in cases], [])
        for title, about, cases in _panels([v for v in views if not v.row.axis and v.time[0]])
        if any(view.peak for case in cases for view in case)
    ]


def _peaks(case: list[ResultRow]) -> list[Bar]:
    most = max(view.peak or 0.0 for view in case)
    return [
        Bar(view, NONE)
        if view.peak is None
        else Bar(view, f"{number(view.peak)} MB", 0.0, 100 * view.peak / most)
        for view in case
    ]


def _panels(views: list[ResultRow]) -> Iterable[tuple[str, str, list[list[ResultRow]]]]:
    """By operator and set, and in each by case and place."""
    for panel in _grouped(views, lambda v: (v.operator, v.set)):
        cases = _grouped(panel, lambda v: (v.case, v.row.case, v.place))
        yield panel[0].operator, panel[0].set, cases


WIDTH, HEIGHT = 400, 290
LEFT, RIGHT, TOP, BOTTOM = 62, 388, 12, 244
"""The picture of curves and points, and where in it the axes end."""


@dataclass(frozen=True)
class Line:
    """A curve of a variant, or a ceiling, which has a text at one of its ends."""

    points: str
    view: ResultRow | None = None
    dash: str = ""
    label: tuple[float, float, str, str] | None = None


@dataclass(frozen=True)
class Plot:
    """Marks and lines over two logarithmic axes."""

    title: str
    about: str
    marks: list[tuple[float, float, ResultRow]]
    lines: list[Line]
    whiskers: list[tuple[float, float, float, ResultRow]]
    across: list[tuple[float, str]]
    up: list[tuple[float, str]]
    names: tuple[str, str]


class LogScale:
    """A logarithmic axis from ``low`` to ``high`` between two places of the picture."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        share = log(value / self.low) / log(self.high / self.low)
        return round(self.start + (self.end - self.start) * share, 1)

    def ticks(self, form: Callable[[float], str], fewest: int = 4) -> list[tuple[float, str]]:
        return [(self(tick), form(tick)) for tick in ticked(self.low, self.high, fewest)]


def roof(views: list[ResultRow], runs: dict[str, Run]) -> list[Plot]:
    """Every result below what its run measured for copying and for a matrix product."""
    placed = [v for v in views if v.intensity and v.rate]
    panels = _grouped(placed, lambda v: (v.row.run, v.row.precision, v.row.device))
    return [_roof(panel, runs[panel[0].row.run]) for panel in panels]


def _roof(panel: list[ResultRow], run: Run) -> Plot:
    copy = finite(max(run.copy, default=(0, 0.0))[1]) or None
    top = finite(run.matmul.get(panel[0].row.precision))
    spots = [(_float(v.intensity), _float(v.rate)) for v in panel]
    bend = top / copy if copy and top else spots[0][0]
    low = min(bend, *(x for x, _ in spots)) / 3
    high = max(bend, *(x for x, _ in spots)) * 3
    ends = []
    if copy:
        last = bend if top else high
        ends.append(((low, low * copy), (last, last * copy), f"copy {si(copy, 'B/s')}", "start"))
    if top:
        ends.append(
            ((bend if copy else low, top), (high, top), f"matmul {si(top, 'flop/s')}", "end")
        )
    rates = [y for _, y in spots] + [y for end in ends for _, y in end[:2]]
    across = LogScale(low, high, LEFT, RIGHT)
    up = LogScale(min(rates) / 2, max(rates) * 2, BOTTOM, TOP)
    marks = [(across(x), up(y), v) for v, (x, y) in zip(panel, spots, strict=True)]
    lines = []
    for first, second, text, anchor in ends:
        (x1, y1), (x2, y2) = ((across(x), up(y)) for x, y in (first, second))
        at = (LEFT + 6, BOTTOM - 6) if anchor == "start" else beside_end(x2, y2, marks)
        lines.append(Line(f"{x1},{y1} {x2},{y2}", label=(*at, text, anchor)))
    return Plot(
        panel[0].place, "", _ours_last(marks), lines, [],
        across.ticks(lambda tick: f"{tick:,g}", fewest=2), up.ticks(_prefixed),
        ("flop per byte", "flop/s"),
    )  # fmt: skip


def beside_end(
    x: float, y: float, marks: Iterable[tuple[float, float, object]]
) -> tuple[float, float]:
    """Where the label of a level line ends: above it, or below where a mark would cover it."""
    wide, high = 130, 22  # of the longest label, and the room between it and a mark's middle
    covered = any(x - wide <= at <= x and y - high <= level <= y for at, level, _ in marks)
    return x - 2, y + 15 if covered else y - 5


def scaling(views: list[ResultRow]) -> list[Plot]:
    """Time over the size that grows, a curve for each variant."""
    swept = [v for v in views if v.row.axis and v.time[1]]
    panels = _grouped(swept, lambda v: (v.operator, v.row.axis, v.place))
    return [_scaling(panel) for panel in panels]


def _scaling(panel: list[ResultRow]) -> Plot:
    sizes = sorted({v.row.at for v in panel})
    lows, highs = ([_float(v.time[end]) for v in panel] for end in (1, 2))
    across = LogScale(sizes[0] / 1.3, sizes[-1] * 1.3, LEFT, RIGHT)
    up = LogScale(min(lows) / 1.3, max(highs) * 1.3, BOTTOM, TOP)
    marks, lines, whiskers = [], [], []
    for curve in _grouped(panel, lambda v: v.row.variant):
        curve.sort(key=lambda v: v.row.at)
        places = [(across(v.row.at), up(_float(v.time[0]))) for v in curve]
        marks += [(x, y, v) for (x, y), v in zip(places, curve, strict=True)]
        points = " ".join(f"{x},{y}" for x, y in places)
        lines.append(Line(points, curve[0], LOOKS[curve[0].look][1]))
        whiskers += [
            (x, up(_float(v.time[1])), up(_float(v.time[2])), v)
            for (x, _), v in zip(places, curve, strict=True)
        ]
    first = panel[0]
    return Plot(
        first.operator, f"{first.row.axis}, {first.place}", _ours_last(marks), lines, whiskers,
        [(across(size), str(size)) for size in sizes], up.ticks(lambda tick: f"{tick:,g}"),
        (first.row.axis, "ms"),
    )  # fmt: skip


def ticked(low: float, high: float, fewest: int = 4) -> list[float]:
    """Ticks of a logarithmic axis, as round as its range allows."""
    fine = [1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9]
    powers = range(floor(log10(low)), floor(log10(high)) + 1)
    found: list[float] = []
    for steps in ([1], [1, 2, 5], [1, 1.5, 2, 3, 5, 7], fine):
        marks = (float(f"{step}e{power}") for power in powers for step in steps)
        found = [mark for mark in marks if low <= mark <= high]
        if len(found) >= fewest:
            break
    return found


def _prefixed(rate: float) -> str:
    """1e9 is 1 G: ticks are round."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= factor:
            return f"{rate / factor:g} {prefix}"
    return f"{rate:g}"


def _float(value: float | None) -> float:
    assert value is not None
    return value


def _ours_last(marks: list[tuple[float, float, ResultRow]]) -> list[tuple[float, float, ResultRow]]:
    """To lie on top."""
    return sorted(marks, key=lambda mark: mark[2].row.variant == OURS)


def _grouped(items: Sequence[T], key: Callable[[T], object]) -> list[list[T]]:
    found: dict[object, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())
