"""One HTML page from files of results: headline, charts, environment, every result; no network.

Every number and every word is in the page as it is made; page.js selects and sorts.
"""

from base64 import b64encode
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from transfuse.bench.record import OURS, ResultError, Row, Run, read
from transfuse.report import charts
from transfuse.report.headline import COUNTED, OUTCOMES, headlines, judged, machine, models
from transfuse.report.looks import LOOKS, distinct, marks, variants
from transfuse.report.rendering import environment
from transfuse.report.views import IMPOSSIBLE, ResultRow, run_labels, views
from transfuse.report.words import TO, shown, si, times


class Column(NamedTuple):
    """A column of the table: what it sorts by, its heading, what it means."""

    key: str
    title: str
    hint: str = ""


TEXT_COLUMNS = (
    Column("case", "case", "open one to copy its line"),
    Column("precision", "precision", "the class of storage and arithmetic; classes never mix"),
    Column("device", "device"),
    Column("variant", "variant", "who computed it; small: the backend transfuse chose"),
)
NUMBER_COLUMNS = (
    Column("time", "median ms"),
    Column("p20", f"p20{TO}p80 ms", "sorted by p20"),
    Column(
        "ratio", "ratio", "1.85x: transfuse is 1.85 times faster than this peer; below 1x slower"
    ),
    Column(
        "of_floor",
        "% of floor",
        "the least time this machine allows for the passes, one after another, over the median",
    ),
    Column(
        "of_definition",
        "% of definition",
        "the same for the products and bytes of the definition alone: the floor as it was before",
    ),
    Column(
        "error", "error share", "largest error over what the precision allows; above 1 is wrong"
    ),
    Column("peak", "peak MB", "the most memory held during a call"),
    Column("first", "first call", "compilation, tuning and warm-up included"),
)

TOLD = {
    "channels_last": "the model and its inputs in that layout",
    "torch.compile": "the model as it was written, compiled",
    "transfuse compiled": "the fused model, compiled",
    "compile backend": "the model compiled with transfuse as the backend",
}
"""What the ways to run a model are."""


def build(paths: list[Path], command: str) -> str:
    """The page for these files; ``command`` is what made it, as a reader would type it."""
    templates = environment()
    runs, rows = _read(paths)
    here = Path(__file__).parent
    script = (here / "page.js").read_text(encoding="utf-8")
    outcomes = judged(rows)
    looks = marks(rows)
    shown_rows = views(runs, rows, outcomes, looks)
    plain_runs = [run for _, run in runs]
    labels = run_labels(runs).values()
    page = templates.get_template("template.html.j2").render(
        policy=_policy(script),
        style=(here / "style.css").read_text(encoding="utf-8"),
        script=script,
        headlines=headlines(plain_runs, rows, outcomes),
        models=models(plain_runs, rows, outcomes),
        total=Counter(outcomes),
        compared=sum(outcome in COUNTED for outcome in outcomes),
        faults=_faults(rows),
        filters=_filters(shown_rows, variants(rows)),
        count=len(rows),
        speed=charts.speed(shown_rows),
        memory=charts.memory(shown_rows),
        roof=charts.roof(shown_rows, {run.id: run for run in plain_runs}),
        scaling=charts.scaling(shown_rows),
        picture=(charts.WIDTH, charts.HEIGHT, charts.LEFT, charts.RIGHT, charts.TOP, charts.BOTTOM),
        looks={name: (at, LOOKS[at][0]) for name, at in looks.items()},
        outlines=[outline for outline, _ in LOOKS],
        drawn=[name for name in looks if name in {row.variant for row in rows}],
        told={name: what for name, what in TOLD.items() if any(r.variant == name for r in rows)},
        runs=[_facts(file, run, label) for (file, run), label in zip(runs, labels, strict=True)],
        operators=_folded(shown_rows),
        text_columns=TEXT_COLUMNS,
        number_columns=NUMBER_COLUMNS,
        ours=OURS,
        impossible=IMPOSSIBLE,
        times=lambda value: shown(value, times),
        command=command,
    )
    return str(page)


def _read(paths: list[Path]) -> tuple[list[tuple[Path, Run]], list[Row]]:
    """All files, one after the other; counting a run twice would bend the verdict."""
    if not paths:
        raise ValueError("a report needs at least one file of results")
    runs: dict[str, tuple[Path, Run]] = {}
    rows: list[Row] = []
    for path in paths:
        of_file, more = read(path)
        if not more:
            raise ResultError(f"{path}:1: there are no rows of results in this file")
        for run in of_file:
            if run.id in runs:
                raise ResultError(f"{path}:1: run {run.id!r} is already in {runs[run.id][0]}")
        runs |= {run.id: (path, run) for run in of_file}
        rows += more
    return list(runs.values()), rows


def _policy(script: str) -> str:
    """A content policy: nothing is fetched, and no script runs but ours."""
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'"


def _faults(rows: list[Row]) -> Counter[str]:
    """What is wrong with our own results."""
    return Counter(
        "impossible" if row.impossible else row.status
        for row in rows
        if row.variant == OURS and (row.impossible or row.status != "ok")
    )


def _filters(of: list[ResultRow], known: list[str]) -> list[tuple[str, str, list[str]]]:
    def values(key: str) -> list[str]:
        return distinct(view.filters[key] for view in of)

    found = [
        ("operator", "Operator", values("operator")),
        ("precision", "Precision", values("precision")),
        ("device", "Device", values("device")),
        ("variant", "Variant", [v for v in known if v in values("variant")]),
        ("set", "Case set", values("set")),
        ("outcome", "transfuse is", [o for o in OUTCOMES if o in values("outcome")]),
    ]
    return found + ([("run", "Run", values("run"))] if len(values("run")) > 1 else [])


def _folded(of: list[ResultRow]) -> dict[str, list[ResultRow]]:
    return {
        name: [view for view in of if view.operator == name]
        for name in distinct(view.operator for view in of)
    }


def _facts(file: Path, run: Run, label: str) -> dict[str, Any]:
    """What the environment section says of a run, as pairs of words."""
    facts: list[tuple[str, str]] = [
        ("file", str(file)),
        ("command", run.command),
        ("started", run.started),
        ("run", run.id),
        ("device", run.device),
        ("seed", str(run.seed)),
        ("commit", run.commit or "unknown"),
    ]
    for key, value in run.environment.items():
        facts += [(key, text) for text in [_words(value)] if text]
    copies = [f"{si(rate, 'B/s')} at {si(size, 'B')}" for size, rate in run.copy]
    facts.append(("copy", ", ".join(copies) or "not measured"))
    rates = [f"{precision} {si(rate, 'flop/s')}" for precision, rate in run.matmul.items()]
    facts.append(("matmul", ", ".join(rates) or "not measured"))
    special = [f"{element} {si(rate, 'exp/s')}" for element, rate in run.special.items()]
    facts.append(("special functions", ", ".join(special) or "not measured"))
    return {"title": machine(run), "label": label, "facts": facts}


def _words(value: object) -> str:
    """Nested facts on one line; what is not there is left out."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items() if v not in (None, [], {}))
    if isinstance(value, list | tuple):
        plain = all(isinstance(each, str) for each in value)
        return (", " if plain else "; ").join(map(_words, value))
    return "" if value is None else str(value)
