"""What every command prints with: consoles, JSON, tables of facts."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

out = Console()
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Slug = Annotated[
    str,
    typer.Argument(metavar="OPERATOR", help="Its short name or slug; `transfuse list` has them."),
]
Slugs = Annotated[
    list[str] | None,
    typer.Argument(metavar="OPERATOR", help="Short names or slugs; all operators by default."),
]
Line = Annotated[
    str | None, typer.Option(metavar="LINE", help="A problem line instead of an operator.")
]
Then = Annotated[
    list[str] | None,
    typer.Option(
        metavar="STAGES", help="Stages after that problem's convolution: 'max_pool(2), tanh'."
    ),
]
CaseOf = Annotated[
    str, typer.Option(metavar="CASE", help="A case by name, or a problem line with scalars.")
]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
