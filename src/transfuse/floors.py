"""Floors: the least time that a chain can take, pass by pass, and as its definition alone has it.

Passes run one after another, since each needs what the one before it found. While a pass runs, its
products, its bytes and its special functions go on side by side, so it takes as long as what it has
most of. Of all ways to cut a chain into passes the quickest counts, with values stored in as few
bytes as they have in the result: a floor is never put higher than what somebody could reach with
these passes. Who computes in fewer products than the definition's may pass it all the same.
"""

from collections.abc import Callable

from transfuse.backends.triton import Triton
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.plan import Costs, Pass, fused, machine
from transfuse.problem import Problem
from transfuse.rewrite import rewritten

Seconds = Callable[[Pass], float]
"""The least time for a pass at some rates."""


def floor(chain: Chain, problem: Problem, seconds: Seconds) -> float:
    """The least seconds of a chain in passes, a copy of the input that must be among them."""
    copy = Triton().repack(chain, problem)
    return _quickest(chain, problem, seconds) + (seconds(copy) if copy else 0.0)


def floor_of_definition(chain: Chain, problem: Problem, seconds: Seconds) -> float:
    """The least seconds for the products of the definition and for every tensor moved once."""
    plan = fused(chain, problem)
    return seconds(Pass(str(chain), plan.work, plan.least, 0))


def _quickest(chain: Chain, problem: Problem, seconds: Seconds) -> float:
    """The quickest way along a chain; by the stage whose input lies in memory, so far."""
    better = rewritten(chain.typed(problem))
    costs = Costs(better, problem, ELEMENTS[problem.dtype].itemsize)
    best = {0: 0.0}
    for i, stage in enumerate(better.stages):
        prologue_ends = i == better.at > 0
        if not (prologue_ends or costs.cuts(i)):
            continue
        stored = min(
            taken + seconds(costs.passed(start, i, costs.tensor(i)))
            for start, taken in best.items()
        )
        if prologue_ends:
            best = {i: stored}
            continue
        # Where one program holds all that the statistic covers there need be no cut.
        scope = stage.scope(costs.shapes[i]) * costs.item
        held = stage.gathers and scope <= machine(problem.device).on_chip
        again = {
            start: taken + (0.0 if held else seconds(costs.passed(start, i, 0)))
            for start, taken in best.items()
        }
        best = {**again, i: stored}
    end = len(better.stages)
    return min(
        taken + seconds(costs.passed(start, end, costs.tensor(end)))
        for start, taken in best.items()
    )
