"""What is left of a segment once its results are stored, or shares of them."""

from math import prod

from transfuse.backends.triton.draft import Draft, Place, kind_of, numbers
from transfuse.backends.triton.epilogue import statistics_launch
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.epilogue.records import StoredEpilogue
from transfuse.backends.triton.epilogue.stored_kernel import finish
from transfuse.backends.triton.launch import At
from transfuse.backends.triton.lower import Segment, power
from transfuse.backends.triton.strides import linear, three, wide


def add(draft: Draft, each: Segment, source: Place, out: Place) -> None:
    """The rest of a segment, and the statistic that it gathers."""
    batch, channels = draft.core.batch, each.source.c
    sizes = three(each.source.spatial, 1)
    resident = each.resident
    group = channels
    if not each.channel_stage:
        group = resident.size if resident is not None else min(channels, 16)
    block_c = max(2, power(group))  # tile ops take an axis of 1 for a sum over channels
    block_p = power(prod(sizes))
    if resident is None:
        block_p = min(block_p, max(16, 8192 // block_c))
    arguments = OpArguments(draft.spread)
    table = arguments.table(each.after)
    statistic = None if each.late is None else draft.lowered.statistics[each.late]
    what = StoredEpilogue(
        sizes=sizes,
        channels=channels,
        group=group,
        block_c=block_c,
        block_p=block_p,
        source_strides=source.strides,
        source_linear=linear(sizes, source.strides),
        strides=out.strides,
        linear=linear(sizes, out.strides),
        wide=wide(each.source, source.strides) or wide(each.result, out.strides),
        ops=table,
        late=draft.kind(each.late),
        over_batch=statistic is not None and statistic.over_batch,
        counted=1 if statistic is None else statistic.channels,
        summed=each.summed,
        stored=each.stores,
        window=kind_of(each.window),
        sign=arguments.sign(each.window) if source.parts > 1 else 0,
        parts=source.parts,
        part=source.part,
    )
    gathered = draft.gather(each, batch * what.tiles, 1)
    given = [
        At(source.number), At(out.number), batch, draft.tensors(arguments), numbers(arguments),
        At(gathered.partials), gathered.plane, what, draft.acc,
    ]  # fmt: skip
    warps = min(32, max(1, block_c * block_p // 1024))
    draft.add(finish, batch * what.groups * what.tiles, given, num_warps=warps)
    if each.late is not None:
        statistics_launch.add(draft, each.late, gathered, gathered)
