"""The CUDA driver by ctypes: machine code is loaded, asked about and launched by its own calls.

Nothing here needs a GPU until it is called; ``lacking`` says what a driver cannot do.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

INVALID_CONTEXT = 201
"""What the driver answers in a thread that no device has been made current in."""
MAP = 128
"""Bytes of a ``CUtensorMap``, and what it is aligned to."""

_NO_MORE_PARAMETERS = 1  # CUDA_ERROR_INVALID_VALUE, for an index past the last
_STATIC, _THREADS, _DYNAMIC = 1, 0, 8  # CU_FUNC_ATTRIBUTE_...: shared memory, threads of a block
_OPT_IN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_PREFER_SHARED = 1
_USUAL_SHARED = 49152
"""Bytes of shared memory that a block has without being asked for."""
_L2_128 = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B

_NEEDED = {
    "cuLaunchKernelEx": "11.8",
    "cuTensorMapEncodeTiled": "12.0",
    "cuFuncGetParamInfo": "12.4",
}
"""Calls that not every driver has, and the CUDA that each came with."""


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``: the grid, the block, shared memory, the stream; no attributes."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


class DriverError(RuntimeError):
    """An answer of the driver other than yes."""


@cache
def library() -> Any:
    """The driver; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


@cache
def lacking() -> str:
    """What the driver lacks, so that it cannot launch by its own calls; empty where nothing."""
    if library() is None:
        return "there is no CUDA driver, libcuda.so.1"
    for name, since in _NEEDED.items():
        if not hasattr(library(), name):
            return f"the CUDA driver has no {name}, which came with CUDA {since}"
    return ""


@cache
def launcher() -> Any:
    """``cuLaunchKernelEx(config, function, parameters, extra)``.

    It copies the parameters before it returns. Python's lock is free meanwhile: a launch may have
    to wait until the GPU has done others.
    """
    function = library().cuLaunchKernelEx
    function.argtypes, function.restype = [ctypes.c_void_p] * 4, ctypes.c_int
    return function


def make_current(device: int) -> None:
    """Make a device current in a thread that has none: the context that torch uses, too."""
    found, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuCtxGetCurrent", ctypes.byref(context))
    if context:
        return
    _call("cuDeviceGet", ctypes.byref(found), device)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), found)
    _call("cuCtxSetCurrent", context)


def load(code: bytes, name: str, shared: int, threads: int) -> int:
    """The function of that name in machine code, for the device that is current in this thread.

    It may take ``shared`` bytes of shared memory in blocks of so many ``threads``; raises
    ``DriverError`` where the device does not allow it, or does not understand the code.
    """
    module, function, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    _call("cuModuleLoadData", ctypes.byref(module), code, doing=f"loading {name}")
    _call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    _call("cuCtxGetDevice", ctypes.byref(device))
    most = _asked("cuDeviceGetAttribute", _OPT_IN, device)
    if shared > most:
        raise DriverError(f"{name} takes {shared} bytes of shared memory; limit {most}")
    allowed = _asked("cuFuncGetAttribute", _THREADS, function)
    if threads > allowed:
        raise DriverError(f"{name} runs in blocks of {threads} threads; limit {allowed}")
    if shared > _USUAL_SHARED:
        _call("cuFuncSetCacheConfig", function, _PREFER_SHARED)
        rest = most - _asked("cuFuncGetAttribute", _STATIC, function)
        _call("cuFuncSetAttribute", function, _DYNAMIC, rest)
    return function.value or 0


def parameters(function: int) -> list[int]:
    """The bytes of each parameter of a function."""
    found: list[int] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    ask = library().cuFuncGetParamInfo
    while True:
        places = ctypes.byref(offset), ctypes.byref(size)
        code = ask(ctypes.c_void_p(function), ctypes.c_size_t(len(found)), *places)
        if code == _NO_MORE_PARAMETERS:
            return found
        if code:
            raise error(code, "asking for parameters")
        found.append(size.value)


def encoded(
    address: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    kind: int,
    item: int,
    swizzle: int,
) -> bytes:
    """A tensor map: a tensor at an address, read in boxes of ``kind`` by the copy engine.

    Sizes, strides and the box are those of the axes from the outermost to the innermost, in
    elements of ``item`` bytes, and the innermost stride is 1.
    """
    rank = len(sizes)
    # The driver wants a map at a multiple of its own size, and axes from the innermost on.
    memory = ctypes.create_string_buffer(2 * MAP)
    at = -(-ctypes.addressof(memory) // MAP) * MAP
    _call(
        "cuTensorMapEncodeTiled",
        ctypes.c_void_p(at),
        kind,
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*reversed(sizes)),
        (ctypes.c_uint64 * rank)(*(item * stride for stride in reversed(strides[:-1]))),
        (ctypes.c_uint32 * rank)(*reversed(box)),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,  # values of different channels are not interleaved
        swizzle,
        _L2_128,
        0,  # zeros outside the tensor
        doing=f"encoding a tensor map of {tuple(sizes)} in boxes of {tuple(box)}",
    )
    return ctypes.string_at(at, MAP)


def error(code: int, doing: str) -> DriverError:
    """An answer of the driver as an exception that has its name."""
    name = ctypes.c_char_p()
    library().cuGetErrorName(code, ctypes.byref(name))
    return DriverError(f"{(name.value or b'CUDA error').decode()} ({code}), {doing}")


def _call(name: str, *arguments: Any, doing: str = "") -> None:
    code = getattr(library(), name)(*arguments)
    if code:
        raise error(code, doing or f"calling {name}")


def _asked(name: str, attribute: int, of: Any) -> int:
    value = ctypes.c_int()
    _call(name, ctypes.byref(value), attribute, of)
    return value.value
