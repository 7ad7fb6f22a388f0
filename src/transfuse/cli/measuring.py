"""bench and report: measure, compare, and show."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from transfuse.bench.compare import Change, compare
from transfuse.bench.peers import Peer
from transfuse.bench.record import BASELINE, MODEL, OURS, Row, Spread
from transfuse.bench.session import Session, classes, variants
from transfuse.bench.subjects import SETS, Subject, subjects
from transfuse.bench.ways import Way, ways
from transfuse.bench.whole import MODELS_SET, Whole, models
from transfuse.cli.model_table import milliseconds, model_table
from transfuse.cli.output import Json, Slugs, err, out, print_json
from transfuse.machine import place

FIGURES = ("ms", "p20 to p80", "ratio", "of floor", "MB")


def bench(
    slugs: Slugs = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help=f"Cases: {', '.join((*SETS, MODELS_SET))}. Default: cpu, on a GPU benchmark.",
        ),
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="A case by name, or any problem line with scalars.")
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="fp32 (ieee), tf32, fp16, bf16, fp64.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A whole model by name, or FILE.py:Name.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option("--input", help="The model's input, 1x3x64x64; one each.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    peer: Annotated[
        list[str] | None, typer.Option(help="Only these peers; all of them by default.")
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="Steps of training: calls and all their gradients.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds for each case.")] = 20,
    seconds: Annotated[float, typer.Option(min=0, help="Stop a case's rounds after this.")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the values.")] = 0,
    output: Annotated[Path | None, typer.Option("-o", help="File of results (JSON lines).")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this file; what it has is left out.")
    ] = None,
    at_least: Annotated[
        float | None, typer.Option(help="Fail below this share of torch eager's speed, 0.5 say.")
    ] = None,
    comparison: Annotated[
        tuple[Path, Path] | None, typer.Option("--compare", help="Compare two files: OLD NEW.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time transfuse beside its peers: right results only, interleaved, beside the floor."""
    if comparison:
        return _compare(*comparison, as_json)
    here = place(device)
    measured: Sequence[Subject | Whole]
    beside: Mapping[str, Peer] | Mapping[str, Way]
    if model or shape or MODELS_SET in (sets or ()):
        if slugs or case or set(sets or ()) - {MODELS_SET}:
            raise ValueError("models are measured by themselves, without operators, cases and sets")
        measured, beside = models(model or [], shape or [], here), ways(peer)
    else:
        wanted = sets or ([] if case else ["cpu" if here == "cpu" else "benchmark"])
        measured, beside = subjects(slugs or [], wanted, case or [], here), variants(peer)
    path = resume or output or Path(f"bench-{datetime.now():%Y%m%d-%H%M%S}.jsonl")
    session = Session(
        measured,
        classes(precision, here),
        beside,
        here,
        path,
        ["transfuse", *sys.argv[1:]],
        seed,
        rounds,
        seconds,
        resume=resume is not None,
        training=training,
    )
    rows: list[Row] = []
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=err, transient=True, disable=as_json) as progress:
            task = progress.add_task("measuring", total=len(session.work))
            for group in session:
                rows += group
                progress.advance(task)
    except KeyboardInterrupt:
        err.print(f"interrupted: {len(rows)} rows kept; go on with --resume {path}")
        raise typer.Exit(130) from None
    if as_json:
        print_json({"file": str(path), "rows": [asdict(row) for row in rows]})
    else:
        out.print(model_table(rows, out.width) if measured[0].slug == MODEL else _table(rows))
        if session.skipped:
            out.print(f"{session.skipped} cases were in the file already")
        out.print(f"results: {path}   page: transfuse report {path} -o report.html", soft_wrap=True)
    slow = [row for row in rows if row.variant == BASELINE and _slower(row, at_least)]
    for row in slow:
        assert row.ratio
        err.print(Text(f"slower than {BASELINE}: {row.ratio.median:.2f}x  {row.slug} {row.case}"))
    wrong = [row for row in rows if row.variant == OURS and row.status != "ok"]
    if slow or wrong:
        raise typer.Exit(1)


def _slower(row: Row, at_least: float | None) -> bool:
    return at_least is not None and row.ratio is not None and row.ratio.p80 < at_least


