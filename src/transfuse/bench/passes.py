"""The passes of a plan, predicted from ceilings measured here and timed one by one."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from statistics import median
from time import perf_counter

import torch

from transfuse import settings
from transfuse.backends import BACKENDS
from transfuse.backends.base import Part, in_parts, prepared, settled
from transfuse.bench.ceilings import Ceilings
from transfuse.bench.clock import clock
from transfuse.bench.measure import FEWEST_ROUNDS, WARM_UP
from transfuse.explanation import Explanation
from transfuse.fills import real
from transfuse.floors import floor
from transfuse.machine import place
from transfuse.plan import Pass
from transfuse.problem import Problem
from transfuse.timings import PassTiming, Timings

ROUNDS = 20
SECONDS = 2.0
"""After which there are no more rounds than must be."""


def measured(found: Explanation) -> Explanation:
    """The explanation with its passes timed: predicted by the ceilings of this machine, measured
    on values drawn for the problem.

    Raises ValueError where the problem cannot be run here, or has nothing to time.
    """
    chain, problem = found.chain, found.problem
    if fault := _fault(found):
        raise ValueError(f"cannot measure {problem}: {fault}")
    watch = clock(problem.device)
    ceilings = Ceilings(problem.device, watch, problem.arithmetic)
    backend = next(each for each in BACKENDS if each.name == found.chosen)
    run = prepared(backend, chain, problem)
    rounds: list[list[tuple[Part, float]]] = []
    calls: list[float] = []
    with torch.no_grad():
        x, weight, operands = real(chain, problem, 0)
        out = run(x, weight, operands)
        again = settled(run, x, weight, operands, None)
        parts = partial(in_parts, run, x, weight, operands, out)
        for _ in range(WARM_UP):
            watch.laps(parts())
            again(x, weight, operands)
        begun = perf_counter()
        while len(rounds) < ROUNDS:
            if len(rounds) >= FEWEST_ROUNDS and perf_counter() - begun > SECONDS:
                break
            rounds.append(watch.laps(parts()))
            calls.append(watch.time(lambda: again(x, weight, operands))[0])
    ceilings.measure()
    seconds = partial(ceilings.seconds, precision=problem.arithmetic)
    definition = ceilings.floor_of_definition(
        found.fused.work, found.fused.least, problem.arithmetic
    )
    timings = Timings(
        passes=_passes(found.plan.passes, [*map(seconds, found.plan.passes)], rounds),
        call=median(calls),
        floor=max(floor(chain, problem, seconds), definition),
        floor_of_definition=definition,
        bandwidth=max(ceilings.moves.values()),
        flops=ceilings.matmul[problem.arithmetic],
        special=ceilings.special_rate(problem.arithmetic),
    )
    return replace(found, timings=timings)


def _passes(
    passes: Sequence[Pass], predicted: Sequence[float], rounds: list[list[tuple[Part, float]]]
) -> tuple[PassTiming, ...]:
    """The median of each part over all rounds, by the pass that it is of."""
    parts = [
        (laps[0][0], median(seconds for _, seconds in laps)) for laps in zip(*rounds, strict=True)
    ]
    found = []
    for at, each in enumerate(passes):
        own = [(part.kernel, seconds) for part, seconds in parts if part.at == at]
        kernels = tuple((name, seconds) for name, seconds in own if name)
        took = sum(seconds for _, seconds in own) if own else None
        found.append(PassTiming(each.does, predicted[at], took, kernels))
    return tuple(found)


def _fault(found: Explanation) -> str:
    """Why it cannot be measured; empty where it can."""
    problem = found.problem
    if found.backward is not None:
        return "passes of gradients are planned, and not timed; leave them out"
    if fault := _elsewhere(problem):
        return fault
    if problem.layout == "strided":
        return "its tensors lie in some other way than contiguous or channels_last"
    if not prod(found.chain.result(problem)):
        return "its result has no values"
    if found.chosen == "triton" and settings.interpreted():
        return "Triton's interpreter runs it, whose times say nothing of a GPU"
    return ""


def _elsewhere(problem: Problem) -> str:
    """Why its device is not of this machine; empty where it is."""
    if problem.device == "cpu":
        return ""
    try:
        here = place(problem.device.partition(":")[0])
    except ValueError as fault:
        return str(fault)
    return "" if problem.device in (here, "cuda") else f"the GPU of this machine is {here}"
