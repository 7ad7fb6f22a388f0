"""Kernel launches made ready once: what is left for a call is to fill in addresses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from transfuse import settings
from transfuse.backends.triton.arguments import Boxes, Pointer, filled
from transfuse.backends.triton.build import Build
from transfuse.backends.triton.kernel import Kernel


@dataclass
class Launch:
    """A kernel with its arguments; those that differ from call to call are filled in.

    It is built for tensors. Later launches take addresses: Triton's own look at its arguments would
    cost more than all else.
    """

    kernel: Kernel
    programs: int
    arguments: list[Any]
    options: dict[str, Any] = field(default_factory=dict)
    segment: int = 0
    """Which one of a chain it belongs to."""

    def __post_init__(self) -> None:
        self.built: Build | None = None
        self.run: Any = None

    def build(self, tensors: Sequence[Tensor], capability: int) -> Build:
        """What is to be compiled for tensors such as these; it is what later launches are of."""
        # From 3.9 on Triton warns where it is not told, and has to guess.
        options = {"enable_fp_fusion": settings.fuses_products()} | self.options
        memory = [Pointer.like(each) for each in tensors]
        for each in self.arguments:
            if isinstance(each, Boxes):
                each.dtype = memory[each.number].dtype
        self.built = Build.of(self.kernel, self.arguments, memory, options, capability)
        return self.built

    def interpret(self, tensors: Sequence[Tensor]) -> None:
        """Run in Triton's interpreter."""
        from transfuse.backends.triton.versions import mend_interpreter

        mend_interpreter()
        run = self.kernel.function[self.programs, 1, 1]
        run(*filled(self.arguments, tensors), **self.options)

    def by_triton(self) -> Callable[[Sequence[int], int], None]:
        """Triton's own launcher, which looks at each argument every time: for addresses, a stream.

        ``Declined`` where Triton cannot compile the kernel, or where its code is wrong.
        """
        if self.run is None:
            assert self.built is not None
            self.run = self.built.compiled[self.programs, 1, 1]
        return lambda addresses, stream: self.run(*filled(self.arguments, addresses), stream=stream)
