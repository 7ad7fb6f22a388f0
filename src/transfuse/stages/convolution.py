"""The transposed convolution itself; its sizes and options live in the Problem."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from transfuse.stages.base import Kind, Operand, Stage, parameter, shown


@dataclass(frozen=True)
class ConvTranspose(Stage):
    """``y[n, co, o] = bias[co] + sum over ci, k of x[n, ci, i] * w[ci, co, k]``, ``i*s = o+p-k*d``.

    ``either_kernel``: a kernel that holds all output channels is dense whatever ``groups`` says.
    ``weight_scale`` multiplies the weights, where a rewrite moved a constant into them.
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
