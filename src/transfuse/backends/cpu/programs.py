"""What the core takes: structures filled in from problems and steps, but for addresses."""

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from torch import Tensor

from transfuse.backends.cpu import library, lower
from transfuse.problem import Problem


def convolution(problem: Problem, weight_scale: float) -> library.Program:
    """The program of a convolution alone."""
    return library.Program(
        element=library.ELEMENTS.index(problem.dtype),
        input_element=library.ELEMENTS.index(problem.dtype),
        output_element=library.ELEMENTS.index(problem.dtype),
        operands=library.ELEMENTS.index(problem.dtype),
        batch=problem.batch,
        in_channels=problem.in_channels,
        out_channels=problem.out_channels,
        groups=problem.groups,
        spatial=three(problem.spatial, 1),
        kernel=three(problem.kernel, 1),
        stride=three(problem.stride, 1),
        padding=three(problem.padding, 0),
        dilation=three(problem.dilation, 1),
        output_padding=three(problem.output_padding, 0),
        weight_scale=weight_scale,
    )


class Steps:
    """Steps as the core takes them, but for their tensors.

    ``spread``: the operands of more than one value per channel.
    """

    def __init__(self, given: Iterable[lower.CoreStep]) -> None:
        steps = list(given)
        self._steps = (library.Step * len(steps))(*(each.step(lambda name: 0) for each in steps))
        self._tensors = [
            (i, field, name)
            for i, each in enumerate(steps)
            for field in ("t0", "t1", "t2", "t3")
            if (name := getattr(each, field)) is not None
        ]
        self._maps = [(i, _Map(each)) for i, each in enumerate(steps) if each.code]
        self.spread = frozenset(name for each in steps for name in each.spread)

    def on(self, operands: Mapping[str, Tensor]) -> tuple[Any, int]:
        """The steps on these tensors, and how many: a copy, which keeps what it points to."""
        steps = type(self._steps).from_buffer_copy(self._steps)
        for i, field, name in self._tensors:
            setattr(steps[i], field, operands[name].data_ptr())
        for i, map_ in self._maps:
            steps[i].map = map_.on(operands)
        return steps, len(steps)

    def nowhere(self) -> tuple[Any, int]:
        """The steps where no address is followed: their tensors are there, and lead nowhere."""
        steps = type(self._steps).from_buffer_copy(self._steps)
        for i, map_ in self._maps:
            steps[i].map = map_.nowhere()
        return steps, len(steps)

    def places(self, made: Any) -> Iterator[tuple[memoryview, int, str]]:
        """Where the address of each operand stands in steps that ``on`` made."""
        count = len(self._steps)
        if not count:
            return
        steps = (library.Step * count).from_address(ctypes.addressof(made.contents))
        words = memoryview(steps).cast("B").cast("Q")
        size = ctypes.sizeof(library.Step)
        for i, field, name in self._tensors:
            yield words, (i * size + getattr(library.Step, field).offset) // 8, name
        for i, map_ in self._maps:
            if map_.names:
                yield from map_.places(steps[i].map.contents)


class _Map:
    """A map as the core takes it, but for its operands."""

    def __init__(self, step: lower.CoreStep) -> None:
        assert step.code
        assert step.shape
        self.names, self._code = step.code.operands, step.code.structure()
        self._dims, self._spread = step.shape.dims, step.spread

    def on(self, operands: Mapping[str, Tensor]) -> Any:
        """A pointer to the map with its operands; it keeps what it points to."""
        found = (library.Operand * len(self.names))(
            *(self._operand(operands[name], name in self._spread) for name in self.names)
        )
        return ctypes.pointer(library.Map(self._code, found))

    def nowhere(self) -> Any:
        """The same where no address is followed."""
        found = (library.Operand * len(self.names))(*(library.Operand(data=1) for _ in self.names))
        return ctypes.pointer(library.Map(self._code, found))

    def places(self, made: library.Map) -> Iterator[tuple[memoryview, int, str]]:
        """Where the address of each operand stands in a map that was made here."""
        first = ctypes.addressof(made.operands.contents)
        words = memoryview((library.Operand * len(self.names)).from_address(first))
        size, at = ctypes.sizeof(library.Operand), library.Operand.data.offset
        for i, name in enumerate(self.names):
            yield words.cast("B").cast("Q"), (i * size + at) // 8, name

    def _operand(self, tensor: Tensor, spread: bool) -> library.Operand:
        steps = (0, 1, *(0,) * (len(self._dims) - 2))
        if spread:
            wide = tensor.expand(self._dims)
            sized = zip(wide.stride(), self._dims, strict=True)
            steps = tuple(step if size > 1 else 0 for step, size in sized)
        return library.Operand(library.element(tensor), tensor.data_ptr(), strides(steps))


def three(values: tuple[int, ...], missing: int) -> ctypes.Array[ctypes.c_int64]:
    """One value per axis, missing axes first."""
    return library.Sizes(*((missing,) * (3 - len(values)) + values))


@lru_cache(maxsize=4096)
def strides(steps: tuple[int, ...]) -> ctypes.Array[ctypes.c_int64]:
    """Five strides; those of missing axes do not matter."""
    n, c, *space = steps
    return library.Strides(n, c, *(0,) * (3 - len(space)), *space)
