"""check: every backend against the oracle."""

from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.text import Text

from transfuse.backends import BACKENDS
from transfuse.cases import Case
from transfuse.check import Result, cases, check_all
from transfuse.cli.output import Json, Slugs, err, out, print_json
from transfuse.elements import ELEMENTS
from transfuse.machine import place
from transfuse.operators import OPERATORS, Operator, operator
from transfuse.problem import arithmetics
from transfuse.tables import columns


def check(
    slugs: Slugs = None,
    random: Annotated[
        int, typer.Option(metavar="N", min=0, help="Random cases for each operator.")
    ] = 8,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Seed of the cases and their values.")
    ] = 0,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE", help="Element types, and on a GPU tf32; all of them by default."
        ),
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda.")] = "cpu",
    backend: Annotated[str | None, typer.Option(metavar="NAME", help="Only this backend.")] = None,
    case: Annotated[
        str | None,
        typer.Option(
            metavar="CASE", help="Only this case: a name, or a problem line with scalars."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare every backend that can run here with the float64 oracle."""
    if backend is not None and backend not in (each.name for each in BACKENDS):
        known = ", ".join(each.name for each in BACKENDS)
        raise ValueError(f"unknown backend {backend!r}; known: {known}")
    here = place(device)
    dtypes = tuple(dtype or arithmetics(here))
    for name in dtypes:
        if name not in (*ELEMENTS, "tf32"):
            raise ValueError(f"unknown element type {name!r}; known: {', '.join(ELEMENTS)}, tf32")
    work: list[tuple[Operator, list[Case]]] = []
    for op in [operator(slug) for slug in slugs or OPERATORS]:
        if case is None:
            work.append((op, cases(op, random, seed, dtypes, here)))
        else:
            line = op.case(case)
            work.append((op, [line.on(name) for name in dtype or [line.problem.arithmetic]]))
    results: list[Result] = []
    parts = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*parts, console=err, transient=True, disable=as_json) as progress:
        task = progress.add_task("checking", total=sum(len(lines) for _, lines in work))
        for op, lines in work:
            for line in lines:
                results += check_all(op, [line], seed, backend)
                progress.advance(task)
    failures = [result for result in results if result.status == "failed"]
    if as_json:
        print_json([_result(result) for result in results])
    else:
        _print_results(results, failures)
    if failures or not any(result.status == "passed" for result in results):
        raise typer.Exit(1)


def _result(result: Result) -> dict[str, Any]:
    return {
        "slug": result.slug,
        "backend": result.backend,
        "case": str(result.case),
        "seed": result.seed,
        "status": result.status,
        "budget_used": result.used if result.used != float("inf") else None,
        "why": result.fault or result.refusal,
        "command": result.command,
    }


def _print_results(results: list[Result], failures: list[Result]) -> None:
    dtypes = list(dict.fromkeys(result.case.problem.arithmetic for result in results))
    table = columns(
        "operator", "backend", caption="cases passed, and the worst error as a share of its budget"
    )
    for name in dtypes:
        table.add_column(name)  # where there are five of them, a cell takes two lines
    rows: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        rows.setdefault((result.slug, result.backend), []).append(result)
    for (slug, backend), group in rows.items():
        cells = ([r for r in group if r.case.problem.arithmetic == dtype] for dtype in dtypes)
        table.add_row(operator(slug).short, backend, *map(_cell, cells))
    out.print(table)
    for failure in failures:
        out.print(Text.assemble(("FAILED  ", "bold red"), failure.fault), soft_wrap=True)
        out.print(Text(f"  {failure.command}"), soft_wrap=True)
    for reason in sorted({f"{r.backend}: {r.refusal}" for r in results if r.refusal}):
        out.print(Text(f"refused  {reason}", style="yellow"))
    ran = sum(result.status != "refused" for result in results)
    passed = f"all {ran} cases passed" if ran else "no case ran: each was refused"
    verdict = f"{len(failures)} of {ran} cases failed" if failures else passed
    out.print(Text(verdict, style="bold red" if failures or not ran else "bold green"))


def _cell(results: list[Result]) -> Text:
    ran = [result for result in results if result.status != "refused"]
    if not ran:
        return Text("refused", style="yellow")
    passed = sum(result.status == "passed" for result in ran)
    worst = max(result.used for result in ran)
    return Text(f"{passed}/{len(ran)} {worst:.2f}", style="green" if passed == len(ran) else "red")
