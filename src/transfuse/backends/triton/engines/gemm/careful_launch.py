"""The same product for weights that are not finite: a launch that is idle where all are."""

from math import prod

from transfuse.backends.triton.arguments import At
from transfuse.backends.triton.draft import WEIGHT, numbers, spread_strides
from transfuse.backends.triton.engines.contract import Task
from transfuse.backends.triton.engines.gemm.gemm_geometry import Anchors, Source, destination
from transfuse.backends.triton.engines.gemm.gemm_records import (
    CAREFUL_CHANNELS,
    CAREFUL_POSITIONS,
    CarefulSizes,
)
from transfuse.backends.triton.engines.gemm.phases_launch import PackedPhases
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.segments import Segment
from transfuse.backends.triton.strides import three
from transfuse.backends.triton.told import all_told, divisor, told

CAREFULLY = Kernel("engines.gemm.careful_kernel", "multiply_carefully", static=3)


def careful(
    task: Task,
    segment: Segment,
    anchors: Anchors,
    source: Source,
    number: int,
    weights: PackedPhases,
) -> None:
    """Once more for weights that are not finite, else idle."""
    draft, core, results = task.draft, task.draft.core, anchors.each("results")
    arguments = OpArguments(draft.spread)
    epilogue = draft.epilogue(segment, task.out, arguments)
    blocks = -(-prod(results) // CAREFUL_POSITIONS)
    of_sample = blocks * -(-core.out_channels // CAREFUL_CHANNELS)
    programs = core.batch * of_sample
    lies = draft.x_strides
    if source.copied:
        (_, high, wide), channels = source.extent, source.sizes[2]
        line = wide * channels
        lies = prod(source.extent) * channels, 1, high * line, line, channels
    sizes = CarefulSizes(
        copied=told(weights.programs),
        programs=told(programs),
        of_sample=divisor(of_sample),
        blocks=divisor(blocks),
        plane=divisor(results[1] * results[2]),
        line=divisor(results[2]),
        positions=told(prod(results)),
        channels=told(core.in_channels),
        outputs=told(core.out_channels),
        padding=all_told(three([axis.padding for axis in core.axes], 0)),
        inputs=all_told(anchors.each("inputs")),
        source=all_told(lies),
        strides=all_told(draft.weight_strides),
    )
    given = [
        At(number), At(WEIGHT), At(task.out.number), At(weights.wild), draft.tensors(arguments),
        numbers(arguments), spread_strides(arguments), sizes, destination(task.out.strides),
        weights.layout, epilogue, draft.acc,
    ]  # fmt: skip
    draft.add(CAREFULLY, min(programs, 128), given, num_warps=4, num_stages=1)
