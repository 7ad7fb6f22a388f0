"""The compiled core, loaded with ctypes: its structures and its functions."""

import ctypes
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

from transfuse import settings

NAME = "libtransfuse_cpu.so"
OPS = (
    *("add", "scale", "clamp", "sigmoid", "tanh", "softmax", "sum"),
    *("max_pool", "sum_pool", "sign_pool"),
    *("batch_stats", "group_stats", "exp_stats", "max_stats", "cut"),
    *("batch_apply", "group_apply", "exp_apply", "max_apply", "group_norm", "space_softmax"),
)
"""The steps in the order of ``enum transfuse_op``."""
ELEMENTS = ("fp32", "fp64", "fp16", "bf16")
"""The element types in the order of ``enum transfuse_element``."""

Three = ctypes.c_int32 * 3
Sizes = ctypes.c_int64 * 3
Strides = ctypes.c_int64 * 5
Digest = ctypes.c_uint64 * 2


class Step(ctypes.Structure):
    """``transfuse_step``"""

    _fields_ = (
        ("op", ctypes.c_int32),
        ("i0", ctypes.c_int32),
        ("kernel", Three),
        ("stride", Three),
        ("padding", Three),
        ("f0", ctypes.c_double),
        ("f1", ctypes.c_double),
        ("t0", ctypes.c_void_p),
        ("t1", ctypes.c_void_p),
    )


class Program(ctypes.Structure):
    """``transfuse_program``"""

    _fields_ = (
        ("element", ctypes.c_int32),
        ("careful", ctypes.c_int32),
        ("batch", ctypes.c_int64),
        ("in_channels", ctypes.c_int64),
        ("out_channels", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("spatial", Sizes),
        ("kernel", Sizes),
        ("stride", Sizes),
        ("padding", Sizes),
        ("dilation", Sizes),
        ("output_padding", Sizes),
        ("pooled", ctypes.c_int32),
        ("pool", Step),
        ("steps_count", ctypes.c_int32),
        ("steps", ctypes.POINTER(Step)),
        ("input", ctypes.c_void_p),
        ("input_strides", Strides),
        ("weights", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("output_strides", Strides),
        ("weight_scale", ctypes.c_double),
    )


def path() -> Path | None:
    """The core's file, its C header in ``include`` beside it; None where it was not built."""
    other = settings.read().core
    if other is not None:
        return Path(other)
    # Installed editable, the library lies with the installation and this file with the sources.
    for place in (Path(__file__).with_name(NAME), files("transfuse.backends.cpu") / NAME):
        with as_file(place) as found:
            if found.exists():
                return found
    return None


@cache
def load() -> ctypes.CDLL | None:
    """The core with the instruction set asked for, or None where it was not built."""
    found = path()
    return None if found is None else _chosen(_declared(ctypes.CDLL(str(found))))


def _chosen(core: ctypes.CDLL) -> ctypes.CDLL:
    """The core, made to use the instruction set that the settings name; the best where none."""
    wanted = settings.read().isa
    if wanted is not None and core.transfuse_use_isa(wanted.encode()):
        raise ValueError(f"TRANSFUSE_ISA={wanted}: {core.transfuse_message().decode()}")
    return core


def isas(core: ctypes.CDLL) -> list[str]:
    """The instruction sets that this build of the core holds and this CPU has, best first."""
    return str(core.transfuse_isas().decode()).split()


def _declared(core: ctypes.CDLL) -> ctypes.CDLL:
    program = ctypes.POINTER(Program)
    core.transfuse_message.restype = ctypes.c_char_p
    core.transfuse_isa.restype = ctypes.c_char_p
    core.transfuse_isas.restype = ctypes.c_char_p
    core.transfuse_use_isa.argtypes = (ctypes.c_char_p,)
    core.transfuse_packed_bytes.argtypes = (program,)
    core.transfuse_packed_bytes.restype = ctypes.c_int64
    core.transfuse_pack.argtypes = (program, ctypes.c_void_p, Strides, ctypes.c_void_p)
    core.transfuse_digest.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, Digest)
    core.transfuse_finite.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
    core.transfuse_run.argtypes = (program, ctypes.c_int32)
    return core


def check(core: ctypes.CDLL, status: int) -> None:
    """Raise what the core says went wrong."""
    if status:
        raise RuntimeError(core.transfuse_message().decode())
