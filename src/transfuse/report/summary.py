"""Results as a table in Markdown: ours beside the best peer of the same run."""

from pathlib import Path

from transfuse.bench.record import OURS, Row, read

BEGIN, END = "<!-- results: {file} -->", "<!-- end of results -->"
"""Between these two lines of a document its table is kept."""


def markdown(path: Path) -> str:
    """One line for each case and precision class of a file, in its order."""
    _, rows = read(path)
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.status == "ok" and row.time is not None:
            groups.setdefault(row.key, []).append(row)
    lines = [
        "| operator | precision | transfuse ms | of floor | best peer | its ms | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for (slug, *_), group in groups.items():
        ours = [row for row in group if row.variant == OURS]
        peers = [row for row in group if row.variant != OURS and row.ratio is not None]
        if not (ours and peers):
            continue
        best = min(peers, key=lambda row: row.ratio.median if row.ratio else 0.0)
        assert ours[0].time
        assert best.time
        assert best.ratio
        share = "" if ours[0].of_floor is None else f"{100 * ours[0].of_floor:.0f} %"
        cells = (
            f"`{slug}`",
            ours[0].setting,
            f"{1e3 * ours[0].time.median:.3g}",
            share,
            best.variant,
            f"{1e3 * best.time.median:.3g}",
            f"{best.ratio.median:.2f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def update(document: Path, results: Path) -> str:
    """The document with the table between its two marks made again from ``results``."""
    text = document.read_text(encoding="utf-8")
    begin = BEGIN.format(file=results.as_posix())
    head, found, rest = text.partition(begin)
    _, ended, tail = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{document} has no lines {begin!r} and {END!r} to put a table between")
    return f"{head}{begin}\n\n{markdown(results)}\n\n{END}{tail}"
