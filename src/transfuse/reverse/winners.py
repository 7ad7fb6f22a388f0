"""Winners: the outputs of the convolution that a gradient goes to behind max windows.

Where windows see the convolution's output at once, each of them sends its gradient to one output.
Behind further max windows most of theirs are 0, too: after windows of 2 and 3 along three axes one
output in 216 has a gradient. Both gradients of the convolution are then sums over these few.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from transfuse.maths.expr import X
from transfuse.plan import Machine
from transfuse.problem import Problem
from transfuse.reverse.axes import AxisWindows, axes_of
from transfuse.reverse.tape import Slid, Tape
from transfuse.stages import Stage
from transfuse.sweeping import Buffer

SLOWER = 8
"""Times that a product takes here of what it takes in a dense convolution: there is one row."""
LARGE = 4
"""Times that looking up must be cheaper: it takes memory like the convolution's output."""


@dataclass(frozen=True)
class Winners:
    """The windows behind a convolution, and at most how many of its outputs have a gradient.

    ``looks``: they are looked up among the convolution's outputs in memory; elsewhere those of
    their windows are computed again, which takes ``again`` flops. ``each``: flops of the gradient
    by one of input and weight.
    """

    windows: tuple[AxisWindows, ...]
    count: int
    each: int
    again: int
    looks: bool


def behind(
    problem: Problem, stages: Sequence[Stage], rates: Machine, itemsize: int, looks: bool
) -> Winners | None:
    """Those of a convolution with these stages behind it; None where dense gradients take less.

    ``looks``: they may be looked up.
    """
    outputs = problem.output().dims
    windows = _windows(stages[:1], outputs)
    if windows is None or not prod(outputs):
        return None
    pooled = (*outputs[:2], *(axis.outputs for axis in windows))
    count = _most(stages[1:], pooled)
    if count is None:
        return None
    flops, values = problem.flops(), prod(outputs)
    each = count * flops // values
    again = each * prod(axis.kernel for axis in windows)
    arithmetic = problem.arithmetic
    stored = rates.seconds(arithmetic, 0, 3 * values * itemsize)  # written, read, looked up
    seconds = max(SLOWER / rates.flops[arithmetic], 1 / rates.gathered)  # of a product
    computed = seconds * again
    looks = looks and LARGE * stored < computed
    sparse = seconds * 2 * each + (LARGE * stored if looks else computed)
    dense = rates.seconds(arithmetic, 2 * flops, 4 * values * itemsize)
    if sparse >= dense:
        return None
    return Winners(windows, count, each, 0 if looks else again, looks)


def _windows(stages: Sequence[Stage], dims: tuple[int, ...]) -> tuple[AxisWindows, ...] | None:
    """The max windows that a stage is, where that is all it says."""
    tape = Tape(Buffer(dims))
    if not stages or tape.follow(stages) < 1 or len(tape.regions) != 2 or tape.expr is not X:
        return None
    first, last = tape.regions
    word = first.word
    plain = first.expr is X and not first.taken and not last.taken
    if not plain or not isinstance(word, Slid) or word.folding != "max":
        return None
    try:
        found = tuple(axes_of(dims, last.buffer.dims[2:], word.options))
    except NotImplementedError:
        return None
    return found if all(all(axis.counts) for axis in found) else None  # a window may miss them all


def _most(stages: Sequence[Stage], dims: tuple[int, ...]) -> int | None:
    """Values of these sizes that can have a gradient other than 0, with these stages behind them.

    Element stages send a 0 back as one, and a max window sends one value back to one.
    """
    tape = Tape(Buffer(dims))
    if tape.follow(stages) < len(stages):
        return None
    tape.end()
    found = prod(dims)
    for region, after in pairwise(tape.regions):
        word = region.word
        if region.taken or not (word is None or (isinstance(word, Slid) and word.folding == "max")):
            break
        found = min(found, prod(after.buffer.dims))
    return found
