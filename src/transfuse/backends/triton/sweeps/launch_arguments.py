"""What a launch of a sweep is given: pointers, integers, numbers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from transfuse.backends.triton.arguments import All
from transfuse.backends.triton.draft import ACC, WIDE
from transfuse.backends.triton.epilogue.op_table import thirds
from transfuse.backends.triton.lower import parts
from transfuse.backends.triton.segments import Node
from transfuse.backends.triton.sweeps.blocks import Laid
from transfuse.maths.expr import Expr
from transfuse.sweeps import View


class LaunchArguments:
    """Tensors by number and numbers of one launch; arithmetic is float32, or float64 if any is."""

    def __init__(self, views: Sequence[View], at: Callable[[int], int]) -> None:
        double = any(view.dtype == torch.float64 for view in views)
        self.dtype, self.acc = (torch.float64, WIDE) if double else (torch.float32, ACC)
        self.pointers = All(tuple(at(view.slot) for view in views))
        self.numbers: list[float] = []

    def part(self, expr: Expr, names: Sequence[str]) -> Node:
        """An expression with the numbers of all, each once: where several compute the same, the
        compiler is to see it."""
        own: list[float] = []
        found = parts(expr, names, own)

        def placed(part: Node) -> Node:
            if part.op != "number":
                return replace(part, parts=tuple(map(placed, part.parts)))
            value = own[part.at]
            if repr(value) not in map(repr, self.numbers):  # 0 is not -0, and NaN is NaN
                self.numbers.append(value)
            return replace(part, at=list(map(repr, self.numbers)).index(repr(value)))

        return placed(found)

    def arguments(self, found: Laid) -> list[Any]:
        """The arguments that the kernels of all sweeps begin with."""
        numbers = tuple(part for number in self.numbers for part in thirds(number))
        return [self.pointers, found.sizes, found.strides, numbers or (0.0,)]
