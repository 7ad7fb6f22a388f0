"""One HTML page from files of results: verdict, table, plots, environment; no network.

Every number and every word comes from here, formatted; page.js selects, sorts and draws.
"""

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import sha256
from importlib import import_module
from math import floor, isfinite, log10
from pathlib import Path
from sys import float_info
from typing import Any, NamedTuple

from transfuse.bench.record import BASELINE, OURS, ResultError, Row, Run, Spread, read

OUTCOMES = ("faster", "slower", "no difference", "not compared")
NONE = "—"
TO = "\N{EN DASH}"
# One look for each variant, the same everywhere, so that the colour is never the only sign:
# marker and line of a curve, pattern of a bar, the marker's outline for the legend.
LOOKS = (
    ("circle", "solid", "", "M8 3a5 5 0 1 0 .01 0z"),
    ("square", "dash", "/", "M3 3h10v10H3z"),
    ("diamond", "dot", "\\", "M8 2l6 6-6 6-6-6z"),
    ("triangle-up", "dashdot", "x", "M8 2l6 11H2z"),
    ("triangle-down", "longdash", "-", "M8 14l6-11H2z"),
    ("cross", "longdashdot", "|", "M6 2h4v4h4v4h-4v4H6v-4H2V6h4z"),
    ("pentagon", "solid", "+", "M8 2l6 4.4-2.3 7.1H4.3L2 6.4z"),
    ("hexagon", "dash", ".", "M8 2l5.2 3v6L8 14l-5.2-3V5z"),
)
IMPOSSIBLE = "impossible: below the floor, not counted"


class Column(NamedTuple):
    """A column of the table: what it sorts by, its heading, what it means."""

    key: str
    title: str
    hint: str = ""


TEXT_COLUMNS = (
    Column("operator", "operator"),
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
    Column("of_floor", "% of floor", "the least time this machine allows, over the median"),
    Column(
        "error", "error share", "largest error over what the precision allows; above 1 is wrong"
    ),
    Column("peak", "peak MB", "the most memory held during a call"),
    Column("first", "first call", "compilation, tuning and warm-up included"),
)
STATUS = Column("status", "status")


def build(paths: list[Path], command: str) -> str:
    """The page for these files; ``command`` is what made it, as a reader would type it."""
    templates, offline = environment(), _optional("plotly.offline")
    runs, rows = _read(paths)
    here = Path(__file__).parent
    scripts = [offline.get_plotlyjs(), (here / "page.js").read_text(encoding="utf-8")]
    ours = {_group(row): row for row in rows if row.variant == OURS}
    labels = _run_labels(runs)
    # Where the device tells the run, its name is not repeated at every row.
    told = len({(row.run, row.device) for row in rows}) == len({row.device for row in rows})
    views = [_view(row, ours.get(_group(row)), labels[row.run], told) for row in rows]
    variants = _variants(rows)
    data = {
        "rows": views,
        "variants": variants,
        "looks": LOOKS,
        "runs": {labels[run.id]: _ceilings(run) for _, run in runs},
    }
    page = templates.get_template("template.html.j2").render(
        policy=_policy(scripts),
        style=(here / "style.css").read_text(encoding="utf-8"),
        scripts=scripts,
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        rows=views,
        text_columns=TEXT_COLUMNS,
        number_columns=NUMBER_COLUMNS,
        status=STATUS,
        filters=_filters(views, variants),
        outcomes=OUTCOMES,
        variants=[v for v in variants if v in {row.variant for row in rows}],
        ours=OURS,
        looks={v: (look, LOOKS[look][-1]) for v, look in marks(rows).items()},
        verdict=_verdict(views, variants),
        runs=[_facts(file, run) for file, run in runs],
        impossible=IMPOSSIBLE,
        command=command,
    )
    return str(page)


def environment() -> Any:
    """Where templates are found, and how strictly they are filled in."""
    jinja2 = _optional("jinja2")
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def marks(rows: list[Row]) -> dict[str, int]:
    """The look of each variant, by number."""
    return {name: at % len(LOOKS) for at, name in enumerate(_variants(rows))}


