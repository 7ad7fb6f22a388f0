"""compile: kernels made ready before anybody calls them, with or without a GPU."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from transfuse import settings
from transfuse.backends.triton.gpu import MULTIPROCESSORS
from transfuse.chain import Chain
from transfuse.cli import common as shipped
from transfuse.cli.output import CaseOf, Json, Line, Slugs, Then, err, out, print_json
from transfuse.cli.tuning import asked, known
from transfuse.machine import place


def compile_(
    slugs: Slugs = None,
    problem: Line = None,
    then: Then = None,
    case: CaseOf = "benchmark",
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="Element types, tf32 among them; the line's own."),
    ] = None,
    architecture: Annotated[
        list[str] | None,
        typer.Option(
            "--for", metavar="GPU", help="sm_80, sm_90, ...; this machine's GPU, or else these two."
        ),
    ] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="contiguous, channels_last; the line's own."),
    ] = None,
    common: Annotated[
        bool, typer.Option("--common", help="All that comes with the package.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="The folder to fill; the user's own by default.",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", metavar="N", min=1, help="Processes.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile kernels into a folder, for GPUs that need not be here.

    With them no compiler is needed where they run.
    """
    from transfuse.backends.triton import ahead

    to = folder or settings.kernels()
    if to is None:
        raise ValueError("there is no home for compiled kernels; give --output, -o")
    if common and (slugs or problem or then or dtype or layout):
        raise ValueError("--common has calls, element types and layouts of its own")
    kinds = [_architecture(name) for name in architecture or []] or _here()
    known(dtype or [], "cuda")
    for name in layout or []:
        if name not in shipped.LAYOUTS:
            raise ValueError(f"unknown layout {name!r}; known: {', '.join(shipped.LAYOUTS)}")
    mine = () if common else asked(slugs, problem, then, case)
    calls = shipped.calls() if common else ((*each, dtype) for each in mine)
    layouts = shipped.LAYOUTS if common else layout
    work = [
        ahead.Wanted(chain.stages, replace(on.problem, layout=lies))
        for chain, line, dtypes in calls
        for kind in kinds
        for arithmetic in dtypes or [line.problem.arithmetic]
        for lies in layouts or [line.problem.layout]
        if (on := line.on(arithmetic, f"cuda:sm{kind}"))
    ]
    rows, columns = [], (TextColumn("compiled"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=as_json) as progress:
        task = progress.add_task("", total=len(work))
        for each in ahead.compiled(work, to, jobs or os.cpu_count() or 1):
            rows.append(_row(each))
            progress.advance(task)
    kernels = {key for row in rows for key in row["kernels"]}
    if as_json:
        return print_json({"folder": str(to), "calls": rows, "kernels": len(kernels)})
    for row in rows:
        if row["fault"]:
            out.print(f"not compiled: {row['chain']}, {row['problem']}: {row['fault']}")
    out.print(f"{len(kernels)} kernels for {len(rows)} calls are in {to}", soft_wrap=True)


def _architecture(name: str) -> int:
    found = re.fullmatch(r"sm_?(\d+)", name)
    if found is None or int(found[1]) not in MULTIPROCESSORS:
        names = ", ".join(f"sm_{each}" for each in MULTIPROCESSORS)
        raise ValueError(f"unknown architecture {name!r}; known: {names}")
    return int(found[1])


def _here() -> list[int]:
    """The GPU of this machine; without one, those that the package brings kernels for."""
    if torch.cuda.device_count():
        return [_architecture(place("cuda").partition(":")[2])]
    return list(shipped.ARCHITECTURES)


def _row(each: Any) -> dict[str, Any]:
    return {
        "chain": str(Chain(*each.wanted.stages)),
        "problem": str(each.wanted.problem),
        "kernels": list(each.keys),
        "fault": each.fault,
    }
