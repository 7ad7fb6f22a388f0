"""The transposed convolution itself; its sizes and options live in the Problem."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from transfuse.stages.base import Kind, Operand, Stage, parameter, shown


@dataclass(frozen=True)
class ConvTranspose(Stage):
    r"""The transposed convolution of a chain; weight, sizes and options are a call's.

    .. math::
        y[n, c_o, o] = \text{bias}[c_o]
            + \sum_{c_i, k} x[n, c_i, i] \cdot \text{weight}[c_i, c_o, k]
        \quad\text{with}\quad
        o = i \cdot \text{stride} - \text{padding} + k \cdot \text{dilation}

    Args:
        rank: how many spatial axes there are: 1, 2 or 3
        bias: term of each channel, or the name that a call gives it under. Default: none
        either_kernel: a kernel that holds all output channels is dense whatever ``groups`` says.
            Default: ``False``
        weight_scale: what multiplies the weights, where a rewrite moved a constant into them.
            Default: 1

    Shape:
        - x: :math:`(N, C_i, *)`
        - y: :math:`(N, C_o, *)`

    Example::

        >>> print(Chain(ConvTranspose(2, bias="bias"), sigmoid()))
        conv_transpose2d(+ bias) -> sigmoid
    """

    kind: ClassVar[Kind] = Kind.CONVOLUTION
    name: ClassVar[str] = "conv_transpose"
    exact: ClassVar[bool] = True
    rank: int
    bias: Operand = parameter(Tensor, default=None)
    either_kernel: bool = False
    weight_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank not in (1, 2, 3):
            raise ValueError(f"conv_transpose: rank must be 1, 2 or 3, not {self.rank!r}")

    def __str__(self) -> str:
        terms = [] if self.weight_scale == 1.0 else [f"weights * {self.weight_scale}"]
        terms += [] if self.bias is None else [f"+ {shown(self.bias)}"]
        return f"{self.name}{self.rank}d" + (f"({', '.join(terms)})" if terms else "")