def _optional(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise RuntimeError(
            f"{package} is not installed; pip install 'transfuse[report]'"
        ) from error


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


def _policy(scripts: list[str]) -> str:
    """A content policy: nothing is fetched, and no script runs but ours."""
    hashes = (b64encode(sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    )


def _group(row: Row) -> tuple[object, ...]:
    return row.run, row.device, *row.key, row.name, row.axis, row.at


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _variants(rows: list[Row]) -> list[str]:
    """transfuse, even where it is absent, the baseline, then the others as they come."""
    found = _distinct([OURS, *(row.variant for row in rows)])
    return sorted(found, key=lambda v: (v != OURS, v != BASELINE))


def _run_labels(runs: list[tuple[Path, Run]]) -> dict[str, str]:
    """A name for each run: its file, and its id where others have a file of that name."""
    count = Counter(file.name for file, _ in runs)
    return {
        run.id: file.name if count[file.name] == 1 else f"{file.name} {run.id}"
        for file, run in runs
    }


def _filters(views: list[dict[str, Any]], variants: list[str]) -> list[tuple[str, str, list[str]]]:
    def values(key: str) -> list[str]:
        return _distinct(view[key] for view in views)

    found = [
        ("operator", "Operator", values("operator")),
        ("precision", "Precision", values("precision")),
        ("device", "Device", values("device")),
        ("variant", "Variant", [v for v in variants if v in values("variant")]),
        ("set", "Case set", values("set")),
        ("outcome", "transfuse is", [o for o in OUTCOMES if o in values("outcome")]),
    ]
    return found + ([("run", "Run", values("run"))] if len(values("run")) > 1 else [])


def _verdict(views: list[dict[str, Any]], variants: list[str]) -> dict[str, Any]:
    """How often transfuse won, lost and neither, against each peer, and its own faults."""
    by_peer = {
        peer: Counter(view["outcome"] for view in views if view["variant"] == peer)
        for peer in variants
        if peer != OURS
    }
    faults = Counter(
        "impossible" if view["impossible"] else view["status"]
        for view in views
        if view["variant"] == OURS and (view["impossible"] or view["status"] != "ok")
    )
    return {"peers": by_peer, "total": sum(by_peer.values(), Counter()), "faults": faults}


def _outcome(row: Row, ours: Row | None) -> str:
    """A difference counts where p20 to p80 of the ratio lies on one side of 1."""
    if row.variant == OURS:
        return ""
    if row.ratio is None or row.impossible or (ours is not None and ours.impossible):
        return "not compared"
    if row.ratio.p20 > 1:
        return "faster"
    return "slower" if row.ratio.p80 < 1 else "no difference"


def _view(row: Row, ours: Row | None, run: str, told: bool) -> dict[str, Any]:
    """A row as the page needs it: values to sort and draw by, texts to show."""
    place = ", ".join([row.setting, row.device, *([] if told else [run])])
    time, p20, p80 = _scaled(row.time, 1e3)
    ratio, ratio20, ratio80 = _scaled(row.ratio if row.variant != OURS else None, 1)
    at = f"{row.axis} {row.at}"
    name = row.name.strip() or "unnamed"
    values: dict[str, Any] = {
        "operator": row.slug.removeprefix("conv-transpose").removeprefix("-") or row.slug,
        "case": f"{name}, {at}" if row.axis and at not in name else name,
        "line": row.case,
        "precision": row.setting,
        "device": row.device,
        "variant": row.variant,
        "set": f"sizes along {row.axis}" if row.axis else name.split()[0],
        "run": run,
        "place": place,
        "outcome": _outcome(row, ours),
        "status": row.status,
        "impossible": row.impossible,
        "backend": row.backend,
        "reason": row.reason,
        "axis": row.axis,
        "at": row.at,
        "time": time,
        "p20": p20,
        "p80": p80,
        "ratio": ratio,
        "ratio20": ratio20,
        "ratio80": ratio80,
        "of_floor": _finite(row.of_floor and row.of_floor * 100),
        # An infinite error, or none that is a number, is the worst there is.
        "error": row.error if row.error is None or isfinite(row.error) else float_info.max,
        "peak": _finite(row.peak_bytes and row.peak_bytes / 1e6),
        "first": _finite(row.first_call),
        "intensity": row.flops / row.bytes if row.bytes else None,
        "rate": row.flops / time * 1e3 if time else None,
    }
    texts: dict[str, str] = {
        "time": _text(time, number),
        "p20": NONE
        if p20 is None or p80 is None
        else f"{number(p20, time)}{TO}{number(p80, time)}",
        "ratio": _text(ratio, times),
        "of_floor": _text(values["of_floor"], number),
        "error": _text(row.error, lambda share: f"{share:.3f}"),
        "peak": _text(values["peak"], number),
        "first": _text(values["first"], seconds),
    }
    hover = [row.variant, f"{values['operator']}, {values['case']}", place]
    if time is not None:
        hover.append(f"{texts['time']} ms ({texts['p20']})")
    if ratio is not None:
        hover.append(f"{texts['ratio']} ({_text(ratio20, times)}{TO}{_text(ratio80, times)})")
    if values["rate"] is not None:
        hover.append(f"{si(values['rate'], 'flop/s')}, {texts['of_floor']} % of floor")
    if row.impossible:
        hover.append(IMPOSSIBLE)
    return {**values, "texts": {**texts, "hover": hover}}


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _scaled(spread: Spread | None, factor: float) -> list[float | None]:
    """Median, p20 and p80; none of what is not finite."""
    if spread is None:
        return [None] * 3
    return [_finite(each * factor) for each in (spread.median, spread.p20, spread.p80)]


def _text(value: float | None, form: Callable[[float], str]) -> str:
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


def _ceilings(run: Run) -> dict[str, Any]:
    """The roofs of this run: copying at the largest size, the matrix product by precision."""
    copy = max(run.copy, default=(0, 0.0))[1]
    return {
        "copy": {"rate": copy, "text": f"copy {si(copy, 'B/s')}"} if _finite(copy) else None,
        "matmul": {
            precision: {"rate": rate, "text": f"matmul {si(rate, 'flop/s')}"}
            for precision, rate in run.matmul.items()
            if _finite(rate)
        },
    }


def _facts(file: Path, run: Run) -> dict[str, Any]:
    """What the environment section says of a run, as pairs of words."""
    facts: list[tuple[str, str]] = [
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
    return {"file": str(file), "facts": facts}


def _words(value: object) -> str:
    """Nested facts on one line; what is not there is left out."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items() if v not in (None, [], {}))
    if isinstance(value, list | tuple):
        plain = all(isinstance(each, str) for each in value)
        return (", " if plain else "; ").join(map(_words, value))
    return "" if value is None else str(value)
