"""What is left of a segment once its results are stored, or shares of them."""

from math import prod

from transfuse.backends.triton.arguments import At
from transfuse.backends.triton.draft import Draft, Place, kind_of, numbers, spread_strides
from transfuse.backends.triton.epilogue import statistics_launch
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.epilogue.records import StoredEpilogue, StoredSizes
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.lower import MOST_ELEMENTS
from transfuse.backends.triton.segments import Segment, in_pieces, power
from transfuse.backends.triton.strides import CHANNELS, Order, inner, linear, three, wide
from transfuse.backends.triton.told import all_told, divisor, told

FINISH = Kernel("epilogue.stored_kernel", "finish", static=2)

OF_A_THREAD = 32
"""Elements of a thread; half of them where shares of a window meet, since each is then loaded
while another is held."""
REGISTERS = 64
"""Of a thread: with more, too few programs share a multiprocessor to keep its memory busy."""
ALONG_CHANNELS = 80
"""The same where results lie along channels: a thread has several of these at several positions,
and with 64 registers some 30 values go through memory, with these some 10 (as ptxas says of 16
channels by 512 positions)."""


def add(draft: Draft, each: Segment, source: Place, out: Place) -> None:
    """The rest of a segment, and the statistic that it gathers."""
    batch, channels = draft.core.batch, each.source.c
    sizes = three(each.source.spatial, 1)
    positions = prod(sizes)
    resident = each.resident
    group = channels
    if not each.channel_stage:
        group = resident.size if resident is not None else min(channels, 16)
    block_c = max(2, power(group))  # tile ops take an axis of 1 for a sum over channels
    elements = OF_A_THREAD // 2 if source.parts > 1 else OF_A_THREAD
    pieces, block_p = 1, max(16, min(128, 256 * elements // block_c))
    if resident is not None:  # a tile holds every position
        pieces, block_p = in_pieces(positions, MOST_ELEMENTS // block_c)
    order = Order(sizes, 1, ordered=True)
    arguments = OpArguments(draft.spread, lambda strides: draft.unit(order, group, strides))
    table = arguments.table(each.after)
    statistic = None if each.late is None else draft.lowered.statistics[each.late]
    unit = draft.stored_unit(out)
    to = draft.destination(out, order, group)
    even = order.even(group, source.strides, unit) and source.part % unit == 0
    if not even or (to.even != told(1) and each.stores):
        to = to._replace(even=told(0))
    what = StoredEpilogue(
        block_c=block_c,
        block_p=block_p,
        pieces=pieces,
        runs=table.runs,
        late=draft.kind(each.late),
        over_batch=statistic is not None and statistic.over_batch,
        summed=each.summed,
        stored=each.stores,
        window=kind_of(each.window),
        sign=arguments.sign(each.window) if source.parts > 1 else 0,
        shared=source.parts > 1,
        source_inner=inner(source.strides),
        inner=inner(out.strides),
        unit=unit,
        wide=wide(each.source, source.strides) or wide(each.result, out.strides),
        linear=linear(sizes, source.strides) and linear(sizes, out.strides),
        whole=group == block_c and channels % group == 0,
    )
    tile = pieces * block_p
    tiles, groups = -(-positions // tile), -(-channels // group)
    gathered = draft.gather(each, batch * tiles, 1)
    told_sizes = StoredSizes(
        batch=told(batch),
        tiles=divisor(tiles),
        groups=divisor(groups),
        plane=divisor(sizes[1] * sizes[2]),
        line=divisor(sizes[2]),
        positions=told(positions),
        group=told(group),
        channels=told(channels),
        source=all_told(source.strides),
        parts=told(source.parts),
        part=told(source.part),
    )
    given = [
        At(source.number), At(out.number), draft.tensors(arguments), numbers(arguments),
        spread_strides(arguments), At(gathered.partials), told_sizes,
        to, draft.gathered(each, gathered), what, draft.acc,
    ]  # fmt: skip
    warps = min(32, max(1, block_c * power(tile) // (32 * elements)))
    options = {"num_warps": warps}
    if draft.item < 8 and warps <= 8:
        options["maxnreg"] = ALONG_CHANNELS if what.inner == CHANNELS else REGISTERS
    draft.add(FINISH, batch * groups * tiles, given, **options)
    if each.late is not None:
        statistics_launch.add(draft, each.late, gathered, gathered)
