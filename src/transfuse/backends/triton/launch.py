"""Kernel launches made ready once: what is left for a call is to fill in addresses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import triton
from torch import Tensor
from triton import knobs
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as StripDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from transfuse.backends.triton.miscompiles import spills_over
from transfuse.backends.triton.versions import FUSING, mend_interpreter
from transfuse.errors import Declined

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

    It is dense, or has ``strides``. Memory is used again and again under the same few addresses:
    descriptors are kept by them.
    """

    number: int
    sizes: tuple[int, ...]
    box: tuple[int, ...]
    layout: Any = None
    strides: tuple[int, ...] | None = None
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

    def _descriptor(self, base: Any) -> Any:
        sizes, box = list(self.sizes), list(self.box)
        strides = list(self.strides or [prod(sizes[i + 1 :]) for i in range(len(sizes))])
        if self.layout is None:
            return TensorDescriptor(base, sizes, strides, box)
        return StripDescriptor(base, sizes, strides, box, self.layout)


@dataclass
class Launch:
    """A kernel with its arguments; those that differ from call to call are filled in.

    It is compiled and launched first with tensors. Later launches take addresses: Triton's own look
    at its arguments would cost more than all else.
    """

    kernel: Any
    programs: int
    arguments: list[Any]
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.compiled: Any = None
        self.run: Any = None
        self.open = [
            (at, each)
            for at, each in enumerate(self.arguments)
            if isinstance(each, At | All | Boxes)
        ]

    def compile(self, tensors: Sequence[Tensor]) -> None:
        """Compile, and run nothing; ``Declined`` where the code is known to be wrong."""
        if knobs.runtime.interpret:
            return
        grid, options = (self.programs, 1, 1), FUSING | self.options
        self.compiled = self.kernel.run(*self._filled(tensors), grid=grid, warmup=True, **options)
        if spills_over(self.compiled.asm["ptx"]):
            raise Declined(
                f"Triton {triton.__version__} makes wrong code of {self.kernel.__name__}: two "
                "shifts packed into one, where the lower may spill over"
            )

    def first(self, tensors: Sequence[Tensor]) -> None:
        grid, arguments = (self.programs, 1, 1), self._filled(tensors)
        if knobs.runtime.interpret:
            mend_interpreter()
            self.kernel[grid](*arguments, **self.options)
        else:
            self.compiled[grid](*arguments)

    def again(self, addresses: Sequence[int], stream: int) -> None:
        if self.run is None:
            self.run = self.compiled[(self.programs, 1, 1)]
        self.run(*self._filled(addresses), stream=stream)

    def _filled(self, memory: Sequence[Any]) -> list[Any]:
        arguments = self.arguments.copy()
        for at, each in self.open:
            arguments[at] = each.of(memory)
        return arguments
