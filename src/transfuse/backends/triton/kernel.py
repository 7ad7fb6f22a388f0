"""A kernel by name. Its function is imported when it is compiled or interpreted, not before: that
imports Triton, which takes longer than all that is left to do where the store has the kernel.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

PACKAGE = __name__.rpartition(".")[0]


@dataclass(frozen=True)
class Kernel:
    """``module``, from this package on, has a function of that ``name``.

    ``static``: so many of its parameters, the last ones, are compiled in. ``at_run_time``: it is
    not compiled anew for integers among the others, as ``do_not_specialize`` has it; those in
    tuples are told apart all the same. ``slow``: it takes the compiler longer than most.
    """

    module: str
    name: str
    static: int
    at_run_time: bool = False
    slow: bool = False

    @property
    def function(self) -> Any:
        return getattr(import_module(f"{PACKAGE}.{self.module}"), self.name)
