"""Partials of a statistic joined, in a fixed order."""

from transfuse.backends.triton.arguments import All, At
from transfuse.backends.triton.draft import Draft, Partials
from transfuse.backends.triton.epilogue.op_table import thirds
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.segments import stepped

MERGE = Kernel("epilogue.statistics_kernel", "merge", static=3, at_run_time=True)


def add(draft: Draft, at: int, fast: Partials, careful: Partials, wild: int | None = None) -> None:
    """A statistic by its number; of the careful launch, where ``wild`` is there and not 0."""
    statistic = draft.lowered.statistics[at]
    run, careful_run = fast.run * statistic.size, careful.run * statistic.size
    count = fast.plane // run
    halves = draft.memory(count), draft.memory(count)
    block = stepped(run, 1024)
    numbers: tuple[float, ...] = thirds(statistic.eps)
    running: tuple[int, ...] = ()
    if statistic.running is not None:
        momentum = statistic.running.momentum
        numbers += thirds(1 - momentum) + thirds(momentum)
        running = tuple(draft.names[name] for name in statistic.running.names)
    given = [
        At(fast.partials), run, fast.plane, At(careful.partials), careful_run, careful.plane,
        None if wild is None else At(wild), At(halves[0]), At(halves[1]), numbers, All(running),
        statistic.kind, block, bool(running),
    ]  # fmt: skip
    draft.add(MERGE, count, given, num_warps=max(1, min(4, block // 64)))
    draft.statistics[at] = halves
