"""Maps before the convolution: computed where it reads its inputs, or stored by a sweep first.

Tiles side by side read some of the same inputs, and so do windows that overlap: a map is computed
for each of them. That costs nothing to store and read again, but the map more often. For an input
of one position weights are read as they lie (``single.py``), if nothing stands before them.
"""

from itertools import takewhile
from math import prod

from transfuse.backends.cpu import library, lower, single
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.plan import machine
from transfuse.problem import Problem
from transfuse.stages.actions import Pool
from transfuse.sweeping import Buffer, Sweeping


def stored(chain: Chain, problem: Problem, convolution: library.Program) -> str:
    """Why the maps before the convolution are better stored; empty where they are not.

    ``convolution``: the program of ``problem`` and no other stage.
    """
    shapes = chain.shapes(problem)
    if not chain.prologue or Sweeping(Buffer(shapes[0].dims)).follow(chain.prologue) < chain.at:
        return ""
    first = takewhile(lambda each: each.code, lower.prologue(chain, shapes))
    maps = [each.code for each in first if each.code]
    if not maps:
        return ""
    at = len(maps)
    names = " and ".join(str(stage) for stage in chain.stages[:at])
    if at == chain.at and single.serves(Chain(*chain.stages[at:]), problem):
        return f"{names} is stored first: the weights of one position are read as they lie"
    times = _read(chain, problem, convolution, at)
    rates = machine(problem.device)
    special = sum(code.special for code in maps) / rates.special
    plain = sum(len(code.instructions) - code.special for code in maps) * rates.per_instruction
    again = (times - 1) * (special + plain / rates.flops[problem.arithmetic])
    item = ELEMENTS[problem.dtype].compute.itemsize
    if again <= 2 * item / rates.bandwidth:
        return ""
    return f"{names} is stored first, which takes less time than to compute it {times:.1f} times"


def _read(chain: Chain, problem: Problem, convolution: library.Program, at: int) -> float:
    """How often stage ``at``, a pool or the convolution, reads each value, on the average."""
    pool = chain.stages[at].action(chain.shapes(problem)[at])
    if isinstance(pool, Pool):  # rows are read for each window, and in it once
        return prod(max(1.0, kernel / stride) for kernel, stride, _ in pool.windows[:-1])
    core = library.load()
    assert core is not None
    return float(core.transfuse_copies(convolution))
