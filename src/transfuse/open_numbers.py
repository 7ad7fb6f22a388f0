"""Numbers that ``torch.compile`` leaves open, as tensors without axes.

A float that changes from call to call is a symbol in a trace. No operation of torch's dispatcher
takes one, it would be bound to the value of this call; and torch's own arithmetic makes a tensor of
it, so that one graph serves all values. So does this.
"""

from collections.abc import Mapping, Sequence
from typing import TypeGuard

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from transfuse.chain import Chain
from transfuse.stages import Stage
from transfuse.stages.base import Number
from transfuse.stages.pointwise import Map
from transfuse.tensors import autocasts


def of_stages(x: Tensor, stages: Sequence[Stage]) -> Sequence[Stage]:
    """Stages around a convolution of ``x``, with tensors in place of open numbers.

    Not of stages that were made outside the trace: their numbers stay as they are.
    """
    if not _may_be_open(x):
        return stages
    return [_of_map(x, s) if isinstance(s, Map) and s.traced else s for s in stages]


def of_scalars(
    chain: Chain, x: Tensor, scalars: Mapping[str, Number]
) -> tuple[Mapping[str, Number], dict[str, Tensor]]:
    """The numbers that a call gives a chain, and as tensors those of them that are open.

    Only where each stage that reads one takes a tensor as well.
    """
    if not _may_be_open(x):
        return scalars, {}
    needed = [name for stage in chain.stages for name in stage.numbers]
    found = {k: _tensor(x, v) for k, v in scalars.items() if k not in needed and _open(v)}
    return {k: v for k, v in scalars.items() if k not in found}, found


def _may_be_open(x: object) -> bool:
    """Only beside values of 32 bits and more: a tensor of 16 bits would round the number."""
    if not is_dynamo_compiling() or not isinstance(x, Tensor) or autocasts(x):
        return False
    return x.dtype in (torch.float32, torch.float64)


def _of_map(x: Tensor, stage: Map) -> Map:
    given = [_tensor(x, each) if _open(each) else each for each in stage.arguments]
    return Map(stage.function, tuple(given), stage.shapes)


def _open(value: object) -> TypeGuard[float]:
    if not isinstance(value, float):
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(value)


def _tensor(x: Tensor, value: float) -> Tensor:
    # By a product: of what takes numbers, torch turns arithmetic alone into that of tensors.
    return torch.ones((), dtype=x.dtype, device=x.device) * value
