"""How results lie in memory: dense, in the order of channels that the input has."""

from collections.abc import Sequence

import torch
from torch import Tensor

from transfuse.tensors import layout


def of_result(dims: Sequence[int], x: Tensor) -> tuple[int, ...]:
    """The strides of a result of these sizes, as the fused backends give it for an input.

    Channels are innermost where they are so in a 4-D or 5-D input, and first after the samples
    otherwise; so they are where the result has not the axes of the values.
    """
    axes = tuple(range(len(dims)))
    steps, size = [0] * len(dims), 1
    for axis in reversed((0, *axes[2:], 1) if innermost(dims, x) else axes):
        steps[axis] = size
        size *= _one_or_more(dims[axis])
    return tuple(steps)


def _one_or_more(size: int) -> int:
    if isinstance(size, int):
        return size or 1
    found: int = torch.sym_max(size, 1)
    return found


def innermost(dims: Sequence[int], x: Tensor) -> bool:
    """Whether the channels of a result of these sizes are innermost in memory."""
    return len(dims) == x.dim() and layout(x) == "channels_last"


def laid(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """The tensor with these strides; a copy where it has others."""
    if tensor.stride() == tuple(strides):
        return tensor
    return torch.empty_strided(
        tensor.shape, strides, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
