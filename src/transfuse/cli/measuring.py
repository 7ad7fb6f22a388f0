"""bench and report: measure, compare, and show."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from transfuse.bench.compare import Change, compare
from transfuse.bench.peers import Peer
from transfuse.bench.record import BASELINE, OURS, Row
from transfuse.bench.session import Session, classes, variants
from transfuse.bench.subjects import SETS, Subject, subjects
from transfuse.bench.ways import Way, ways
from transfuse.bench.whole import MODELS_SET, Whole, models
from transfuse.cli.output import Json, Slugs, err, out, print_json
from transfuse.cli.results import results
from transfuse.cli.status import Status
from transfuse.machine import place
from transfuse.operators import short
from transfuse.tables import columns


def bench(
    slugs: Slugs = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME",
            help=f"Cases: {', '.join((*SETS, MODELS_SET))}. Default: cpu, on a GPU benchmark.",
        ),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(metavar="CASE", help="A case by name, or any problem line with scalars."),
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="fp32 (ieee), tf32, fp16, bf16, fp64.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="A whole model by name, or FILE.py:MODEL."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="SIZES", help="The model's input, 1x3x64x64; one each."),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda.")] = "cpu",
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these peers; all of them by default."),
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="Steps of training: calls and all their gradients.")
    ] = False,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Rounds for each case.")] = 20,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Stop a case's rounds after this.")
    ] = 10.0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the values.")] = 0,
    output: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="File of results (JSON lines).")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Go on with this file; what it has is left out."),
    ] = None,
    at_least: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Fail below this share of torch eager's speed, 0.5 say."
        ),
    ] = None,
    comparison: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="OLD NEW", help="Compare two files of results."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Time transfuse beside its peers, in turn and in one run; only right results are timed."""
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
    try:
        with Status(len(session.work), quiet=as_json) as status:
            session.tell = status.tell
            for group in session:
                rows += group
                status.advance()
    except KeyboardInterrupt:
        err.print(f"interrupted: {len(rows)} rows kept; go on with --resume {path}")
        raise typer.Exit(130) from None
    if as_json:
        print_json({"file": str(path), "rows": [asdict(row) for row in rows]})
    else:
        for part in results(rows, out.width):
            out.print(part)
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


def _compare(old: Path, new: Path, as_json: bool) -> None:
    changes = compare(old, new)
    if as_json:
        return print_json([asdict(change) for change in changes])
    for (slug, case, setting), group in groupby(
        changes, key=lambda c: (c.slug, c.case, c.precision)
    ):
        out.print(Text.assemble((short(slug), "bold"), f"  {setting}\n  {case}"), soft_wrap=True)
        table = columns("variant", numbers=("old", "new", "change"))
        table.add_column("verdict")
        for each in group:
            table.add_row(*_sides(each))
        out.print(table)
    out.print("old and new: seconds on a GPU, on a CPU the share of torch eager's time;")
    out.print("change: new over old, below 1 is faster; the verdict knows how far both spread")


def _sides(change: Change) -> tuple[Text, ...]:
    sides = ("" if s is None else f"{s.median:.3g}" for s in (change.old, change.new))
    ratio = "" if change.change is None else f"{change.change:.3f}"
    style = {"faster": "green", "slower": "red"}.get(change.verdict, "")
    return (*map(Text, (change.variant, *sides, ratio)), Text(change.verdict, style=style))


def report(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Files of results, from transfuse bench.")
    ],
    output: Annotated[
        Path,
        typer.Option("-o", metavar="FILE", help="The page to write; or, named *.svg, a figure."),
    ] = Path("report.html"),
    into: Annotated[
        Path | None,
        typer.Option(metavar="DOC", help="Make the tables of a Markdown document again instead."),
    ] = None,
    as_json: Json = False,
) -> None:
    """One page of results with charts and every row; a figure; or the tables of a document."""
    from transfuse.report import build
    from transfuse.report.figure import figure
    from transfuse.report.summary import update

    if into is not None:
        for file in files:
            into.write_text(update(into, file), encoding="utf-8")
        return
    if output.suffix == ".svg":
        page = figure(files)
    else:
        page = build(files, " ".join(["transfuse", *sys.argv[1:]]))
    output.write_text(page, encoding="utf-8")
    if as_json:
        print_json({"page": str(output), "bytes": len(page.encode())})
    else:
        out.print(f"{output}: {len(page.encode()) / 1e3:,.0f} kB, open it in any browser")
