"""What the tensors and options of a call make together, and whether they fit.

Exceptions are torch's for the same mistake.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from transfuse import padding as paddings
from transfuse.chain import Chain
from transfuse.geometry import integer, per_axis
from transfuse.padding import Padding
from transfuse.problem import AXES, Problem, expect_in_torch
from transfuse.tensors import (
    dense,
    describe,
    element,
    expect_channels,
    expect_shape,
    expect_tensor,
    same_type_and_place,
    writable,
)

Size = int | Sequence[int]


def made(
    chain: Chain,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None,
    options: Mapping[str, Size],
    padding: Padding,
    output_size: Sequence[int] | None,
    groups: int,
    precision: str,
    exotic: bool,
) -> Problem:
    """The problem that tensors and options make.

    Types are looked at before sizes, as torch reads all arguments before it computes.
    """
    named = {"input": x, "weight": weight, **operands}
    for name, tensor in named.items():
        expect_tensor(name, tensor)
    if out is not None:
        expect_tensor("out", out)
    for name, size in options.items():
        for each in size if isinstance(size, list | tuple) else (size,):
            integer(name, each)
    padded, wanted = paddings.read(padding), paddings.sizes(output_size)
    groups = integer("groups", groups)
    for name, tensor in named.items():
        dense(name, tensor)
    _expect_axes(chain, x, weight)
    if chain.conv.either_kernel:
        channels = next(iter(operands.values())).numel()
        groups = kernel_groups(weight, channels, groups)
    rank = chain.conv.rank
    problem = sized(
        chain, x, weight, options["stride"], paddings.integers(padded, rank),
        options["output_padding"], options["dilation"], groups, precision, exotic,
    )  # fmt: skip
    batched = x.dim() == rank + 2
    expect_in_torch(problem)
    if wanted is None:
        problem = paddings.padded(problem, padded)
    else:
        problem = paddings.sized(problem, padded, wanted, chain.met(problem), batched)
    mixing = next((stage.name for stage in chain.stages if stage.across_samples), None)
    if not batched and mixing:
        raise ValueError(f"{mixing}: expected {rank + 2}D input (got {rank + 1}D input)")
    return problem


def sized(
    chain: Chain,
    x: Tensor,
    weight: Tensor,
    stride: Size,
    padding: Size,
    output_padding: Size,
    dilation: Size,
    groups: int,
    precision: str,
    exotic: bool,
) -> Problem:
    """The problem that tensors make with options as a Problem has them."""
    rank = chain.conv.rank
    _expect_axes(chain, x, weight)
    if x.dim() == rank + 1:
        x = x.unsqueeze(0)
    return Problem(
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=weight.shape[1] * groups,
        spatial=tuple(x.shape[2:]),
        kernel=tuple(weight.shape[2:]),
        stride=per_axis("stride", stride, rank),
        padding=per_axis("padding", padding, rank),
        dilation=per_axis("dilation", dilation, rank),
        output_padding=per_axis("output_padding", output_padding, rank),
        groups=groups,
        **describe(x, precision, exotic),
    )


def _expect_axes(chain: Chain, x: Tensor, weight: Tensor) -> None:
    rank = chain.conv.rank
    conv = f"conv_transpose{rank}d"
    if weight.dim() != rank + 2:
        raise RuntimeError(
            f"{conv}: expected a weight of {rank + 2} axes (Ci, Co/groups, "
            f"{', '.join(AXES[rank])}), but got {list(weight.shape)}"
        )
    if x.dim() not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"expected {rank + 1}D (unbatched) or {rank + 2}D (batched) input to {conv}, "
            f"but got input of size {list(x.shape)}"
        )
    dims = list(x.shape) if x.dim() == rank + 2 else [1, *x.shape]
    if dims[1] != weight.shape[0]:
        raise RuntimeError(
            f"{conv}: weight of size {list(weight.shape)} expects an input of {weight.shape[0]} "
            f"channels, but got {dims[1]} in {dims}"
            + ("; stages before the convolution keep the channels" if chain.prologue else "")
        )


def kernel_groups(weight: Tensor, out_channels: int, groups: int) -> int:
    """The groups of a kernel that may be dense whatever ``groups`` says."""
    if groups < 1:
        raise RuntimeError(f"groups must be at least 1, but got groups={groups}")
    ci, co, *taps = weight.shape
    if co == out_channels:
        return 1
    if co * groups == out_channels:
        return groups
    legal = f"{[ci, out_channels, *taps]} (dense)"
    if groups > 1 and out_channels % groups == 0:
        legal += f" or {[ci, out_channels // groups, *taps]} (groups={groups})"
    raise RuntimeError(f"expected a kernel of shape {legal}, but got {list(weight.shape)}")


def expect(
    chain: Chain,
    problem: Problem,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor | None = None,
    kernel: str = "weight",
) -> None:
    """Refuse tensors that do not fit the problem."""
    named = {"input": x, kernel: weight, **operands}
    same_type_and_place(named, chain.mixes)
    result = chain.result(problem)
    expect_shape("input", x, problem.input.dims)
    expect_shape(kernel, weight, problem.weight)
    for name, dims in chain.dims(problem):
        if name not in operands:
            raise TypeError(f"nothing is given under the name {name!r}, used in {chain}")
        if len(dims) == 1:
            expect_channels(name, operands[name], dims[0], flat=name == chain.conv.bias)
        else:
            expect_shape(name, operands[name], dims)
    used = [name for stage in chain.stages for name in stage.operands]
    for name in chain.updates:
        if used.count(name) > 1:
            raise RuntimeError(f"{name} is written to by one stage and used by another, in {chain}")
    element(x, "input")
    if out is not None:
        writable(out, result, named)
    if torch.is_grad_enabled():
        for stage in chain.stages:
            for name in stage.without_gradient:
                if operands[name].requires_grad:
                    raise RuntimeError(f"{name} requires grad, and {stage} has no gradient by it")
