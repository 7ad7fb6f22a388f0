"""Kernel launches made ready once: what is left for a call is to fill in addresses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as StripDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from transfuse.backends.triton.build import Build
from transfuse.backends.triton.versions import FUSING, mend_interpreter

UNREAD = 0
"""The number of a tensor that is always there, for a parameter that is not looked at."""

NO_MORE = 0
"""The argument ``more`` of Hopper's kernels: rounds of a loop after its first, which no compiler is
to know to be none (``strip_kernel.consume`` says why)."""


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
class Memory:
    """Memory under an address, as far as a descriptor looks at it."""

    address: int
    dtype: Any

    def data_ptr(self) -> int:
        return self.address


@dataclass
class Boxes:
    """A tensor to be read in boxes; with a ``layout``, boxes that lie swizzled in shared memory.

    Memory is used again and again under the same few addresses: descriptors are kept by them.
    """

    number: int
    sizes: tuple[int, ...]
    box: tuple[int, ...]
    layout: Any = None
    kept: dict[int, Any] = field(default_factory=dict)
    dtype: Any = None

    def of(self, memory: Sequence[Any]) -> Any:
        base = memory[self.number]
        if isinstance(base, Tensor):
            self.dtype = base.dtype
            return self._descriptor(base)
        found = self.kept.get(base)
        if found is None:
            if len(self.kept) > 64:
                self.kept.clear()
            found = self.kept[base] = self._descriptor(Memory(base, self.dtype))
        return found

    @property
    def strides(self) -> list[int]:
        return [prod(self.sizes[i + 1 :]) for i in range(len(self.sizes))]

    def _descriptor(self, base: Any) -> Any:
        sizes, box = list(self.sizes), list(self.box)
        if self.layout is None:
            return TensorDescriptor(base, sizes, self.strides, box)
        return StripDescriptor(base, sizes, self.strides, box, self.layout)


@dataclass
class Launch:
    """A kernel with its arguments; those that differ from call to call are filled in.

    It is built from tensors. Later launches take addresses: Triton's own look at its arguments
    would cost more than all else.
    """

    kernel: Any
    programs: int
    arguments: list[Any]
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.built: Build | None = None
        self.run: Any = None
        self.open = [
            (at, each)
            for at, each in enumerate(self.arguments)
            if isinstance(each, At | All | Boxes)
        ]

    def build(self, tensors: Sequence[Tensor], capability: int) -> Build:
        """What is to be compiled for tensors such as these; it is what later launches are of."""
        options = FUSING | self.options
        self.built = Build.of(self.kernel, self._filled(tensors), options, capability)
        return self.built

    def interpret(self, tensors: Sequence[Tensor]) -> None:
        """Run in Triton's interpreter."""
        mend_interpreter()
        self.kernel[self.programs, 1, 1](*self._filled(tensors), **self.options)

    def by_triton(self) -> Callable[[Sequence[int], int], None]:
        """Triton's own launcher, which looks at each argument every time: for addresses, a stream.

        ``Declined`` where Triton cannot compile the kernel, or where its code is wrong.
        """
        if self.run is None:
            assert self.built is not None
            self.run = self.built.compiled[self.programs, 1, 1]
        return lambda addresses, stream: self.run(*self._filled(addresses), stream=stream)

    def _filled(self, memory: Sequence[Any]) -> list[Any]:
        arguments = self.arguments.copy()
        for at, each in self.open:
            arguments[at] = each.of(memory)
        return arguments
