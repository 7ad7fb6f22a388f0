"""Results as a table in Markdown: ours beside the best peer of the same run."""

from pathlib import Path

from transfuse.bench.record import OURS, Row, read

BEGIN, END = "<!-- results: {file} -->", "<!-- end of results -->"
"""Between these two lines of a document its table is kept."""


def markdown(path: Path) -> str:
    """One line for each case and precision class of a file, in its order.

    Of the two floors it shows those that the file knows: older ones have the definition's alone.
    """
    _, rows = read(path)
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.status == "ok" and row.time is not None:
            groups.setdefault(row.key, []).append(row)
    lines = [cells for (slug, *_), group in groups.items() if (cells := _line(slug, group))]
    names = list(lines[0]) if lines else []
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
        "operator": f"`{slug}`",
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
    """The document with the table between its two marks made again from ``results``."""
    text = document.read_text(encoding="utf-8")
    begin = BEGIN.format(file=results.as_posix())
    head, found, rest = text.partition(begin)
    _, ended, tail = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{document} has no lines {begin!r} and {END!r} to put a table between")
    return f"{head}{begin}\n\n{markdown(results)}\n\n{END}{tail}"
