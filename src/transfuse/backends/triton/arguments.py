"""Arguments of a launch that are filled in: tensors by number, and what only Triton has."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

UNREAD = 0
"""The number of a tensor that is always there, for a parameter that is not looked at."""

NO_MORE = 0
"""The argument ``more`` of Hopper's kernels: rounds of a loop after its first, which no compiler is
to know to be none (``strip_kernel.consume`` says why)."""


@dataclass(frozen=True)
class Pointer:
    """Memory under an address, as far as a compiler or a descriptor looks at it."""

    address: int
    dtype: torch.dtype

    @classmethod
    def like(cls, tensor: Tensor) -> "Pointer":
        """What compiled code depends on: the type, and by what 16 bytes the address is off."""
        return cls(tensor.data_ptr() % 16, tensor.dtype)

    def data_ptr(self) -> int:
        return self.address


@dataclass(frozen=True)
class At:
    """The tensor of that number."""

    number: int

    def of(self, memory: Sequence[Any]) -> Any:
        return memory[self.number]


@dataclass(frozen=True)
class All:
    """The tensors of these numbers; one that is not looked at where there are none."""

    numbers: tuple[int, ...]

    def of(self, memory: Sequence[Any]) -> Any:
        return tuple([memory[number] for number in self.numbers]) or (memory[UNREAD],)


@dataclass(frozen=True)
class Scalar:
    """A type of Triton's language by its name there."""

    name: str

    @property
    def type(self) -> Any:
        import triton.language as tl

        return getattr(tl, self.name)

    def of(self, memory: Sequence[Any]) -> Any:
        return self.type


@dataclass(frozen=True)
class Swizzled:
    """How rows of so many bytes lie in shared memory: the tensor cores read them so."""

    row: int
    bits: int  # of an element
    rank: int = 2

    @property
    def layout(self) -> Any:
        """The same as Gluon has it."""
        from triton.experimental.gluon.language import NVMMASharedLayout

        return NVMMASharedLayout(self.row, self.bits, self.rank)


@dataclass
class Boxes:
    """A tensor to be read in boxes; with a ``layout``, boxes that lie swizzled in shared memory.

    It is dense, or has its ``own_strides``. Memory is used again and again under the same few
    addresses: descriptors are kept by them.
    """

    number: int
    sizes: tuple[int, ...]
    box: tuple[int, ...]
    layout: Swizzled | None = None
    own_strides: tuple[int, ...] = ()
    kept: dict[int, Any] = field(default_factory=dict)
    dtype: torch.dtype | None = None

    def of(self, memory: Sequence[Any]) -> Any:
        base = memory[self.number]
        if not isinstance(base, int):
            return self._descriptor(base)
        found = self.kept.get(base)
        if found is None:
            if len(self.kept) > 64:
                self.kept.clear()
            assert self.dtype is not None
            found = self.kept[base] = self._descriptor(Pointer(base, self.dtype))
        return found

    @property
    def strides(self) -> list[int]:
        dense = [prod(self.sizes[i + 1 :]) for i in range(len(self.sizes))]
        return list(self.own_strides) or dense

    def _descriptor(self, base: Any) -> Any:
        sizes, box = list(self.sizes), list(self.box)
        if self.layout is None:
            from triton.tools.tensor_descriptor import TensorDescriptor

            return TensorDescriptor(base, sizes, self.strides, box)
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as StripDescriptor

        return StripDescriptor(base, sizes, self.strides, box, self.layout.layout)


OPEN = At | All | Boxes | Scalar


def filled(arguments: Sequence[Any], memory: Sequence[Any]) -> list[Any]:
    """Arguments as Triton takes them, for tensors, memory or addresses by number."""
    return [each.of(memory) if isinstance(each, OPEN) else each for each in arguments]
