"""A plan as the core takes it, made once: each call fills in addresses and strides."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transfuse.backends.cpu import library, lower, results, single
from transfuse.backends.cpu.programs import Steps, convolution, strides
from transfuse.elements import ELEMENTS
from transfuse.plan import Plan
from transfuse.stages.running import Running


class _Gathers(NamedTuple):
    """A step that gathers for running statistics, over so many values of each channel."""

    at: int
    running: Running
    channels: int
    values: int

    def room(self) -> Tensor:
        """Where the core puts means and variances."""
        return torch.empty(2, self.channels, dtype=torch.float64, device="cpu")


class Ready:
    """A plan as the core takes it; of a call's own there are only addresses and strides to fill in.

    ``product``: the problem as a product of input and weights, where it is one; ``result``: the
    tensor that comes of it; ``spread``: the operands of more than one value per channel;
    ``passes``: how many there are; ``room``: numbers that the core may write of their times.
    """

    def __init__(self, plan: Plan) -> None:
        is_product = single.serves(plan.chain, plan.problem)
        self.product = single.product(plan.problem) if is_product else None
        shape = plan.chain.shapes(plan.problem)[-1]
        element = ELEMENTS[plan.problem.dtype]
        last = plan.problem.layout == "channels_last"
        self.result = results.Form(shape.dims, element.dtype, last)
        instructions = list(lower.epilogue(plan))
        self._before = Steps(lower.prologue(plan.chain, plan.chain.shapes(plan.problem)))
        self._steps = Steps(instructions)
        self.gathers = [
            _Gathers(i, each.running, each.shape.c, each.shape.n * each.shape.positions)
            for i, each in enumerate(instructions)
            if each.running and each.shape
        ]
        self.spread = self._before.spread | self._steps.spread
        self._program = convolution(plan.problem, plan.chain.conv.weight_scale)
        self.passes, self.room = len(plan.passes), len(instructions) + 2

    def program(
        self,
        x: Tensor,
        out: Tensor,
        operands: Mapping[str, Tensor],
        moments: Sequence[Tensor] = (),
    ) -> library.Program:
        """The program of one call. A copy: others may run at the same time."""
        program = library.Program.from_buffer_copy(self._program)
        program.input, program.input_strides = x.data_ptr(), strides(x.stride())
        program.output, program.output_strides = out.data_ptr(), strides(out.stride())
        program.input_element, program.output_element = library.element(x), library.element(out)
        program.before, program.before_count = self._before.on(operands)
        steps, program.steps_count = self._steps.on(operands)
        for each, room in zip(self.gathers, moments, strict=True):
            steps[each.at].moments = room.data_ptr()
        program.steps = steps
        return program

    def places(self, program: library.Program) -> Iterator[tuple[memoryview, int, str]]:
        """Where the address of each operand stands in a program that was made here."""
        yield from self._before.places(program.before)
        yield from self._steps.places(program.steps)


class Filled:
    """A program of one call, and where the addresses of its tensors stand in it."""

    def __init__(
        self, ready: "Ready", x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], y: Tensor
    ) -> None:
        self.program = ready.program(x, y, operands)
        self.address = ctypes.addressof(self.program)
        mixed = {each.dtype for name, each in operands.items() if name not in ready.spread}
        if mixed - {weight.dtype}:
            self.program.operands = library.ELEMENTS.index("fp32")
        self.words = memoryview(self.program).cast("B").cast("Q")
        self.careful = bool(self.program.careful)
        self.places = list(ready.places(self.program))

    def point_to(self, operands: Mapping[str, Tensor]) -> None:
        for view, at, name in self.places:
            view[at] = operands[name].data_ptr()

    def be_careful(self, careful: bool) -> None:
        self.program.careful = self.careful = careful
