"""list, show, explain, env: what there is, and what would run."""

import re
from dataclasses import replace
from typing import Annotated, Any, NoReturn

import typer
from rich import box
from rich.markdown import Markdown
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from transfuse.bench.passes import measured
from transfuse.cases import Case
from transfuse.chain import Chain
from transfuse.cli.output import Json, Slug, out, print_json
from transfuse.explanation import explained
from transfuse.machine import environment
from transfuse.operators import OPERATORS, Operator, operator
from transfuse.problems import UnknownSlugError
from transfuse.stages.text import CONVOLUTION, parse
from transfuse.tables import facts

MODULES = re.compile(r"\b(torch|typing|collections\.abc)\.")
"""Where types come from: left out of signatures that are printed."""
LINE = "n8 ci64 co64 i64x64 k4 s2 p1 fp16 cuda:sm90"


def list_operators(as_json: Json = False) -> None:
    """The operators: short name, slug (a command takes either), and what each computes."""
    rows = [
        {
            "slug": op.slug,
            "short": op.short,
            "title": op.document.title,
            "chain": str(op.chain),
            "call": op.__name__,
        }
        for op in OPERATORS.values()
    ]
    if as_json:
        return print_json(rows)
    for row in rows:
        out.print(Text.assemble((row["short"], "bold"), "  ", row["slug"]), soft_wrap=True)
        out.print(Padding(Text(row["chain"]), (0, 0, 1, 2)))


def show(slug: Slug, as_json: Json = False) -> None:
    """One operator: its document, its signature in C and Python, its chain."""
    op = operator(slug)
    document = op.document
    lines = {name: str(op.case(name)) for name in op.cases}
    known = {
        "slug": op.slug,
        "short": op.short,
        "title": document.title,
        "difficulty": document.difficulty,
        "tags": list(document.tags),
        "chain": str(op.chain),
        "c": document.c_signature(),
        "python": document.python_signature(),
        "function": f"transfuse.{op.__name__}{MODULES.sub('', str(op.signature))}",
        "cases": lines,
        "parameters": [vars(parameter) for parameter in document.parameters],
        "document": document.body,
    }
    if as_json:
        return print_json(known)
    out.print(Panel(Text(document.title, style="bold"), subtitle=op.slug, box=box.ROUNDED))
    out.print(Markdown(document.body))
    for title, key in (("C", "c"), ("Python", "python"), ("torch-style", "function")):
        out.print(Panel(Text(str(known[key])), title=title, title_align="left", box=box.ROUNDED))
    out.print(facts({"chain": known["chain"], **lines}))


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="An operator, as `transfuse list` names it; or conv_transpose, or a chain as "
            "transfuse prints it: 'conv_transpose2d(+ bias) -> sigmoid'.",
        ),
    ],
    sizes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SIZES",
            help=f"A problem line: '{LINE}'. For an operator "
            "also a named case, or both; default: benchmark.",
        ),
    ] = None,
    before: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGES", help="Stages before: 'avg_pool(2)'."),
    ] = None,
    then: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGES", help="Stages after: 'sigmoid, group_norm(8)'."),
    ] = None,
    bias: Annotated[bool, typer.Option("--bias", help="The convolution has a bias.")] = False,
    backward: Annotated[
        bool, typer.Option("--backward", help="Plan the gradients by all tensors, too.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Time each pass here, beside what it should take.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What would run and why: rewrites, plan, and each backend's verdict.

    A bare word in a stage names a per-channel tensor: 'add(shift)';
    or a number that the problem line gives: 'scale(gain)' with gain=2.

    --measure runs it, on values drawn for it. Predicted: what a pass has most of
    (products, bytes or special functions) at ceilings measured in the same run.
    """
    known: dict[str, Any] = {}
    line = " ".join(sizes or [])
    if CONVOLUTION.search(what):
        case = Case.parse(line) if line else _lacks_sizes(what)
        chain = Chain(*parse(what, case.problem.rank))
    else:
        op = _operator(what)
        case = op.case(line or "benchmark")
        chain, known = op.chain, {"slug": op.slug}
    if bias:
        if chain.conv.bias is not None:
            raise ValueError(f"{chain.conv} has a bias already; leave out --bias")
        chain = chain.swap(chain.at, 1, replace(chain.conv, bias="bias"))
    prologue, epilogue = (
        [s for text in texts or [] for s in parse(text)] for texts in (before, then)
    )
    chain = Chain(*prologue, *chain.stages, *epilogue)
    found = explained(_bound(chain, case), case.problem, backward=backward)
    if measure:
        found = measured(found)
    if as_json:
        return print_json({**known, "case": str(case), **found.as_dict()})
    out.print(found)


def _operator(what: str) -> Operator:
    try:
        return operator(what)
    except UnknownSlugError as error:
        raise UnknownSlugError(
            f"{error}\nor any chain: transfuse explain conv_transpose '{LINE}' --then 'sigmoid'"
        ) from None


def _lacks_sizes(what: str) -> NoReturn:
    raise ValueError(f"{what} needs a problem line, such as '{LINE}'")


def _bound(chain: Chain, case: Case) -> Chain:
    """The chain with the case's numbers in it; each must be named, and each name be given."""
    unused = set(case.scalars) - {name for stage in chain.stages for name in stage.operands}
    if unused:
        raise ValueError(
            f"the problem line gives {', '.join(sorted(unused))}, which no stage of {chain} names"
        )
    bound = chain.bind(case.scalars)
    for stage in bound.stages:
        for name in stage.numbers:
            raise ValueError(f"{stage}: {name!r} is no number; the problem line may give {name}=2")
    return bound


def env(as_json: Json = False) -> None:
    """What this machine offers, for bug reports."""
    known = environment()
    if as_json:
        return print_json(known)
    packages = {name: version or "not installed" for name, version in known.pop("packages").items()}
    gpus = [" ".join(f"{k}={v}" for k, v in gpu.items()) for gpu in known.pop("gpus")]
    settings = {f"TRANSFUSE_{k.upper()}": v or "not set" for k, v in known.pop("settings").items()}
    known |= {name: known[name] or "none" for name in ("cuda", "cudnn")}
    tuned = [f"{each['file']}: {each.get('entries', 'left out')}" for each in known.pop("tuned")]
    kernels = [f"{each['folder']}: {each['kernels']}" for each in known.pop("kernels")]
    known |= {
        "gpus": ", ".join(gpus) or "none",
        "tuned tiles": tuned or "none",
        "compiled kernels": kernels or "none",
    }
    out.print(facts({**packages, **known, **settings}))
