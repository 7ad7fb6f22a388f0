"""The command line. Every command has --json; a bad argument is one line and exit status 2."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.text import Text

from transfuse import __version__
from transfuse.cli.catalogue import env, explain, list_operators, show
from transfuse.cli.checking import check
from transfuse.cli.compiling import compile_
from transfuse.cli.fusing import fuse
from transfuse.cli.helping import Command, Commands
from transfuse.cli.measuring import bench, report
from transfuse.cli.output import err
from transfuse.cli.tuning import tune

app = typer.Typer(
    cls=Commands,
    help="Transposed convolutions, fused.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS: dict[str, Callable[..., None]] = {
    "fuse": fuse,
    "list": list_operators,
    "show": show,
    "check": check,
    "explain": explain,
    "bench": bench,
    "report": report,
    "tune": tune,
    "compile": compile_,
    "env": env,
}
"""In the order in which a newcomer meets them."""
for name, command in COMMANDS.items():
    app.command(name, cls=Command)(command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"transfuse {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line."""
    try:
        app()
    except (ValueError, RuntimeError, TypeError, KeyError, OSError) as error:
        err.print(Text.assemble(("error: ", "bold red"), _said(error)), soft_wrap=True)
        sys.exit(2)


def _said(error: Exception) -> str:
    """The system's faults name the file first, and no number."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return str(error)
