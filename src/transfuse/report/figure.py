"""Results as one figure: how many times as long each peer takes, as a mark on a line per case."""

from math import floor, log2
from pathlib import Path

from transfuse.bench.record import OURS, Row, read
from transfuse.operators import short
from transfuse.report.looks import LOOKS, marks
from transfuse.report.model_figure import model_figure
from transfuse.report.rendering import environment

LEFT, WIDTH, LINE, TOP = 420, 560, 20, 58
"""Room for the names of cases, then for the axis; from one line to the next; above the first."""


def figure(paths: list[Path]) -> str:
    """An SVG of the cases of a file, in its order; or of whole models, of any number of files."""
    found = [read(path) for path in paths]
    rows = [row for _, of_file in found for row in of_file]
    if rows and all(row.model for row in rows):
        return model_figure([run for runs, _ in found for run in runs], rows)
    if len(paths) != 1:
        raise ValueError(f"a figure of operators shows one file of results, not {len(paths)}")
    return _of_cases(paths[0], rows)


def _of_cases(path: Path, rows: list[Row]) -> str:
    """Peers to the right of 1 are slower than ours."""
    cases: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.ratio is not None:
            cases.setdefault(row.key, []).append(row)
    if not cases:
        raise ValueError(f"{path} has no peer beside transfuse to draw")
    ratios = [row.ratio.median for group in cases.values() for row in group if row.ratio]
    first, last = min(0, floor(log2(min(ratios)))), max(1, floor(log2(max(ratios))) + 1)
    looks = {name: look for name, look in marks(rows).items() if name != OURS}

    def place(ratio: float) -> float:
        return round(LEFT + WIDTH * (log2(ratio) - first) / (last - first), 1)

    lines = []
    for at, ((slug, *_), group) in enumerate(cases.items()):
        ours = next(row for row in rows if row.key == group[0].key and row.variant == OURS)
        lines.append(
            {
                "y": TOP + LINE * at,
                "name": short(slug),
                "precision": ours.setting,
                "ms": f"{1e3 * ours.time.median:.3g} ms" if ours.time else "",
                "points": [
                    (place(row.ratio.median), looks[row.variant], _told(row))
                    for row in group
                    if row.ratio
                ],
            }
        )
    drawn = environment().get_template("figure.svg.j2").render(
        lines=lines,
        looks=looks,
        outlines=[outline for outline, _ in LOOKS],
        ticks=[(place(2.0**power), f"{2.0**power:g}x") for power in range(first, last + 1)],
        width=LEFT + WIDTH + 30,
        height=TOP + LINE * len(lines) + 12,
        top=TOP,
        left=LEFT,
        one=place(1.0),
    )  # fmt: skip
    return str(drawn)


def _told(row: Row) -> str:
    assert row.ratio
    assert row.time
    return f"{row.variant}: {1e3 * row.time.median:.3g} ms, {row.ratio.median:.2f}x"
