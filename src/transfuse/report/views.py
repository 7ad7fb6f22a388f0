"""Rows of results as a page shows them: values to sort and draw by, texts to read."""

from collections import Counter
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from sys import float_info

from transfuse.bench.record import OURS, Row, Run, Spread
from transfuse.operators import short
from transfuse.report.words import NONE, TO, number, seconds, shown, si, times

IMPOSSIBLE = "impossible: below the floor, not counted"
Span = tuple[float | None, float | None, float | None]
"""Median, p20 and p80; none of what is not finite."""


@dataclass(frozen=True)
class ResultRow:
    """One row: ``at`` is its place among all, ``place`` where it was measured."""

    at: int
    row: Row
    look: int
    run: str
    place: str
    outcome: str
    time: Span
    ratio: Span

    @property
    def operator(self) -> str:
        return "real models" if self.row.model else short(self.row.slug)

    @property
    def case(self) -> str:
        if self.row.model:
            return self.row.model
        name, size = self.row.name.strip() or "unnamed", f"{self.row.axis} {self.row.at}"
        return f"{name}, {size}" if self.row.axis and size not in name else name

    @property
    def set(self) -> str:
        if self.row.model:
            return "models"
        if self.row.axis:
            return f"sizes along {self.row.axis}"
        return (self.row.name.split() or ["unnamed"])[0]

    @property
    def of_floor(self) -> float | None:
        return finite(self.row.of_floor and self.row.of_floor * 100)

    @property
    def of_definition(self) -> float | None:
        return finite(self.row.of_definition and self.row.of_definition * 100)

    @property
    def peak(self) -> float | None:
        return finite(self.row.memory and self.row.memory / 1e6)

    @property
    def intensity(self) -> float | None:
        return self.row.flops / self.row.bytes if self.row.bytes else None

    @property
    def rate(self) -> float | None:
        return self.row.flops / self.time[0] * 1e3 if self.time[0] else None

    @property
    def figures(self) -> dict[str, tuple[float | None, str]]:
        """What the table has in its columns of numbers: the value to sort by, and its text."""
        return {
            "time": (self.time[0], shown(self.time[0], number)),
            "p20": (self.time[1], self.spread),
            "ratio": (self.ratio[0], shown(self.ratio[0], times)),
            "of_floor": (self.of_floor, shown(self.of_floor, number)),
            "of_definition": (self.of_definition, shown(self.of_definition, number)),
            "error": (self.error, shown(self.row.error, lambda share: f"{share:.3f}")),
            "peak": (self.peak, shown(self.peak, number)),
            "first": (finite(self.row.first_call), shown(finite(self.row.first_call), seconds)),
        }

    @property
    def error(self) -> float | None:
        """An infinite error, or one that is no number, is the worst there is."""
        error = self.row.error
        return error if error is None or isfinite(error) else float_info.max

    @property
    def spread(self) -> str:
        middle, low, high = self.time
        if low is None or high is None:
            return NONE
        return f"{number(low, middle)}{TO}{number(high, middle)}"

    @property
    def filters(self) -> dict[str, str]:
        """By what a reader may choose it."""
        return {
            "operator": self.operator,
            "precision": self.row.setting,
            "device": self.row.device,
            "variant": self.row.variant,
            "set": self.set,
            "outcome": self.outcome,
            "run": self.run,
        }

    @property
    def hint(self) -> str:
        """All of it in a few lines, under the pointer."""
        lines = [self.row.variant, f"{self.operator}, {self.case}", self.place]
        if self.time[0] is not None:
            lines.append(f"{number(self.time[0])} ms ({self.spread})")
        if self.ratio[0] is not None:
            low, high = (shown(each, times) for each in self.ratio[1:])
            lines.append(f"{times(self.ratio[0])} ({low}{TO}{high})")
        if self.rate is not None:
            lines.append(f"{si(self.rate, 'flop/s')}, {shown(self.of_floor, number)} % of floor")
            lines.append(f"{shown(self.of_definition, number)} % of the definition's floor")
        return "\n".join([*lines, *([IMPOSSIBLE] if self.row.impossible else [])])


def views(
    runs: list[tuple[Path, Run]], rows: list[Row], outcomes: list[str], marks: dict[str, int]
) -> list[ResultRow]:
    """Of every row; where the device tells the run, the run is not named at each."""
    labels = run_labels(runs)
    told = len({(row.run, row.device) for row in rows}) == len({row.device for row in rows})
    return [
        ResultRow(
            at=at,
            row=row,
            look=marks[row.variant],
            run=labels[row.run],
            place=", ".join([row.setting, row.device, *([] if told else [labels[row.run]])]),
            outcome=outcome,
            time=_span(row.time, 1e3),
            ratio=_span(row.ratio if row.variant != OURS else None, 1),
        )
        for at, (row, outcome) in enumerate(zip(rows, outcomes, strict=True))
    ]


def run_labels(runs: list[tuple[Path, Run]]) -> dict[str, str]:
    """A name for each run: its file, with its folders where another has that name, and which of
    the file's runs it is where there are several."""
    files = Counter(path.name for path in {path for path, _ in runs})
    in_file = Counter(path for path, _ in runs)
    met: Counter[Path] = Counter()
    labels = {}
    for path, run in runs:
        met[path] += 1
        name = path.name if files[path.name] == 1 else path.as_posix()
        labels[run.id] = f"{name}, run {met[path]}" if in_file[path] > 1 else name
    return labels


def finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _span(spread: Spread | None, factor: float) -> Span:
    if spread is None:
        return None, None, None
    middle, low, high = (finite(each * factor) for each in (spread.median, spread.p20, spread.p80))
    return middle, low, high
