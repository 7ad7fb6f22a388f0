"""Maps before the convolution: computed where it reads its inputs, or stored by a sweep first.

Tiles side by side read some of the same inputs, and so do windows that overlap: a map is computed
for each of them, and inputs are copied for it that could be read where they lie. To store them is a
way to memory; what comes back from there was just written. For an input of one position weights are
read as they lie (``single.py``), if nothing stands before them.
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

COPY = 2
"""Instructions that take as long as to copy a value: it is loaded and stored."""


def stored(
    chain: Chain, problem: Problem, convolution: library.Program, before: library.Program
) -> str:
    """Why the maps before the convolution are better stored; empty where they are not.

    ``convolution``: the program of ``problem`` and no other stage; ``before``: with the prologue.
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
    core = library.load()
    assert core is not None
    ways = (core.transfuse_packed_bytes(each) for each in (convolution, before))
    if at == chain.at and len({*ways}) > 1:
        return f"{names} is stored first: alone the convolution reads weights in a quicker order"
    times, copied = _read(chain, problem, convolution, at)
    rates = machine(problem.device)
    instruction = rates.per_instruction / rates.flops[problem.arithmetic]
    special = sum(code.special for code in maps)
    plain = sum(len(code.instructions) for code in maps) - special
    again = (times - 1) * (special / rates.special + plain * instruction)
    again += (times - copied) * COPY * instruction
    if again <= ELEMENTS[problem.dtype].compute.itemsize / rates.bandwidth:
        return ""
    return f"{names} is stored first, which takes less time than to compute it {times:.1f} times"


def _read(
    chain: Chain, problem: Problem, convolution: library.Program, at: int
) -> tuple[float, float]:
    """How often stage ``at``, a pool or the convolution, copies each value, on the average; and
    how often it would if no map stood before it."""
    shape = chain.shapes(problem)[at]
    pool = chain.stages[at].action(shape)
    if isinstance(pool, Pool):  # rows are read for each window, and in it once
        times = prod(max(1.0, kernel / stride) for kernel, stride, _ in pool.windows[:-1])
        return times, times
    core = library.load()
    assert core is not None
    found = library.Times()
    library.check(core, core.transfuse_copies(convolution, found))
    return found[0], found[1]
