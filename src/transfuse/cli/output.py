"""What every command prints with: consoles, JSON, tables of facts."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

out = Console()
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Slug = Annotated[str, typer.Argument(help="An operator, as `transfuse list` names it.")]
Slugs = Annotated[list[str] | None, typer.Argument(help="Operators; all of them by default.")]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def facts(rows: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in rows.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        table.add_row(key, Text(shown))
    return table