def _table(rows: list[Row]) -> Table:
    table = Table(
        box=box.SIMPLE,
        caption=f"ratio: this variant's time over {OURS}'s in the same rounds; "
        "above 1 transfuse is faster",
    )
    for name in ("operator", "case", "class", "variant"):
        table.add_column(name, overflow="fold")
    # A narrow terminal has no room for the spread and the memory; the file has them.
    shown = [name for name in FIGURES if out.width >= 110 or name not in ("p20 to p80", "MB")]
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    last: tuple[str, str, str] | None = None
    for row in rows:
        if last is not None and row.key != last:
            table.add_section()
        first = row.key != last
        last = row.key
        label = row.slug.removeprefix("conv-transpose").removeprefix("-")
        name = (row.name if not row.axis else f"{row.axis} {row.at}") if first else ""
        head = (label if first else "", name, row.setting if first else "")
        style = "bold" if row.variant == OURS else ""
        if row.time is None:
            why = f"{row.variant}: {row.status}, {row.reason}"
            table.add_row(*head, Text(why, style="yellow"))
        else:
            table.add_row(*head, Text(row.variant, style=style), *_figures(row, row.time, shown))
    return table


def _figures(row: Row, time: Spread, shown: list[str]) -> list[Text | str]:
    ratio = row.ratio.median if row.ratio else None
    style = "" if ratio is None else "green" if ratio >= 1 else "red"
    share = row.of_floor or 0.0
    floor = Text("impossible", style="bold red") if row.impossible else f"{100 * share:.0f}%"
    figures: tuple[Text | str, ...] = (
        milliseconds(time.median),
        f"{milliseconds(time.p20)} to {milliseconds(time.p80)}",
        Text("" if ratio is None else f"{ratio:.2f}x", style=style),
        floor,
        "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.1f}",
    )
    return [figure for name, figure in zip(FIGURES, figures, strict=True) if name in shown]


def _compare(old: Path, new: Path, as_json: bool) -> None:
    changes = compare(old, new)
    if as_json:
        return print_json([asdict(change) for change in changes])
    table = Table(box=box.SIMPLE, caption="change: new over old, below 1 is faster")
    for name in ("operator", "case", "variant", "unit", "old", "new", "change", "verdict"):
        table.add_column(name, overflow="fold")
    styles = {"faster": "green", "slower": "red"}
    for each in changes:
        verdict = Text(each.verdict, style=styles.get(each.verdict, ""))
        table.add_row(*_sides(each), verdict)
    out.print(table)


def _sides(change: Change) -> tuple[str, ...]:
    def shown(spread: Any) -> str:
        return (
            "" if spread is None else f"{spread.median:.4g} ({spread.p20:.4g} to {spread.p80:.4g})"
        )

    label = change.slug.removeprefix("conv-transpose").removeprefix("-")
    ratio = "" if change.change is None else f"{change.change:.3f}"
    sides = (shown(change.old), shown(change.new))
    return (label, change.case, change.variant, change.unit, *sides, ratio)


def report(
    files: Annotated[list[Path], typer.Argument(help="Files of results, from transfuse bench.")],
    output: Annotated[
        Path, typer.Option("-o", help="The page to write; or, named *.svg, one file's figure.")
    ] = Path("report.html"),
    into: Annotated[
        Path | None, typer.Option(help="Make the table of a Markdown document again instead.")
    ] = None,
    as_json: Json = False,
) -> None:
    """One self-contained page of results: table, speed-ups, roofline, scaling, environment."""
    from transfuse.report import build
    from transfuse.report.figure import figure
    from transfuse.report.summary import update

    if into is not None:
        for file in files:
            into.write_text(update(into, file), encoding="utf-8")
        return
    if output.suffix == ".svg":
        if len(files) > 1:
            raise ValueError(f"a figure shows one file of results, not {len(files)}")
        page = figure(files[0])
    else:
        page = build(files, " ".join(["transfuse", *sys.argv[1:]]))
    output.write_text(page, encoding="utf-8")
    if as_json:
        print_json({"page": str(output), "bytes": len(page.encode())})
    else:
        out.print(f"{output}: {len(page.encode()) / 1e3:,.0f} kB, open it in any browser")
