"""Tables for a terminal: facts by name, and the passes of a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from transfuse.plan import Plan


def columns(*names: str, numbers: Sequence[str] = (), **more: Any) -> Table:
    """A table of these columns, then those of numbers; none of them breaks a word.

    Two spaces between columns: four element types fit beside an operator in 80 columns.
    """
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), **more)
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def facts(rows: Mapping[str, object]) -> Table:
    """A name and what is known of it in each row."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in rows.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        table.add_row(key, Text(shown))
    return table


def passes(title: str, plan: Plan) -> Table:
    """The passes of a plan, with what each computes, reads and writes."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_footer=True)
    table.add_column("pass", footer="total", ratio=1)
    *rows, (_, *totals) = plan.rows
    for name, total in zip(plan.columns, totals, strict=True):
        table.add_column(name, justify="right", footer=total, no_wrap=True)
    for does, *figures in rows:
        table.add_row(Text(does), *figures)
    return table
