"""What every command prints with: consoles, JSON, tables of facts."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

out = Console()
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Slug = Annotated[str, typer.Argument(help="An operator: short name or slug, see `transfuse list`.")]
Slugs = Annotated[
    list[str] | None, typer.Argument(help="Operators, by short name or slug; all by default.")
]
Line = Annotated[str | None, typer.Option(help="A problem line instead of an operator.")]
Then = Annotated[
    list[str] | None,
    typer.Option(help="Stages after that problem's convolution: 'max_pool(2), tanh'."),
]
CaseOf = Annotated[str, typer.Option(help="A case by name, or a problem line with scalars.")]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
