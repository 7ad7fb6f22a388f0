"""The element types that ``[VAR]`` may stand for, and what each one computes in."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Element:
    """A storage type: its name in problem lines, its torch dtype and its rounding.

    ``unit`` is the unit roundoff (half the distance from 1 to the next value), ``tiny`` the
    smallest positive value: rounding once costs at most ``unit * |y| + tiny / 2``. Arithmetic on
    16-bit storage is done in ``compute`` and rounded once at the end.
    """

    name: str
    dtype: torch.dtype
    compute: torch.dtype

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def unit(self) -> float:
        return torch.finfo(self.dtype).eps / 2

    @property
    def tiny(self) -> float:
        return torch.finfo(self.dtype).smallest_normal * torch.finfo(self.dtype).eps


ELEMENTS = {
    element.name: element
    for element in (
        Element("fp32", torch.float32, torch.float32),
        Element("fp64", torch.float64, torch.float64),
        Element("fp16", torch.float16, torch.float32),
        Element("bf16", torch.bfloat16, torch.float32),
    )
}

BY_DTYPE = {element.dtype: element for element in ELEMENTS.values()}


def float32_on_cuda() -> str:
    """How torch is set to multiply float32 in a convolution on CUDA: ``ieee`` or ``tf32``.

    What ``torch.backends.cudnn.allow_tf32`` sets is seen here too; to read that one raises an error
    where a program has used both of torch's ways to set it.
    """
    # As torch.backends.cudnn.conv.fp32_precision reads it, which takes seven times as long.
    return "tf32" if _precision("cuda", "conv") == "tf32" else "ieee"


_precision = torch._C._get_fp32_precision_getter


# torch.compile cannot trace a read of that setting: a graph keeps what it was when it was traced.
# This is what torch.compiler.assume_constant_result does, which takes seconds to import.
float32_on_cuda._dynamo_marked_constant = True  # type: ignore[attr-defined]
