"""Which Triton is installed, and what it does not compile; told without importing it."""

import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from transfuse.backends.triton.kernel import Kernel


@cache
def version() -> str:
    """As it stands in Triton's own source; its distributions go by several names."""
    spec = find_spec("triton")
    text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    found = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found[1] if found else str(import_module("triton").__version__)


@cache
def any_row() -> bool:
    """Whether Gluon views shared memory from any row on, as ``strip_kernel.py`` does.

    From 3.8 on a view is no larger than what it is a view of: that kernel does not compile, and 3.8
    ends the process.
    """
    return tuple(map(int, version().split(".")[:2])) < (3, 8)


def uncompilable(kernel: Kernel) -> str:
    """Why this version does not compile a kernel; empty where it does."""
    if kernel.name != "convolve_strip" or any_row():
        return ""
    return (
        f"Triton {version()} has no view of shared memory from any row on, and does not "
        f"compile {kernel.name}"
    )
