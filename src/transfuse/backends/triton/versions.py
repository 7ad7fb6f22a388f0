"""What the versions of Triton do not agree on: all else is written in what they have in common."""

from functools import cache
from typing import Any

import triton
from triton import knobs
from triton.experimental.gluon.language import shared_memory_descriptor
from triton.experimental.gluon.language.nvidia.hopper import tma

FUSING = {"enable_fp_fusion": knobs.language.default_fp_fusion}
"""Whether products are added in one rounding: 3.9 warns where it is not told, and has to guess."""

ANY_ROW = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8)
"""Whether Gluon views shared memory from any row on, as ``strip_kernel.py`` does. From 3.8 on a
view is no larger than what it is a view of: that kernel does not compile, and 3.8 ends the process.
"""


def _named(holder: Any, *names: str) -> Any:
    """The first of these names that there is."""
    return next(getattr(holder, name) for name in names if hasattr(holder, name))


# Gluon, as kernels call it: the names of 3.9, then those before.
reinterpret = _named(shared_memory_descriptor, "reinterpret", "_reinterpret")
async_load = _named(tma, "async_load", "async_copy_global_to_shared")


def parameters(descriptor: Any, meta: Any) -> list[Any]:
    """A descriptor as the parameters that Triton's launcher makes of it."""
    from triton.backends.nvidia.driver import make_tensordesc_arg

    # From 3.8 on it is also told what the kernel is launched with, and does not look at it.
    launched = ((),) * (make_tensordesc_arg.__code__.co_argcount - 2)
    return list(make_tensordesc_arg(descriptor, meta, *launched))


@cache
def mend_interpreter() -> None:
    """Have a truth value be one, also where it is spread over a block.

    Triton's interpreter makes it as wide as what was compared, and 3.9 then takes it for no mask.
    """
    from triton.runtime.interpreter import interpreter_builder as builder

    spread = builder.create_splat

    def create_splat(kind: Any, value: Any) -> Any:
        made = spread(kind, value)
        if kind.scalar.is_int1():
            made.data = made.data.astype(bool)
        return made

    builder.create_splat = create_splat
