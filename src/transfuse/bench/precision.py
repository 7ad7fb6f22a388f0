"""Precision classes: what is compared with what. They are named and never mixed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from transfuse.problem import arithmetics


@dataclass(frozen=True)
class Precision:
    """Storage type and arithmetic of one class of results.

    transfuse takes the arithmetic from the problem; ``applied`` is for its peers.
    ``ulp`` is that of the arithmetic: what a result of the class is judged by. In the 16-bit
    classes a framework rounds to storage after every stage, so it is the storage type's.
    """

    name: str
    dtype: str
    ulp: float
    tf32: bool = False

    @property
    def arithmetic(self) -> str:
        """The problem's word for it."""
        return "tf32" if self.tf32 else self.dtype

    @contextmanager
    def applied(self) -> Iterator[None]:
        """torch's switches on GPUs, as an expert sets them for this class; put back after.

        ``cudnn.benchmark`` lets cuDNN time its algorithms when a shape first comes (while variants
        are warmed up). Its choice without that can take twenty times as long, in tf32 above all,
        and nobody who cares for speed would be measured so.
        """
        matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, conv.allow_tf32, conv.benchmark
        matmul.allow_tf32 = conv.allow_tf32 = self.tf32
        conv.benchmark = True
        try:
            yield
        finally:
            matmul.allow_tf32, conv.allow_tf32, conv.benchmark = before


PRECISIONS = {
    each.name: each
    for each in (
        Precision("fp32", "fp32", 2.0**-23),
        Precision("tf32", "fp32", 2.0**-10, tf32=True),
        Precision("fp16", "fp16", 2.0**-10),
        Precision("bf16", "bf16", 2.0**-7),
        Precision("fp64", "fp64", 2.0**-52),
    )
}


def precisions(device: str) -> tuple[Precision, ...]:
    """The classes a device has: tf32 is a GPU's."""
    return tuple(p for p in PRECISIONS.values() if p.arithmetic in arithmetics(device))
