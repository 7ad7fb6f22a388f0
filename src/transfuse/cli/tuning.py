"""tune: measure tiles, and keep the best."""

from collections.abc import Iterator
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from transfuse import settings
from transfuse.backends.triton import tuned, tuned_files
from transfuse.bench.clock import clock
from transfuse.cases import Case
from transfuse.chain import Chain
from transfuse.cli.output import CaseOf, Json, Line, Slugs, Then, err, out, print_json
from transfuse.machine import place
from transfuse.operators import OPERATORS, operator
from transfuse.problem import Problem, arithmetics
from transfuse.stages import conv_transpose
from transfuse.stages.text import parse


def tune(
    slugs: Slugs = None,
    problem: Line = None,
    then: Then = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cuda.")] = "cuda",
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="Element types; tf32, or the line's own, by default."),
    ] = None,
    case: CaseOf = "benchmark",
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.001, help="For each pass.")
    ] = 60.0,
    most: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Candidates for each pass.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show what is tuned already.")] = False,
    as_json: Json = False,
) -> None:
    """Time the tiles of each convolution's passes on this GPU, and keep the best in a file."""
    if listed:
        return _list(as_json)
    here = _place(device)
    known(dtype or [], here)
    usual = "fp32" if here == "cpu" else "tf32"
    work = [
        (chain, line.on(arithmetic, here).problem)
        for chain, line in asked(slugs, problem, then, case)
        for arithmetic in dtype or [_own(line) or usual]
    ]
    from transfuse.bench.tune import Outcome, Skipped, Trial, Tuner

    tuned_files.put([])  # a file that cannot be written is found out before any time is spent
    done: list[Outcome | Skipped] = []
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=err, transient=True, disable=as_json) as progress:
            task = progress.add_task("", total=most)

            def tell(trial: Trial, best: Trial) -> None:
                tiles = tuned.shown(tuned_files.encoded(best.config))
                text = f"best {1e3 * best.seconds:.4g} ms: {tiles}"
                progress.update(task, advance=1, description=text)

            for chain, line in work:
                for found in Tuner(chain, line, clock(here), budget, most, tell):
                    done.append(found)
                    progress.reset(task)
    except KeyboardInterrupt:
        kept = sum(isinstance(each, Outcome) for each in done)
        err.print(f"interrupted: {kept} passes are tuned and kept")
        raise typer.Exit(130) from None
    finally:
        rows = [_found(each) if isinstance(each, Outcome) else _skipped(each) for each in done]
        if as_json:
            print_json(rows)
        elif rows:
            _print(rows)


def _place(device: str) -> str:
    """The GPU, as problem lines name it; the CPU, where Triton is asked to interpret."""
    if settings.interpreted():
        return "cpu"
    if torch.cuda.device_count() == 0 or device == "cpu":
        raise ValueError("tune times kernels on a GPU, and there is none here")
    return place(device)


def _own(line: Case) -> str:
    """The arithmetic that a line names; fp32 is what it has if it names none."""
    arithmetic = line.problem.arithmetic
    return "" if arithmetic == "fp32" else arithmetic


def known(dtypes: list[str], here: str) -> None:
    """Raise for the first name that is no arithmetic of a device."""
    for name in dtypes:
        if name not in arithmetics(here):
            names = ", ".join(arithmetics(here))
            raise ValueError(f"unknown element type {name!r}; known: {names}")


def asked(
    slugs: list[str] | None, problem: str | None, then: list[str] | None, case: str
) -> Iterator[tuple[Chain, Case]]:
    """What a command is asked for: operators with a case of theirs, or a chain of its own."""
    if problem is None and then:
        raise ValueError("--then goes with --problem; an operator has stages of its own")
    if problem is not None:
        if slugs:
            raise ValueError("give an operator or --problem, not both")
        line = Problem.parse(problem)
        after = [stage for text in then or [] for stage in parse(text)]
        chain = Chain(conv_transpose(line.rank), *after)
        chain.shapes(line)
        yield chain, Case(line)
        return
    for slug in slugs or OPERATORS:
        op = operator(slug)
        yield op.bound(op.case(case)), op.case(case)


def _found(each: Any) -> dict[str, Any]:
    heuristic = None if each.heuristic.fault else 1e3 * each.heuristic.seconds
    return {
        **vars(each.key),
        "problem": each.problem,
        "config": tuned_files.encoded(each.best.config),
        "ms": 1e3 * each.best.seconds,
        "heuristic_ms": heuristic,
        "tried": each.tried,
        "faults": list(each.faults),
        "file": each.file,
    }


def _skipped(each: Any) -> dict[str, Any]:
    return {**vars(each.key), "problem": each.problem, "skipped": each.why}


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE, show_lines=True)
    for name in ("pass", "tiles"):
        table.add_column(name, overflow="fold")
    for name in ("tried", "ms", "gain"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        head = Text(f"{row['chain']}\n{row['problem']}")
        if "skipped" in row:
            table.add_row(head, Text(f"not tuned: {row['skipped']}", style="yellow"))
            continue
        before = row["heuristic_ms"]
        gain = "" if before is None else f"{before / row['ms']:.2f}x"
        failed = f" ({len(row['faults'])} failed)" if row["faults"] else ""
        tiles = Text(tuned.shown(row["config"]))
        table.add_row(head, tiles, f"{row['tried']}{failed}", f"{row['ms']:.4g}", gain)
    out.print(table)
    for file in dict.fromkeys(row["file"] for row in rows if "file" in row):
        out.print(f"kept in {file}", soft_wrap=True)


def _list(as_json: bool) -> None:
    rows = [
        {**vars(key), "config": dict(each.config), "ms": each.ms, "problem": each.problem,
         "file": str(path)}
        for path, entries in tuned_files.in_force()
        for key, each in entries.items()
    ]  # fmt: skip
    if as_json:
        return print_json(rows)
    if not rows:
        out.print(f"nothing is tuned; `transfuse tune` writes {settings.tuned()}", soft_wrap=True)
        return
    table = Table(box=box.SIMPLE, show_lines=True)
    for name in ("GPU", "pass", "arithmetic", "tiles"):
        table.add_column(name, overflow="fold")
    table.add_column("ms", justify="right", no_wrap=True)
    for row in rows:
        words = (row["gpu"], f"{row['chain']}\n{row['shape']}", row["arithmetic"])
        table.add_row(*map(Text, words), Text(tuned.shown(row["config"])), f"{row['ms']:.4g}")
    out.print(table)
