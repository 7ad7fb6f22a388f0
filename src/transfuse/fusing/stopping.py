"""Why a forward is no graph, or a module is left whole, with the place in the user's code."""

import logging
import traceback
from pathlib import Path
from typing import NamedTuple

import torch

FIRST_CALL = "decided at the first call"
HERE = tuple(str(Path(each).parent) for each in (__file__, torch.__file__, logging.__file__))
"""Where code is not the user's."""
LEFT = "left to torch, which is faster"
"""How a reason begins where a transposed convolution could be fused."""


class Untraceable(Exception):
    """Why a forward is no graph. ``pending``: the arguments of a call may tell more."""

    def __init__(self, reason: str, pending: bool = False) -> None:
        super().__init__(reason)
        self.pending = pending


class Stop(BaseException):
    """Tracing stops here. Not an ``Exception``: a forward that catches those must not see it."""

    def __init__(self, reason: str, pending: bool = False) -> None:
        self.reason = reason
        self.pending = pending


class Left(NamedTuple):
    """A module that is left whole: why, if one would want to know."""

    reason: str = ""
    pending: bool = False


def told(reason: str, error: BaseException) -> str:
    """The reason, with the place in the user's code."""
    frames = [each for each, _ in traceback.walk_tb(error.__traceback__)]
    mine = [each for each in frames if not each.f_code.co_filename.startswith(HERE)]
    lines = [n for each, n in traceback.walk_tb(error.__traceback__) if each in mine]
    if not mine:
        return reason
    return f"{Path(mine[-1].f_code.co_filename).name}:{lines[-1]} {reason}"
