"""Which stages after a convolution are better left to a sweep of their own: costs of both.

To store values costs their way to memory and back. What it saves:

Windows: the convolution's kernel computes every value of a window for itself, and where the engine
for windows does not serve it, portable tiles do, which multiply slowly.

Maps: strips hold so many values in registers that an expression of many instructions, written out
for each, leaves the registers and the instruction cache. A sweep holds few values at a time.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import prod

from transfuse.backends.triton import calls
from transfuse.backends.triton.engines.hopper_strip.strip_launch import HopperStrip
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.maths.expr import Call
from transfuse.plan import fused, machine
from transfuse.problem import Problem
from transfuse.stages.actions import Elementwise, Pool

INSTRUCTIONS = {
    "exp": 6, "log": 10, "div": 10, "sqrt": 12, "rsqrt": 20, "sigmoid": 16, "tanh": 22, "erf": 45,
    "sin": 45, "cos": 45, "expm1": 60, "log1p": 60,
}  # fmt: skip
"""About so many of an element, as sm_90 is compiled; those left out have one or two."""
MOST = 45
"""Instructions of maps that the values of a strip leave room for, in 128 KB of code."""
SLOWDOWN = 0.2e-12
"""Seconds that an element takes for each instruction, where there are more (an H200: elements took
21 and 27 picoseconds in softplus, and in tanh and selu)."""
LAUNCH = 5e-6
"""Seconds of another launch."""


def why(chain: Chain, problem: Problem) -> str:
    """Why the last stages of a chain are better left to a sweep; empty where they are not."""
    return next(_reasons(chain, problem), "")


def _reasons(chain: Chain, problem: Problem) -> Iterator[str]:
    shapes = chain.shapes(problem)
    after = zip(chain.epilogue, shapes[chain.at + 1 :], shapes[chain.at + 2 :], strict=False)
    bandwidth, instructions = machine(problem.device).bandwidth, 0
    found = [(*each, each[0].action(each[1])) for each in after]
    # Two windows are one to the kernel or none: to part them would cost it builds of its own.
    alone = sum(isinstance(action, Pool) for *_, action in found) == 1
    for at, (stage, before, result, action) in enumerate(found):
        stored = 2 * before.numel * ELEMENTS[problem.dtype].compute.itemsize / bandwidth
        if isinstance(action, Pool) and alone:
            values = prod(kernel for kernel, *_ in action.windows) * result.positions
            together = _seconds(chain, problem) * values / before.positions
            first = Chain(*chain.prologue, chain.conv, *chain.epilogue[:at])
            if together > _seconds(first, problem) + stored:
                yield f"to store what {stage} reads costs less than to find it window by window"
        elif isinstance(action, Elementwise):
            instructions += _instructions(action)
            slow = before.numel * instructions * SLOWDOWN > stored + LAUNCH
            if instructions > MOST and slow and HopperStrip.name in _engines(chain, problem):
                yield f"{stage} has too many instructions for the many values of a strip"


def _instructions(action: Elementwise) -> int:
    calls = (each.primitive for each in action.expr.walk() if isinstance(each, Call))
    return sum(INSTRUCTIONS.get(primitive, 2) for primitive in calls)


@lru_cache(maxsize=4096)
def _engines(chain: Chain, problem: Problem) -> frozenset[str]:
    """Those that serve a chain."""
    return calls.engines(chain, fused(chain, problem))


@lru_cache(maxsize=4096)
def _seconds(chain: Chain, problem: Problem) -> float:
    """What the products of a chain take its engines; once, where several segments convolve."""
    rate = machine(problem.device).flops[problem.arithmetic]
    return chain.core(problem).flops() / (rate * calls.share(chain, fused(chain, problem)))
