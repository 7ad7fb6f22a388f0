"""The command line: list, show, check, explain, env. Every command has --json."""

import json
import sys
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.panel import Panel
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from transfuse import __version__, plan, rewrite
from transfuse.backends import BACKENDS
from transfuse.cases import Case
from transfuse.check import Result, cases, check_all
from transfuse.elements import ELEMENTS
from transfuse.machine import environment
from transfuse.operators import OPERATORS, Operator, operator

app = typer.Typer(
    help="Transposed convolutions, fused.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console()
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Slug = Annotated[str, typer.Argument(help="An operator, as `transfuse list` names it.")]


def main() -> None:
    """Run the command line; a bad argument is one line on stderr and exit status 2."""
    try:
        app()
    except (ValueError, RuntimeError, TypeError, KeyError) as error:
        err.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(2)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


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


@app.command("list")
def list_operators(as_json: Json = False) -> None:
    """The operators: name and what each computes."""
    rows = [
        {"slug": op.slug, "title": op.document.title, "chain": str(op.chain), "call": op.__name__}
        for op in OPERATORS.values()
    ]
    if as_json:
        return _print_json(rows)
    table = Table(box=box.SIMPLE, show_lines=True)
    table.add_column("operator", overflow="fold", max_width=34)
    table.add_column("computes")
    for row in rows:
        table.add_row(Text(row["slug"], style="bold"), Text(row["chain"]))
    out.print(table)


@app.command()
def show(slug: Slug, as_json: Json = False) -> None:
    """One operator: its document, its signature in C and Python, its chain."""
    op = operator(slug)
    document = op.document
    lines = {name: str(op.case(name)) for name in op.cases}
    facts = {
        "slug": slug,
        "title": document.title,
        "difficulty": document.difficulty,
        "tags": list(document.tags),
        "chain": str(op.chain),
        "c": document.c_signature(),
        "python": document.python_signature(),
        "function": f"transfuse.{op.__name__}{op.signature}".replace("torch.Tensor", "Tensor"),
        "cases": lines,
        "parameters": [vars(parameter) for parameter in document.parameters],
        "document": document.body,
    }
    if as_json:
        return _print_json(facts)
    out.print(Panel(Text(document.title, style="bold"), subtitle=slug, box=box.ROUNDED))
    out.print(Markdown(document.body))
    for title, key in (("C", "c"), ("Python", "python"), ("torch-style", "function")):
        out.print(Panel(Text(str(facts[key])), title=title, title_align="left", box=box.ROUNDED))
    out.print(_facts({"chain": facts["chain"], **lines}))


@app.command()
def check(
    slugs: Annotated[
        list[str] | None, typer.Argument(help="Operators; all of them by default.")
    ] = None,
    random: Annotated[int, typer.Option(min=0, help="Random cases for each operator.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the cases and their values.")] = 0,
    dtype: Annotated[
        list[str] | None, typer.Option(help="Element types; all four by default.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    backend: Annotated[str | None, typer.Option(help="Only this backend.")] = None,
    case: Annotated[
        str | None, typer.Option(help="Only this case: a name, or a problem line with scalars.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare every backend that can run here with the float64 oracle."""
    dtypes = tuple(dtype or ELEMENTS)
    for name in dtypes:
        if name not in ELEMENTS:
            raise ValueError(f"unknown element type {name!r}; known: {', '.join(ELEMENTS)}")
    if backend is not None and backend not in (each.name for each in BACKENDS):
        known = ", ".join(each.name for each in BACKENDS)
        raise ValueError(f"unknown backend {backend!r}; known: {known}")
    place = _place(device)
    work: list[tuple[Operator, list[Case]]] = []
    for op in [operator(slug) for slug in slugs or OPERATORS]:
        if case is None:
            work.append((op, cases(op, random, seed, dtypes, place)))
        else:
            line = op.case(case)
            work.append((op, [line.on(name) for name in dtype or [line.problem.dtype]]))
    results: list[Result] = []
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=as_json) as progress:
        task = progress.add_task("checking", total=sum(len(lines) for _, lines in work))
        for op, lines in work:
            for line in lines:
                results += check_all(op, [line], seed, backend)
                progress.advance(task)
    failures = [result for result in results if result.status == "failed"]
    if as_json:
        _print_json([_result(result) for result in results])
    else:
        _print_results(results, failures)
    if failures or not any(result.status == "passed" for result in results):
        raise typer.Exit(1)


def _place(device: str) -> str:
    """The device as problem lines name it."""
    if device == "cpu":
        return "cpu"
    gpus = environment()["gpus"]
    if device != "cuda" or not gpus:
        raise ValueError(
            f"device {device!r} is not here; this machine has cpu{', cuda' * len(gpus)}"
        )
    return f"cuda:{gpus[0]['capability']}"


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
    dtypes = list(dict.fromkeys(result.case.problem.dtype for result in results))
    table = Table(box=box.SIMPLE, caption="passed, and the worst error as a share of its budget")
    table.add_column("operator", overflow="fold")
    for name in ("backend", *dtypes):
        table.add_column(name, no_wrap=True)
    rows: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        rows.setdefault((result.slug, result.backend), []).append(result)
    for (slug, backend), group in rows.items():
        cells = ([r for r in group if r.case.problem.dtype == dtype] for dtype in dtypes)
        table.add_row(operator(slug).label, backend, *map(_cell, cells))
    out.print(table)
    for failure in failures:
        out.print(Text.assemble(("FAILED  ", "bold red"), failure.fault), soft_wrap=True)
        out.print(Text(f"  {failure.command}"), soft_wrap=True)
    for reason in sorted({f"{r.backend}: {r.refusal}" for r in results if r.refusal}):
        out.print(Text(f"refused  {reason}", style="yellow"))
    ran = sum(result.status != "refused" for result in results)
    verdict = f"{len(failures)} of {ran} cases failed" if failures else f"all {ran} cases passed"
    out.print(Text(verdict, style="bold red" if failures or not ran else "bold green"))


def _cell(results: list[Result]) -> Text:
    ran = [result for result in results if result.status != "refused"]
    if not ran:
        return Text("refused", style="yellow")
    passed = sum(result.status == "passed" for result in ran)
    worst = max(result.used for result in ran)
    return Text(f"{passed}/{len(ran)} {worst:.2f}", style="green" if passed == len(ran) else "red")


@app.command()
def explain(
    slug: Slug,
    sizes: Annotated[
        list[str] | None,
        typer.Argument(help="A named case, a problem line, or both; default: benchmark."),
    ] = None,
    as_json: Json = False,
) -> None:
    """What would run and why: problem line, rewrites, plan, and each backend's verdict."""
    op = operator(slug)
    case = op.case(" ".join(sizes or ["benchmark"]))
    chain, problem = op.bound(case), case.problem
    chain.shapes(problem)
    steps = rewrite.rewrite(chain)
    fused = plan.fused(chain, problem)
    verdicts = {each: each.verdict(chain, problem) for each in BACKENDS}
    chosen = next((each for each, verdict in verdicts.items() if verdict.ok), None)
    if as_json:
        return _print_json(
            {
                "slug": slug,
                "case": str(case),
                "chain": str(chain),
                "rewrites": [
                    {"name": s.rewrite.name, "assumes": s.rewrite.assumes, "chain": str(s.chain)}
                    for s in steps
                ],
                "fused": _plan(fused),
                "backends": {each.name: v.reason or "yes" for each, v in verdicts.items()},
                "chosen": chosen.name if chosen else None,
                "plan": _plan(chosen.plan(chain, problem)) if chosen else None,
            }
        )
    out.print(_facts({"problem": str(case), "chain": str(chain)}))
    for step in steps:
        assumes = f" (assumes {step.rewrite.assumes})" if step.rewrite.assumes else ""
        out.print(Text.assemble((step.rewrite.name, "bold"), f": {step.rewrite.says}{assumes}"))
        out.print(Text(f"  {step.chain}", style="dim"))
    out.print(_plan_table("as few passes as the mathematics allows", fused))
    out.print(
        Text(
            f"least possible: {fused.work / 1e9:.1f} GFLOP, {fused.least / 1e6:.0f} MB; "
            f"scratch of this plan: {fused.scratch / 1e6:.1f} MB"
        )
    )
    out.print()
    out.print(_facts({each.name: v.reason or "yes" for each, v in verdicts.items()}))
    if chosen:
        out.print(_plan_table(f"what {chosen.name} will run", chosen.plan(chain, problem)))


def _plan(each: plan.Plan) -> dict[str, Any]:
    return {
        "chain": str(each.chain),
        "work_flops": each.work,
        "least_bytes": each.least,
        "scratch_bytes": each.scratch,
        "flops": each.flops,
        "bytes": each.bytes,
        "passes": [vars(step) for step in each.passes],
    }


def _plan_table(title: str, each: plan.Plan) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_footer=True)
    table.add_column("pass", footer="total", ratio=1)
    reads, writes = (sum(getattr(p, key) for p in each.passes) for key in ("reads", "writes"))
    for name, total in (
        ("GFLOP", each.flops / 1e9),
        ("MB read", reads / 1e6),
        ("MB written", writes / 1e6),
    ):
        table.add_column(name, justify="right", footer=f"{total:.1f}", no_wrap=True)
    for step in each.passes:
        figures = (step.flops / 1e9, step.reads / 1e6, step.writes / 1e6)
        table.add_row(Text(step.does), *(f"{figure:.1f}" for figure in figures))
    return table


@app.command()
def env(as_json: Json = False) -> None:
    """What this machine offers, for bug reports."""
    facts = environment()
    if as_json:
        return _print_json(facts)
    packages = {name: version or "not installed" for name, version in facts.pop("packages").items()}
    gpus = [" ".join(f"{k}={v}" for k, v in gpu.items()) for gpu in facts.pop("gpus")]
    settings = facts.pop("settings")
    out.print(_facts({**packages, **facts, "gpus": ", ".join(gpus) or "none", **settings}))


def _facts(facts: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in facts.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        table.add_row(key, Text(shown))
    return table
