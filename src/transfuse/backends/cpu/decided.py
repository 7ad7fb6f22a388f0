"""Plans with their cuts as the core decides them, which the C functions run, too."""

import ctypes

from transfuse import plan
from transfuse.backends.cpu import library, lower
from transfuse.backends.cpu.programs import Steps, convolution
from transfuse.chain import Chain
from transfuse.plan import Choice, Plan
from transfuse.problem import Problem


def fused(chain: Chain, problem: Problem, finite: bool = True) -> Plan:
    return plan.fused(chain, problem, assume=finite, choose=choices)


def choices(chain: Chain, problem: Problem) -> dict[int, Choice]:
    """What the core does at the cuts of a chain, asked of the core: the C functions run so, too.

    Steps that see one element change no size, and are left out with the tensors that some need.
    """
    core = library.load()
    assert core is not None
    shapes = chain.shapes(problem)
    held = {} if lower.pooled(chain, shapes) else {chain.at: Choice.HOLD}
    listed = [(i, s) for i, s in lower.steps(chain, shapes) if s.op not in ("map", "norm")]
    if all(each.op != "cut" for _, each in listed):
        return held
    program = convolution(problem, chain.conv.weight_scale)
    program.before, program.before_count = Steps(lower.prologue(chain, shapes)).nowhere()
    program.steps, program.steps_count = Steps(each for _, each in listed).nowhere()
    cuts = (ctypes.c_int32 * len(listed))()
    library.check(core, core.transfuse_decide(program, cuts))
    return held | {
        i: Choice(library.CUTS[cut])
        for (i, each), cut in zip(listed, cuts, strict=True)
        if each.op == "cut"
    }
