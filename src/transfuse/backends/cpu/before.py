"""Maps before the convolution: computed where it reads its inputs, or stored by a sweep first.

Tiles side by side read some of the same inputs, and so do windows that overlap: a map is computed
for each of them, and inputs are copied for it that could be read where they lie. To store them is a
way to memory; what comes back from there was just written. For an input of one position weights are
read as they lie (``single.py``), if nothing stands before them.
"""

import ctypes
from itertools import takewhile
from math import prod

from transfuse.backends.cpu import library, lower, results, single
from transfuse.backends.cpu.programs import Steps, convolution, strides, three
from transfuse.chain import Chain
from transfuse.elements import BY_DTYPE, ELEMENTS
from transfuse.plan import machine
from transfuse.problem import Problem
from transfuse.stages.actions import Pool
from transfuse.sweeping import Buffer, Sweeping

COPY = 2
"""Instructions that take as long as to copy a value: it is loaded and stored."""


def stored(chain: Chain, problem: Problem) -> str:
    """Why the maps before the convolution are better stored; empty where they are not."""
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
    if at == chain.at and slower_order(core, _alone(chain, problem), _mapped(chain, problem)):
        return f"{names} is stored first: alone the convolution reads weights in a quicker order"
    times, copied = _read(chain, problem, at)
    rates = machine(problem.device)
    instruction = rates.per_instruction / rates.flops[problem.arithmetic]
    special = sum(code.special for code in maps)
    plain = sum(len(code.instructions) for code in maps) - special
    again = (times - 1) * (special / rates.special + plain * instruction)
    again += (times - copied) * COPY * instruction
    if again <= ELEMENTS[problem.dtype].compute.itemsize / rates.bandwidth:
        return ""
    return f"{names} is stored first, which takes less time than to compute it {times:.1f} times"


def slower_order(core: ctypes.CDLL, alone: library.Program, mapped: library.Program) -> bool:
    """Whether a convolution alone reads its weights in an order that maps before it would bar."""
    ways = (core.transfuse_packed_bytes(each) for each in (alone, mapped))
    return len({*ways}) > 1


def _alone(chain: Chain, problem: Problem) -> library.Program:
    """The program of a chain's convolution, on values of a sweep in its layout."""
    core = chain.core(problem)
    program = convolution(core, chain.conv.weight_scale)
    last = problem.layout == "channels_last"
    like = results.Form(core.input.dims, ELEMENTS[problem.dtype].dtype, last)
    program.input_strides = strides(like.strides)
    computed = BY_DTYPE[ELEMENTS[problem.dtype].compute].name
    program.input_element = library.ELEMENTS.index(computed)
    return program


def _mapped(chain: Chain, problem: Problem) -> library.Program:
    """The same with the prologue, on the problem's own input."""
    program = _alone(chain, problem)
    steps = Steps(lower.prologue(chain, chain.shapes(problem)))
    program.before, program.before_count = steps.nowhere()
    program.spatial = three(problem.spatial, 1)
    return program


def _read(chain: Chain, problem: Problem, at: int) -> tuple[float, float]:
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
    library.check(core, core.transfuse_copies(_alone(chain, problem), found))
    return found[0], found[1]
