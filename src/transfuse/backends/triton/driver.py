"""The CUDA driver by ctypes: launches without Triton's look at each argument."""

import ctypes
from functools import cache
from typing import Any

INVALID_CONTEXT = 201
"""What the driver answers in a thread that no device has been made current in."""


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


@cache
def launcher() -> Any:
    """``cuLaunchKernelEx(config, function, parameters, extra)``; None where there is no driver.

    It copies the parameters before it returns. Python's lock is free meanwhile: a launch may have
    to wait until the GPU has done others.
    """
    try:
        function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = [ctypes.c_void_p] * 4, ctypes.c_int
    return function


def error(code: int, doing: str) -> RuntimeError:
    """An answer of the driver as an exception that has its name."""
    name = ctypes.c_char_p()
    ctypes.CDLL("libcuda.so.1").cuGetErrorName(code, ctypes.byref(name))
    return RuntimeError(f"{(name.value or b'CUDA error').decode()} ({code}), {doing}")
