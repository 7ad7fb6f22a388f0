"""The functions that make pools: windows of one size, or as many as are asked for."""

from transfuse.geometry import integer
from transfuse.stages.window import AdaptivePool, AvgPool, LpPool, MaxPool, Size, Sizes


def max_pool(
    kernel_size: Size | str,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
) -> MaxPool:
    r"""The largest value of each window, as ``torch.nn.functional.max_pool1d`` to ``3d``.

    .. math:: y_o = \max_k x_{o s - p + k d}, \quad (s, p, d) = (\mathrm{stride},
        \mathrm{padding}, \mathrm{dilation})

    NaN wins; padding never does.

    Args:
        kernel_size: the size of a window, one number or one per axis.
        stride: from one window to the next. Default: ``kernel_size``
        padding: added on both sides of each axis, half of the kernel at most. Default: 0
        dilation: from one element of a window to the next. Default: 1
        ceil_mode: whether a last window counts that is not full. Default: ``False``

    Shape:
        - x: :math:`(N, C, *)`
        - y: along each axis
          :math:`\lfloor (n + 2 \mathrm{padding} - \mathrm{dilation} (k - 1) - 1) / \mathrm{stride}
          \rfloor + 1`; in ``ceil_mode`` rounded up, less a window that begins in the right padding

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> conv_transpose(x, w, then=[max_pool(3, stride=2, padding=1)]).shape
        torch.Size([2, 8, 4, 4])
    """
    return MaxPool(kernel_size, stride, padding, dilation, ceil_mode)


def avg_pool(
    kernel_size: Size | str,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> AvgPool:
    r"""The mean of each window, as ``torch.nn.functional.avg_pool1d`` to ``3d``.

    .. math:: y_o = \frac{1}{d} \sum_k x_{o \cdot \mathrm{stride} - \mathrm{padding} + k}

    Args:
        kernel_size: the size of a window, one number or one per axis.
        stride: from one window to the next. Default: ``kernel_size``
        padding: zeros on both sides of each axis, half of the kernel at most. Default: 0
        ceil_mode: whether a last window counts that is not full. Default: ``False``
        count_include_pad: whether padding counts among the values that are divided by.
            Default: ``True``
        divisor_override: what is divided by instead. Default: the values in the window

    Shape:
        - x: :math:`(N, C, *)`
        - y: along each axis :math:`\lfloor (n + 2 \mathrm{padding} - k) / \mathrm{stride} \rfloor
          + 1`; in ``ceil_mode`` rounded up, less a window that begins in the right padding

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> conv_transpose(x, w, then=[avg_pool(2, ceil_mode=True)]).shape
        torch.Size([2, 8, 4, 4])
    """
    options = (count_include_pad, divisor_override)
    return AvgPool(kernel_size, stride, padding, 1, ceil_mode, *options)


def lp_pool(
    norm_type: float, kernel_size: Size | str, stride: Size | None = None, ceil_mode: bool = False
) -> LpPool:
    r"""The power mean of each window, as ``torch.nn.functional.lp_pool1d`` to ``3d``.

    .. math:: y_o = \left(\sum_k x_{o \cdot \mathrm{stride} + k}^p\right)^{1/p}

    Args:
        norm_type: the power p. Inf gives the largest ``|x|`` of a window, -Inf the smallest.
        kernel_size: the size of a window, one number or one per axis.
        stride: from one window to the next. Default: ``kernel_size``
        ceil_mode: whether a last window counts that is not full; as in torch the sum is then that
            of a full one with the same mean. Default: ``False``

    Shape:
        - x: :math:`(N, C, *)`
        - y: as with ``avg_pool``

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> conv_transpose(x, w, then=[lp_pool(2, 3)]).shape
        torch.Size([2, 8, 2, 2])
    """
    return LpPool(kernel_size, stride, 0, 1, ceil_mode, norm_type=norm_type)


def adaptive_avg_pool(output_size: Sizes) -> AdaptivePool:
    r"""The mean of windows that share out each axis, as ``F.adaptive_avg_pool1d`` to ``3d``.

    .. math:: y_o = \mathrm{mean}\ x_{\lfloor o n / m \rfloor},
        \dots, x_{\lceil (o + 1) n / m \rceil - 1}

    Args:
        output_size: how many outputs m, one number or one per axis; None: as many as inputs.

    Shape:
        - x: :math:`(N, C, *)`
        - y: :math:`(N, C, \mathrm{output\_size})`

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> conv_transpose(x, w, then=[adaptive_avg_pool((None, 2))]).shape
        torch.Size([2, 8, 7, 2])
    """
    return AdaptivePool(_sizes("adaptive_avg_pool", output_size), "avg")


def adaptive_max_pool(output_size: Sizes) -> AdaptivePool:
    r"""The largest of windows that share out each axis, as ``F.adaptive_max_pool1d`` to ``3d``.

    .. math:: y_o = \max\ x_{\lfloor o n / m \rfloor}, \dots, x_{\lceil (o + 1) n / m \rceil - 1}

    Args:
        output_size: how many outputs m, one number or one per axis; None: as many as inputs.

    Shape:
        - x: :math:`(N, C, *)`
        - y: :math:`(N, C, \mathrm{output\_size})`

    Returns:
        The stage, for ``conv_transpose(…, then=[…])`` or a ``Chain``.

    Example::

        >>> conv_transpose(x, w, then=[adaptive_max_pool(3)]).shape
        torch.Size([2, 8, 3, 3])
    """
    return AdaptivePool(_sizes("adaptive_max_pool", output_size), "max")


def _sizes(name: str, given: Sizes) -> Sizes:
    def one(size: int | None) -> int | None:
        return None if size is None else integer(f"{name} output_size", size)

    return tuple(map(one, given)) if isinstance(given, list | tuple) else one(given)
