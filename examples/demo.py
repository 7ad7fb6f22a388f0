"""A tour: the five operators at CPU sizes, each checked against the oracle and timed.

Times are medians of interleaved rounds, so that a busy machine slows both columns alike.
"""

from statistics import median
from time import perf_counter

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from transfuse.accuracy import Oracle
from transfuse.dispatch import choose
from transfuse.fills import real
from transfuse.front import run
from transfuse.operators import OPERATORS
from transfuse.reference import evaluate

ROUNDS = 7


def main() -> None:
    console = Console()
    table = Table(box=box.SIMPLE, title="transfuse beside torch, stage by stage")
    table.add_column("operator", overflow="fold")
    for name in ("error", "torch ms", "ours ms", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    right = True
    with torch.inference_mode(), console.status("running") as status:
        for op in OPERATORS.values():
            status.update(op.slug)
            case = op.case("cpu")
            chain, problem = op.bound(case), case.problem
            inputs = real(chain, problem, seed=0)
            backend = choose(chain, problem)
            y = run(chain, problem, *inputs)
            accuracy = Oracle(chain, problem, *inputs, backend.ulp(problem)).judge(y)
            right = right and accuracy.ok
            ours, theirs = [], []
            for _ in range(ROUNDS):
                theirs.append(_seconds(lambda c=chain, p=problem, i=inputs: evaluate(c, p, *i)))
                ours.append(_seconds(lambda c=chain, p=problem, i=inputs: run(c, p, *i)))
            verdict = Text(f"{accuracy.used:.2f}", style="green" if accuracy.ok else "bold red")
            times = (1e3 * median(theirs), 1e3 * median(ours))
            ratio = median(t / o for t, o in zip(theirs, ours, strict=True))
            figures = (f"{times[0]:.1f}", f"{times[1]:.1f}", f"{ratio:.2f}x")
            table.add_row(op.label, verdict, *figures)
    console.print(table)
    console.print("error: share of its budget (docs/maths.md), at most 1; times: medians, one run")
    if not right:
        raise SystemExit("a result is wrong")


def _seconds(call) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


if __name__ == "__main__":
    main()
