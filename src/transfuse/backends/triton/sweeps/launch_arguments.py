"""What a launch of a sweep is given: pointers, integers, numbers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from transfuse.backends.triton.arguments import All
from transfuse.backends.triton.draft import ACC, WIDE
from transfuse.backends.triton.epilogue.op_table import thirds
from transfuse.backends.triton.sweeps.blocks import Laid
from transfuse.sweeps import View


class LaunchArguments:
    """Tensors by number and numbers of one launch; arithmetic is float32, or float64 if any is."""

    def __init__(self, views: Sequence[View], at: Callable[[int], int]) -> None:
        double = any(view.dtype == torch.float64 for view in views)
        self.dtype, self.acc = (torch.float64, WIDE) if double else (torch.float32, ACC)
        self.pointers = All(tuple(at(view.slot) for view in views))
        self.numbers: list[float] = []

    def arguments(self, found: Laid) -> list[Any]:
        """The arguments that the kernels of all sweeps begin with."""
        numbers = tuple(part for number in self.numbers for part in thirds(number))
        return [self.pointers, found.sizes, found.strides, numbers or (0.0,)]
