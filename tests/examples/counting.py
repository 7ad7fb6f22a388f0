"""Counts what a call runs, as torch's functions are called."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = {torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d}


class Counted(TorchFunctionMode):
    """How many transposed convolutions torch itself was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = 0

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.convolutions += function in CONVOLUTIONS
        return function(*args, **(kwargs or {}))
