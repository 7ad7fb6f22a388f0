"""Real models as one figure: how many times as fast each runs fused, on each machine."""

from math import ceil

from transfuse.bench.record import BASELINE, Row, Run
from transfuse.report.headline import Models, judged, models
from transfuse.report.looks import distinct
from transfuse.report.rendering import environment
from transfuse.report.words import times

COMPILED = "torch.compile"
NAMES, WIDTH, GAP, LINE, TOP = 130, 300, 40, 22, 88
"""Room for the names, for each machine, between machines; from line to line; above the first."""


def model_figure(runs: list[Run], rows: list[Row]) -> str:
    """A panel for each machine and precision: bars from 0, a mark where torch.compile is."""
    groups = [each for each in models(runs, rows, judged(rows)) if BASELINE in each.peers]
    if not groups:
        raise ValueError(f"there are no models beside {BASELINE!r} to draw")
    names = distinct(name for group in groups for name in group.ratios)
    drawn = environment().get_template("model_figure.svg.j2").render(
        names=[(TOP + LINE * at, name) for at, name in enumerate(names)],
        mean=TOP + LINE * len(names) + 6,
        panels=[_panel(group, names, at) for at, group in enumerate(groups)],
        compiled=COMPILED,
        line=LINE,
        top=TOP,
        width=NAMES + len(groups) * (WIDTH + GAP),
        height=TOP + LINE * (len(names) + 1) + 18,
    )  # fmt: skip
    return str(drawn)


def _panel(group: Models, names: list[str], at: int) -> dict[str, object]:
    baseline = group.peers.index(BASELINE)
    compiled = group.peers.index(COMPILED) if COMPILED in group.peers else None
    ratios = {**group.ratios, "": group.means}
    most = ceil(max(1.0, *(r for each in ratios.values() for r in each if r is not None)) + 0.25)
    start, one = NAMES + at * (WIDTH + GAP), WIDTH / most

    def bar(y: int, name: str) -> dict[str, object] | None:
        of_model = ratios.get(name)
        if of_model is None or of_model[baseline] is None:
            return None
        eager = of_model[baseline] or 0.0
        other = None if compiled is None else of_model[compiled]
        return {
            "y": y,
            "end": round(eager * one, 1),
            "text": times(eager),
            "mark": None if other is None else round(other * one, 1),
            "told": f"{name or 'geometric mean'}: {times(eager)} as fast as {BASELINE}"
            + ("" if other is None else f", {times(other)} as fast as {COMPILED}"),
        }

    ys = [TOP + LINE * row for row in range(len(names))] + [TOP + LINE * len(names) + 6]
    bars = [bar(y, name) for y, name in zip(ys, [*names, ""], strict=True)]
    return {
        "x": start,
        "title": group.where,
        "bars": [each for each in bars if each],
        "ticks": [(round(one * tick, 1), f"{tick}x") for tick in range(most + 1)],
        "one": round(one, 1),
    }
