"""list, show, explain, env: what there is, and what would run."""

from typing import Annotated, Any

import typer
from rich import box
from rich.markdown import Markdown
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from transfuse import plan, rewrite
from transfuse.backends import BACKENDS
from transfuse.backends.triton import Triton
from transfuse.cli.output import Json, Slug, facts, out, print_json
from transfuse.dispatch import choose
from transfuse.machine import environment
from transfuse.operators import OPERATORS, operator


def list_operators(as_json: Json = False) -> None:
    """The operators: name and what each computes."""
    rows = [
        {"slug": op.slug, "title": op.document.title, "chain": str(op.chain), "call": op.__name__}
        for op in OPERATORS.values()
    ]
    if as_json:
        return print_json(rows)
    table = Table(box=box.SIMPLE, show_lines=True)
    table.add_column("operator", overflow="fold", max_width=34)
    table.add_column("computes")
    for row in rows:
        table.add_row(Text(row["slug"], style="bold"), Text(row["chain"]))
    out.print(table)


def show(slug: Slug, as_json: Json = False) -> None:
    """One operator: its document, its signature in C and Python, its chain."""
    op = operator(slug)
    document = op.document
    lines = {name: str(op.case(name)) for name in op.cases}
    known = {
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
        return print_json(known)
    out.print(Panel(Text(document.title, style="bold"), subtitle=slug, box=box.ROUNDED))
    out.print(Markdown(document.body))
    for title, key in (("C", "c"), ("Python", "python"), ("torch-style", "function")):
        out.print(Panel(Text(str(known[key])), title=title, title_align="left", box=box.ROUNDED))
    out.print(facts({"chain": known["chain"], **lines}))


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
    chosen = choose(chain, problem)
    tiles = chosen.tiles(chain, problem) if isinstance(chosen, Triton) else []
    if as_json:
        return print_json(
            {
                "slug": slug,
                "case": str(case),
                "chain": str(chain),
                "rewrites": [
                    {"name": s.rewrite.name, "assumes": s.rewrite.assumes, "chain": str(s.chain)}
                    for s in steps
                ],
                "fused": _plan(fused),
                "backends": {each.name: str(v) for each, v in verdicts.items()},
                "chosen": chosen.name,
                "plan": _plan(chosen.plan(chain, problem)),
                "tiles": [{"pass": each, "tiles": text} for each, text in tiles],
            }
        )
    out.print(facts({"problem": str(case), "chain": str(chain)}))
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
    out.print(facts({each.name: v for each, v in verdicts.items()}))
    out.print(_plan_table(f"what {chosen.name} will run", chosen.plan(chain, problem)))
    for each, text in tiles:
        out.print(Text.assemble((each, "bold"), f"\n  {text}"))


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


def env(as_json: Json = False) -> None:
    """What this machine offers, for bug reports."""
    known = environment()
    if as_json:
        return print_json(known)
    packages = {name: version or "not installed" for name, version in known.pop("packages").items()}
    gpus = [" ".join(f"{k}={v}" for k, v in gpu.items()) for gpu in known.pop("gpus")]
    settings = known.pop("settings")
    tuned = [f"{each['file']}: {each.get('entries', 'left out')}" for each in known.pop("tuned")]
    known |= {"gpus": ", ".join(gpus) or "none", "tuned tiles": tuned or "none"}
    out.print(facts({**packages, **known, **settings}))
