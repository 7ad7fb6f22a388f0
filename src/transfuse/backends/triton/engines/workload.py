"""A segment that convolves, as engines choose tiles for it."""

from dataclasses import dataclass

from transfuse.backends.triton.segments import Lowered, Segment, SegmentStatistic
from transfuse.backends.triton.tap_table import TapTable
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem


@dataclass(frozen=True)
class Workload:
    """What a choice of tiles depends on."""

    tap_table: TapTable
    batch: int
    channels: int  # of one group
    outputs: int  # of one group
    groups: int
    item: int
    all_channels: bool
    per_sample: bool
    windowed: bool
    only_gathers: bool
    thrice: bool  # float32 as three products, its parts made in registers

    @property
    def depthwise(self) -> bool:
        return self.channels == 1


def workload_of(lowered: Lowered, core: Problem, each: Segment) -> Workload:
    """What the tiles of a segment that convolves depend on."""
    windows = ((1, 1, 0),) * core.rank
    if each.window is not None:
        windows = each.window.windows
    tap_table = TapTable.of(core.axes, windows, each.result.spatial, cover=each.early is not None)
    return describe(tap_table, core, each, lowered.statistics, ELEMENTS[core.dtype].itemsize)


def describe(
    tap_table: TapTable,
    problem: Problem,
    each: Segment,
    statistics: tuple[SegmentStatistic, ...],
    item: int,
) -> Workload:
    numbers = {at for step in (*each.before, *each.after) for at in step.tensors}
    used = {at[0] for at in numbers if isinstance(at, tuple)}
    used |= {at for at in (each.early, each.late) if at is not None}
    return Workload(
        tap_table,
        problem.batch,
        problem.in_channels // problem.groups,
        problem.out_channels // problem.groups,
        problem.groups,
        item,
        each.channel_stage,
        any(not statistics[at].over_batch for at in used),
        each.window is not None,
        each.only_gathers,
        problem.arithmetic == "fp32",
    )
