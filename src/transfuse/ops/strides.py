"""How results lie in memory: dense, in the order of channels that the input has."""

from collections.abc import Sequence

import torch
from torch import Tensor

from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.tensors import layout


def result(chain: Chain, problem: Problem, x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of a chain's result, as the fused backends give it.

    Channels are innermost where they are so in a 4-D or 5-D input, and first after the samples
    otherwise; so they are where the result has not the axes of the values.
    """
    dims = chain.result(problem)
    last = layout(x) == "channels_last" and len(dims) == x.dim()
    return dims, dense(dims, last)


def dense(dims: Sequence[int], last: bool) -> tuple[int, ...]:
    """The strides of a dense tensor; ``last``: channels innermost."""
    axes = tuple(range(len(dims)))
    steps, size = [0] * len(dims), 1
    for axis in reversed((0, *axes[2:], 1) if last else axes):
        steps[axis] = size
        size = size * torch.sym_max(dims[axis], 1)  # type: ignore[no-untyped-call]
    return tuple(steps)


def laid(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """The tensor with these strides; a copy where it has others."""
    if tensor.stride() == tuple(strides):
        return tensor
    return torch.empty_strided(
        tensor.shape, strides, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
