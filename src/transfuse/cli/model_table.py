"""The table of whole models: a line for each way to run one."""

from rich import box
from rich.table import Table
from rich.text import Text

from transfuse.bench.record import OURS, Row

WIDE = 100
"""Columns of a terminal that has room for the spread."""


def model_table(rows: list[Row], width: int) -> Table:
    table = Table(
        box=box.SIMPLE,
        caption=f"ratio: this way's time over that of {OURS} (the fused model) in the same rounds; "
        "above 1 the fused model is faster",
    )
    table.add_column("model", overflow="fold")
    table.add_column("way", no_wrap=True)
    for name in ("ms", *(["p20 to p80"] if width >= WIDE else []), "ratio", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    last: tuple[str, str, str] | None = None
    for row in rows:
        first, last = row.key != last, row.key
        if first and row is not rows[0]:
            table.add_section()
        head = f"{row.name}, {row.setting}" if first else ""
        if row.time is None:
            why = Text(f"{row.status}, {row.reason}", style="yellow", overflow="fold")
            table.add_row(Text(f"{head}\n" if first else "") + why, row.variant)
            continue
        figures = [milliseconds(row.time.median)]
        if width >= WIDE:
            figures.append(f"{milliseconds(row.time.p20)} to {milliseconds(row.time.p80)}")
        ratio = row.ratio.median if row.ratio else None
        style = "" if ratio is None else "green" if ratio >= 1 else "red"
        table.add_row(
            head,
            Text(row.variant, style="bold" if row.variant == OURS else ""),
            *figures,
            Text("" if ratio is None else f"{ratio:.2f}x", style=style),
            "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.1f}",
        )
    return table


def milliseconds(seconds: float) -> str:
    """To three digits."""
    return f"{1e3 * seconds:.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"
