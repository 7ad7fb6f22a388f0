"""Transposed convolutions as functions: torch's own three, and any chain around one."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from transfuse import open_numbers
from transfuse.chain import Chain
from transfuse.checks import Size
from transfuse.front import call
from transfuse.lifted import lifted, outlines
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
    r"""A transposed convolution with stages around it, in as few kernels as a backend can make it.

    .. math::
        y = \text{then}(\text{conv}(\text{before}(x)))

    where the convolution is, along each axis,

    .. math::
        \text{conv}(x)[n, c_o, o] = \text{bias}[c_o]
            + \sum_{c_i, k} x[n, c_i, i] \cdot \text{weight}[c_i, c_o, k]
        \quad\text{with}\quad
        o = i \cdot \text{stride} - \text{padding\_before} + k \cdot \text{dilation}

    To torch the chain is one operation. Under autocast all its tensors are cast as torch's own
    convolutions cast theirs (float64 stays), and so is the result; a call with ``out`` casts
    nothing, as in torch. For gradients, in ``torch.compile`` and ``torch.export``, and under modes
    and the profiler it is ``torch.ops.transfuse.chain``. Inside a transform of torch's or
    ``torch.jit.trace``, and on tensors that are more than memory, it runs as torch operations; a
    fused backend asked for by name raises there.

    Args:
        x: input, of 1 to 3 spatial axes
        weight: kernel; the number of axes is the weight's
        bias: term of each channel after the convolution. Default: ``None``
        stride: one for all axes, or one for each; so are the three below. Default: 1
        padding: outputs that are taken away at both ends of an axis. Default: 0

            - ``((before, after), …)``, a pair for each axis: so many at its beginning and at its
              end. A negative number adds as many outputs there, which hold the bias alone.
            - ``"same"``: such that ``input * stride`` outputs are left, as in Keras and TensorFlow.
              An odd one is taken at the end; where the kernel does not reach from one input to
              the next, what is missing is added at the end.
            - ``"same_upper"``, ``"same_lower"``: the same number, as ONNX's ``auto_pad`` has it. An
              odd one is taken at the end, or at the beginning; what is missing is added at both.
              (onnxruntime leaves it out.) ``output_padding`` is among what is taken away.
        output_padding: outputs that are added at the end, fewer than stride or dilation. Default: 0
        dilation: inputs between two taps of the kernel. Default: 1
        groups: channels fall apart into so many convolutions. Default: 1
        output_size: the convolution's output, in place of ``output_padding``: its spatial sizes, or
            all of them; legal are as many sizes of an axis as its stride is, from the least on.
            Default: ``None``
        before: stages from ``transfuse.stages`` on the input. Default: none
        then: stages on the result of the convolution. Their axes are counted with that of the
            samples, also where x has none: 1 is the channels'. Default: none
        out: where to write the result. Default: a new tensor
        backend: the one to run on; another raises. Default: the first that serves
        precision: how float32 is multiplied on CUDA: ``ieee``, ``tf32``, or ``auto``, as torch is
            set to. Default: ``auto``

    Shape:
        - x: :math:`(N, C_i, *)` or :math:`(C_i, *)`
        - weight: :math:`(C_i, C_o / \text{groups}, *)`
        - bias: :math:`(C_o)`
        - y: :math:`(N, C_o, *)` or :math:`(C_o, *)` where no stage changes it; the convolution's
          size along each axis is

          .. math::
              L_o = (L - 1) \cdot \text{stride} - \text{padding\_before} - \text{padding\_after}
                  + \text{dilation} \cdot (K - 1) + \text{output\_padding} + 1

    Returns:
        Tensor: the chain's result, or ``out``

    Example::

        >>> x, weight, bias = torch.randn(8, 16, 20, 20), torch.randn(16, 32, 5, 5), torch.randn(32)
        >>> conv_transpose(x, weight, bias, stride=2, then=[sigmoid(), group_norm(8)]).shape
        torch.Size([8, 32, 43, 43])
        >>> conv_transpose(x, weight, bias, stride=2, padding="same").shape
        torch.Size([8, 32, 40, 40])
        >>> conv_transpose(x, weight, bias, stride=2, padding=((1, 2), (0, -3))).shape
        torch.Size([8, 32, 40, 46])
        >>> conv_transpose(x, weight, bias, stride=2, output_size=(44, 43)).shape
        torch.Size([8, 32, 44, 43])
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
    r"""``torch.nn.functional.conv_transpose1d``, with more forms of ``padding``.

    .. math::
        y[n, c_o, o] = \text{bias}[c_o]
            + \sum_{c_i, k} x[n, c_i, i] \cdot \text{weight}[c_i, c_o, k]
        \quad\text{with}\quad
        o = i \cdot \text{stride} - \text{padding\_before} + k \cdot \text{dilation}

    along its axis. What autocast, traces and transforms make of a call is said at
    :func:`conv_transpose`.

    Args:
        x: input
        weight: kernel
        bias: term of each channel. Default: ``None``
        stride: one, or a tuple of one. Default: 1
        padding: outputs that are taken away at both ends of an axis; or a pair ``(before, after)``
            for each axis, ``"same"``, ``"same_upper"`` or ``"same_lower"``, as in
            :func:`conv_transpose`. Default: 0
        output_padding: outputs that are added at the end, fewer than stride or dilation. Default: 0
        groups: channels fall apart into so many convolutions. Default: 1
        dilation: inputs between two taps of the kernel. Default: 1
        output_size: the sizes of y, in place of ``output_padding``: the spatial ones, or all of
            them; legal are as many sizes of an axis as its stride is, from the least on.
            Default: ``None``
        out: where to write the result. Default: a new tensor
        backend: the one to run on; another raises. Default: the first that serves
        precision: how float32 is multiplied on CUDA: ``ieee``, ``tf32``, or ``auto``, as torch is
            set to. Default: ``auto``

    Shape:
        - x: :math:`(N, C_i, W)` or :math:`(C_i, W)`
        - weight: :math:`(C_i, C_o / \text{groups}, K_w)`
        - bias: :math:`(C_o)`
        - y: :math:`(N, C_o, W_o)` or :math:`(C_o, W_o)`, where

          .. math::
              W_o = (W - 1) \cdot \text{stride} - \text{padding\_before} - \text{padding\_after}
                  + \text{dilation} \cdot (K_w - 1) + \text{output\_padding} + 1

    Returns:
        Tensor: y, or ``out``

    Example::

        >>> x, weight, bias = torch.randn(8, 16, 50), torch.randn(16, 32, 4), torch.randn(32)
        >>> conv_transpose1d(x, weight, bias, stride=2, padding=1).shape
        torch.Size([8, 32, 100])
        >>> conv_transpose1d(x, weight, bias, 2, padding=((3, 0),)).shape
        torch.Size([8, 32, 99])
    """
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
    r"""``torch.nn.functional.conv_transpose2d``, with more forms of ``padding``.

    .. math::
        y[n, c_o, o] = \text{bias}[c_o]
            + \sum_{c_i, k} x[n, c_i, i] \cdot \text{weight}[c_i, c_o, k]
        \quad\text{with}\quad
        o = i \cdot \text{stride} - \text{padding\_before} + k \cdot \text{dilation}

    along both axes. What autocast, traces and transforms make of a call is said at
    :func:`conv_transpose`.

    Args:
        x: input
        weight: kernel
        bias: term of each channel. Default: ``None``
        stride: one for both axes, or one for each. Default: 1
        padding: outputs that are taken away at both ends of an axis; or a pair ``(before, after)``
            for each axis, ``"same"``, ``"same_upper"`` or ``"same_lower"``, as in
            :func:`conv_transpose`. Default: 0
        output_padding: outputs that are added at the end, fewer than stride or dilation. Default: 0
        groups: channels fall apart into so many convolutions. Default: 1
        dilation: inputs between two taps of the kernel. Default: 1
        output_size: the sizes of y, in place of ``output_padding``: the spatial ones, or all of
            them; legal are as many sizes of an axis as its stride is, from the least on.
            Default: ``None``
        out: where to write the result. Default: a new tensor
        backend: the one to run on; another raises. Default: the first that serves
        precision: how float32 is multiplied on CUDA: ``ieee``, ``tf32``, or ``auto``, as torch is
            set to. Default: ``auto``

    Shape:
        - x: :math:`(N, C_i, H, W)` or :math:`(C_i, H, W)`
        - weight: :math:`(C_i, C_o / \text{groups}, K_h, K_w)`
        - bias: :math:`(C_o)`
        - y: :math:`(N, C_o, H_o, W_o)` or :math:`(C_o, H_o, W_o)`, where, and
          :math:`W_o` alike,

          .. math::
              H_o = (H - 1) \cdot \text{stride} - \text{padding\_before} - \text{padding\_after}
                  + \text{dilation} \cdot (K_h - 1) + \text{output\_padding} + 1

    Returns:
        Tensor: y, or ``out``

    Example::

        >>> x, weight = torch.randn(8, 16, 20, 20), torch.randn(16, 32, 3, 5)
        >>> conv_transpose2d(x, weight, stride=(2, 1), padding=(1, 2)).shape
        torch.Size([8, 32, 39, 20])
        >>> conv_transpose2d(x, weight, stride=2, padding="same").shape
        torch.Size([8, 32, 40, 40])
    """
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
    r"""``torch.nn.functional.conv_transpose3d``, with more forms of ``padding``.

    .. math::
        y[n, c_o, o] = \text{bias}[c_o]
            + \sum_{c_i, k} x[n, c_i, i] \cdot \text{weight}[c_i, c_o, k]
        \quad\text{with}\quad
        o = i \cdot \text{stride} - \text{padding\_before} + k \cdot \text{dilation}

    along all three axes. What autocast, traces and transforms make of a call is said at
    :func:`conv_transpose`.

    Args:
        x: input
        weight: kernel
        bias: term of each channel. Default: ``None``
        stride: one for all axes, or one for each. Default: 1
        padding: outputs that are taken away at both ends of an axis; or a pair ``(before, after)``
            for each axis, ``"same"``, ``"same_upper"`` or ``"same_lower"``, as in
            :func:`conv_transpose`. Default: 0
        output_padding: outputs that are added at the end, fewer than stride or dilation. Default: 0
        groups: channels fall apart into so many convolutions. Default: 1
        dilation: inputs between two taps of the kernel. Default: 1
        output_size: the sizes of y, in place of ``output_padding``: the spatial ones, or all of
            them; legal are as many sizes of an axis as its stride is, from the least on.
            Default: ``None``
        out: where to write the result. Default: a new tensor
        backend: the one to run on; another raises. Default: the first that serves
        precision: how float32 is multiplied on CUDA: ``ieee``, ``tf32``, or ``auto``, as torch is
            set to. Default: ``auto``

    Shape:
        - x: :math:`(N, C_i, D, H, W)` or :math:`(C_i, D, H, W)`
        - weight: :math:`(C_i, C_o / \text{groups}, K_d, K_h, K_w)`
        - bias: :math:`(C_o)`
        - y: :math:`(N, C_o, D_o, H_o, W_o)` or :math:`(C_o, D_o, H_o, W_o)`, where, and
          :math:`H_o` and :math:`W_o` alike,

          .. math::
              D_o = (D - 1) \cdot \text{stride} - \text{padding\_before} - \text{padding\_after}
                  + \text{dilation} \cdot (K_d - 1) + \text{output\_padding} + 1

    Returns:
        Tensor: y, or ``out``

    Example::

        >>> x, weight = torch.randn(2, 16, 8, 10, 10), torch.randn(16, 8, 3, 3, 3)
        >>> conv_transpose3d(x, weight, stride=2, padding=1, output_padding=1).shape
        torch.Size([2, 8, 16, 20, 20])
        >>> conv_transpose3d(x, weight, stride=2, padding=1, output_size=(15, 20, 19)).shape
        torch.Size([2, 8, 15, 20, 19])
    """
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
        before = open_numbers.of_stages(x, _listed("before", before))
        then = open_numbers.of_stages(x, _listed("then", then))
        whole, tensors = outlines(rank, bias, before, then)
        if has_torch_function(tensors):
            return _handed_over(
                None, x, weight, bias, before, then, stride=stride, padding=padding,
                output_padding=output_padding, groups=groups, dilation=dilation,
                output_size=output_size, out=out, backend=backend, precision=precision,
            )  # fmt: skip
        chain, operands = lifted(whole, tensors, rank, bias, before, then)
    else:
        chain, operands = ALONE[rank, bias is not None], {} if bias is None else {BIAS: bias}
    return call(
        chain, x, weight, operands, None, stride, padding, output_padding, dilation, groups,
        output_size, out, backend, precision,
    )  # fmt: skip


def _listed(name: str, stages: Sequence[Stage]) -> Sequence[Stage]:
    if type(stages) is list or type(stages) is tuple:
        return stages
    if isinstance(stages, str) or not hasattr(stages, "__iter__"):
        kind = type(stages).__name__
        raise TypeError(f"{name} must be a list of stages, such as [sigmoid()], not {kind}")
    return tuple(stages)


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
