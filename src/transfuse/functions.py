"""Transposed convolutions as functions: torch's own three, and any chain around one."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from transfuse.chain import Chain
from transfuse.front import Size, call
from transfuse.padding import Padding
from transfuse.stages import ConvTranspose, Stage
from transfuse.tensors import Precision


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Size = 1,
    padding: Padding = 0,
    output_padding: Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    output_size: Sequence[int] | None = None,
    before: Sequence[Stage] = (),
    then: Sequence[Stage] = (),
    out: Tensor | None = None,
    backend: str | None = None,
    precision: Precision = "auto",
) -> Tensor:
    """``then(conv_transpose(before(x), weight) + bias)``, as few kernels as a backend can make it.

    The rank is the weight's. ``precision`` says how float32 is multiplied on CUDA: ``ieee``,
    ``tf32``, or as torch is set to. ``before`` and ``then`` are stages from ``transfuse.stages``::

        conv_transpose(x, w, b, stride=2, then=[sigmoid(), group_norm(8, gw, gb)])

    To torch the chain is one operation. Under autocast all its tensors are cast as torch's own
    convolutions cast theirs (float64 stays), and so is the result; a call with ``out`` casts
    nothing, as in torch. Inside a trace, a mode or a transform of torch's, and on tensors that are
    more than memory, it runs as torch operations; a fused backend asked for by name raises there.
    """
    return _convolve(
        None, x, weight, bias, stride, padding, output_padding, groups, dilation, output_size, out,
        backend, precision, before, then,
    )  # fmt: skip


def conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    output_size: Sequence[int] | None = None,
    out: Tensor | None = None,
    backend: str | None = None,
    precision: Precision = "auto",
) -> Tensor:
    """``torch.nn.functional.conv_transpose1d``: x (N, Ci, W) or (Ci, W)."""
    return _convolve(
        1, x, weight, bias, stride, padding, output_padding, groups, dilation, output_size, out,
        backend, precision,
    )  # fmt: skip


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    output_size: Sequence[int] | None = None,
    out: Tensor | None = None,
    backend: str | None = None,
    precision: Precision = "auto",
) -> Tensor:
    """``torch.nn.functional.conv_transpose2d``: x (N, Ci, H, W) or (Ci, H, W)."""
    return _convolve(
        2, x, weight, bias, stride, padding, output_padding, groups, dilation, output_size, out,
        backend, precision,
    )  # fmt: skip


def conv_transpose3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    output_size: Sequence[int] | None = None,
    out: Tensor | None = None,
    backend: str | None = None,
    precision: Precision = "auto",
) -> Tensor:
    """``torch.nn.functional.conv_transpose3d``: x (N, Ci, D, H, W) or (Ci, D, H, W)."""
    return _convolve(
        3, x, weight, bias, stride, padding, output_padding, groups, dilation, output_size, out,
        backend, precision,
    )  # fmt: skip


BIAS = "bias"
"""The name that ``Chain.lift`` gives it, too."""


ALONE = {
    (rank, bias is not None): Chain(ConvTranspose(rank, bias))
    for rank in (1, 2, 3)
    for bias in (None, BIAS)
}
"""The convolution without other stages, by its rank and whether it has a bias."""


def _convolve(
    rank: int | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Padding,
    output_padding: Size,
    groups: int,
    dilation: Size,
    output_size: Sequence[int] | None,
    out: Tensor | None,
    backend: str | None,
    precision: Precision,
    before: Sequence[Stage] = (),
    then: Sequence[Stage] = (),
) -> Tensor:
    if has_torch_function((x, weight, bias, out)):
        return _handed_over(
            rank, x, weight, bias, before, then, stride=stride, padding=padding,
            output_padding=output_padding, groups=groups, dilation=dilation,
            output_size=output_size, out=out, backend=backend, precision=precision,
        )  # fmt: skip
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight must be a torch.Tensor, not {type(weight).__name__}")
    if bias is not None and not isinstance(bias, Tensor):
        raise TypeError(f"bias must be a torch.Tensor, not {type(bias).__name__}")
    if rank is None:
        rank = weight.dim() - 2
        if rank not in (1, 2, 3):
            raise RuntimeError(
                f"conv_transpose: expected a weight of 3, 4 or 5 axes (Ci, Co/groups, spatial "
                f"axes), but got {list(weight.shape)}"
            )
    if before or then:
        for name, given in (("before", before), ("then", then)):
            if isinstance(given, str) or not hasattr(given, "__iter__"):
                kind = type(given).__name__
                raise TypeError(f"{name} must be a list of stages, such as [sigmoid()], not {kind}")
        whole = Chain(*before, ConvTranspose(rank, bias), *then)
        if has_torch_function(_values(whole.stages)):
            return _handed_over(
                None, x, weight, bias, before, then, stride=stride, padding=padding,
                output_padding=output_padding, groups=groups, dilation=dilation,
                output_size=output_size, out=out, backend=backend, precision=precision,
            )  # fmt: skip
        chain, operands = whole.lift()
    else:
        chain, operands = ALONE[rank, bias is not None], {} if bias is None else {BIAS: bias}
    return call(
        chain,
        x,
        weight,
        operands,
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        groups=groups,
        output_size=output_size,
        out=out,
        backend=backend,
        precision=precision,
    )


def _values(stages: Sequence[Stage]) -> tuple[Any, ...]:
    return tuple(value for stage in stages for value in stage.given)


def _handed_over(
    rank: int | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    before: Sequence[Stage],
    then: Sequence[Stage],
    **options: Any,
) -> Tensor:
    """The call as ``__torch_function__`` of a tensor or a mode sees it: one operation."""
    function: Callable[..., Tensor] = conv_transpose
    if rank is None:
        options |= {"before": before, "then": then}
    else:
        function = (conv_transpose1d, conv_transpose2d, conv_transpose3d)[rank - 1]
    relevant = (x, weight, bias, options["out"], *_values((*before, *then)))
    y: Tensor = handle_torch_function(function, relevant, x, weight, bias, **options)
    return y
