"""Results as tables in Markdown: ours beside the best peer of the same run.

A document says where its tables stand, and which: between two lines, of which the first names a
file, for every row, or a file and a precision, for a short table of these rows alone.
"""

import re
from pathlib import Path

from transfuse.bench.record import OURS, Row, read
from transfuse.operators import short

BEGIN, END = "<!-- results: {file} -->", "<!-- end of results -->"
BRIEF = ("operator", "transfuse ms", "best peer", "its ms", "ratio")


def markdown(path: Path, precision: str = "") -> str:
    """One line for each case and precision class of a file, in its order.

    Of the two floors it shows those that the file knows: older ones have the definition's alone.
    With a precision it shows these rows alone, and no floors.
    """
    _, rows = read(path)
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.status == "ok" and row.time is not None:
            groups.setdefault(row.key, []).append(row)
    found = [cells for (slug, *_), group in groups.items() if (cells := _line(slug, group))]
    lines = [cells for cells in found if precision in ("", cells["precision"])]
    if not found:
        raise ValueError(f"{path} has no results beside a peer")
    if not lines:
        there = ", ".join(dict.fromkeys(cells["precision"] for cells in found))
        raise ValueError(f"{path} has no results in {precision!r} beside a peer; it has {there}")
    names = BRIEF if precision else tuple(lines[0])
    kept = [name for name in names if any(cells[name] for cells in lines)]
    table = [kept, ["---"] * len(kept), *([cells[name] for name in kept] for cells in lines)]
    first, second, *rest = ("|".join(["", *_spaced(cells), ""]) for cells in table)
    return "\n".join([first, second.replace(" ", ""), *rest])


def _spaced(cells: list[str]) -> list[str]:
    return [f" {cell} " for cell in cells]


def _line(slug: str, group: list[Row]) -> dict[str, str]:
    """Ours beside its best peer, by the names of columns; empty where one of them is missing."""
    ours = [row for row in group if row.variant == OURS]
    peers = [row for row in group if row.variant != OURS and row.ratio is not None]
    if not (ours and peers):
        return {}
    best = min(peers, key=lambda row: row.ratio.median if row.ratio else 0.0)
    assert ours[0].time
    assert best.time
    assert best.ratio
    return {
        "operator": f"`{short(slug)}`",
        "precision": ours[0].setting,
        "transfuse ms": f"{1e3 * ours[0].time.median:.3g}",
        "of floor": _share(ours[0].of_floor),
        "of definition": _share(ours[0].of_definition),
        "best peer": best.variant,
        "its ms": f"{1e3 * best.time.median:.3g}",
        "ratio": f"{best.ratio.median:.2f}",
    }


def _share(of: float | None) -> str:
    return "" if of is None else f"{100 * of:.0f} %"


def update(document: Path, results: Path) -> str:
    """The document with every table of ``results`` made again between its two marks."""
    text = document.read_text(encoding="utf-8")
    file = results.as_posix()
    # A table ends before the next mark: one whose end is missing must not swallow another.
    begin = rf"(<!-- results: {re.escape(file)}(?:, ([^\n]+))? -->)"
    block = rf"{begin}(?:(?!<!-- results: ).)*?{END}"

    def made(found: re.Match[str]) -> str:
        return f"{found[1]}\n\n{markdown(results, found[2] or '')}\n\n{END}"

    again, count = re.subn(block, made, text, flags=re.DOTALL)
    if not count:
        mark = BEGIN.format(file=file)
        raise ValueError(f"{document} has no lines {mark!r} and {END!r} to put a table between")
    return again
