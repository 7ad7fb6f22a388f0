"""What the versions of Triton do not agree on: all else is written in what they have in common.

For what is compiled or interpreted: this imports Triton, and all of it.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from threading import Lock
from types import SimpleNamespace
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import shared_memory_descriptor
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.runtime.jit import create_function_from_signature


def _named(holder: Any, *names: str) -> Any:
    """The first of these names that there is."""
    return next(getattr(holder, name) for name in names if hasattr(holder, name))


# Gluon, as kernels call it: the names of 3.9, then those before.
reinterpret = _named(shared_memory_descriptor, "reinterpret", "_reinterpret")
async_load = _named(tma, "async_load", "async_copy_global_to_shared")


_binders: dict[tuple[int, int], Any] = {}
"""By the id of a kernel, which is never gone, and capability: the hash of a kernel takes Triton
longer than all else, since it goes through the sources of all that the kernel calls."""


def _binder(kernel: Any, capability: int) -> Any:
    found = _binders.get((id(kernel), capability))
    if found is None:
        backend = make_backend(target(capability))
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        found = _binders[id(kernel), capability] = backend, bind
    return found


_front_end = Lock()
"""Triton's front end is Python: of several that run side by side none ends before all of them do.
One after another, what the first has made goes through the compiler's passes, which leave Python's
lock alone, while the next ones are at it."""


def target(capability: int) -> GPUTarget:
    return GPUTarget("cuda", capability, 32)


def compiled(
    kernel: Any, arguments: Sequence[Any], options: Mapping[str, Any], capability: int
) -> Any:
    """What Triton's own way to call a kernel compiles, for a GPU that need not be there.

    That way asks Triton's driver which GPU is there, and to make that driver takes a C compiler.
    """
    backend, bind = _binder(kernel, capability)
    given = {"debug": bool(kernel.debug or knobs.runtime.debug)} | dict(options)
    bound, found, rest = bind(*arguments, **given)
    parsed, signature, constants, attributes = kernel._pack_args(backend, given, bound, found, rest)
    kind = GluonASTSource if kernel.is_gluon() else ASTSource
    source = kind(kernel, signature, constants, attributes)
    make_ir = source.make_ir

    def in_turn(*given: Any) -> Any:
        with _front_end:
            return make_ir(*given)

    source.make_ir = in_turn
    return triton.compile(source, target=target(capability), options=parsed.__dict__)


def map_type(meta: Any) -> int:
    """The type of a tensor map's elements as the driver counts them; compilers count otherwise."""
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    return int(TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]])


def words(rank: int) -> list[Any]:
    """What is passed in place of a descriptor where the GPU knows no tensor maps.

    ``address``, ``size0``, ``stride0`` and so on, or a number that is always the same.
    """
    from triton.backends.nvidia.driver import make_tensordesc_arg

    descriptor = SimpleNamespace(
        base="address",
        shape=[f"size{axis}" for axis in range(rank)],
        strides=[f"stride{axis}" for axis in range(rank)],
        padding="zero",
        round_f32_to_tf32=False,
    )
    # From 3.8 on it is also told what the kernel is launched with, and does not look at it.
    launched = ((),) * (make_tensordesc_arg.__code__.co_argcount - 2)
    found = make_tensordesc_arg(descriptor, None, *launched)
    return [each if isinstance(each, str) else int(each) for each in found]


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
