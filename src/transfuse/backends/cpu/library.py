"""The compiled core, loaded with ctypes: its structures and its functions.

The two are compiled apart, so on loading the core says what it takes these structures to be; one
that says otherwise is refused, since it would read and write memory at the wrong places.
"""

import ctypes
from collections.abc import Iterator
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from torch import Tensor

from transfuse import settings
from transfuse.elements import BY_DTYPE
from transfuse.maths.expr import ARITY

NAME = "libtransfuse_cpu.so"
ABI = 2
"""``TRANSFUSE_ABI``: goes up where the structures stay and their meaning does not."""
OPS = (
    *("add", "scale", "clamp", "norm", "sigmoid", "tanh", "map", "softmax", "sum"),
    *("max_pool", "sum_pool", "sign_pool"),
    *("batch_stats", "group_stats", "exp_stats", "max_stats", "cut"),
    *("batch_apply", "group_apply", "exp_apply", "max_apply", "group_norm", "space_softmax"),
)
"""The steps in the order of ``enum transfuse_op``."""
CUTS = ("store", "again", "decide", "hold")
"""What becomes of values at a cut, in the order of ``enum transfuse_cut``."""
ELEMENTS = ("fp32", "fp64", "fp16", "bf16")
"""The element types in the order of ``enum transfuse_element``."""

KINDS = ("each", "fold", "slide")
"""The kinds of sweeps in the order of ``enum transfuse_kind``."""
FOLDINGS = (
    *("sum", "mean", "max", "min"),
    *("logsumexp", "exponentials", "moments", "squares", "sign"),
)
"""What sweeps fold to, in the order of ``enum transfuse_folding``."""

Sizes = ctypes.c_int64 * 3
Strides = ctypes.c_int64 * 5
Axes = ctypes.c_int64 * 9
Digest = ctypes.c_uint64 * 2
Times = ctypes.c_double * 2
JOINED = 64
"""Neighbours that a fold across makes one result of, at most: TF_JOINED."""

CHANGED = 2
"""What ``transfuse_run_unless_changed`` gives where it ran nothing."""


class Instruction(ctypes.Structure):
    """``transfuse_instruction``"""

    _fields_ = (
        ("primitive", ctypes.c_uint16),
        ("to", ctypes.c_uint16),
        ("from", ctypes.c_uint16 * 3),
    )


class Code(ctypes.Structure):
    """``transfuse_code``"""

    _fields_ = (
        ("numbers_count", ctypes.c_int32),
        ("operands_count", ctypes.c_int32),
        ("registers_count", ctypes.c_int32),
        ("length", ctypes.c_int32),
        ("numbers", ctypes.POINTER(ctypes.c_double)),
        ("instructions", ctypes.POINTER(Instruction)),
    )


class Operand(ctypes.Structure):
    """``transfuse_operand``"""

    _fields_ = (
        ("element", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("strides", Strides),
    )


class Map(ctypes.Structure):
    """``transfuse_map``"""

    _fields_ = (
        ("code", Code),
        ("operands", ctypes.POINTER(Operand)),
    )


class Step(ctypes.Structure):
    """``transfuse_step``"""

    _fields_ = (
        ("op", ctypes.c_int32),
        ("i0", ctypes.c_int64),
        ("kernel", Sizes),
        ("stride", Sizes),
        ("padding", Sizes),
        ("f0", ctypes.c_double),
        ("f1", ctypes.c_double),
        ("t0", ctypes.c_void_p),
        ("t1", ctypes.c_void_p),
        ("t2", ctypes.c_void_p),
        ("t3", ctypes.c_void_p),
        ("moments", ctypes.c_void_p),
        ("map", ctypes.POINTER(Map)),
    )


class Program(ctypes.Structure):
    """``transfuse_program``"""

    _fields_ = (
        ("element", ctypes.c_int32),
        ("input_element", ctypes.c_int32),
        ("output_element", ctypes.c_int32),
        ("operands", ctypes.c_int32),
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
        ("before_count", ctypes.c_int32),
        ("before", ctypes.POINTER(Step)),
        ("steps_count", ctypes.c_int32),
        ("steps", ctypes.POINTER(Step)),
        ("input", ctypes.c_void_p),
        ("input_strides", Strides),
        ("weights", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("output_strides", Strides),
        ("weight_scale", ctypes.c_double),
    )


class View(ctypes.Structure):
    """``transfuse_view``"""

    _fields_ = (
        ("element", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("strides", Axes),
    )


class Sweep(ctypes.Structure):
    """``transfuse_sweep``"""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("folding", ctypes.c_int32),
        ("kept", ctypes.c_int32),
        ("folded", ctypes.c_int32),
        ("across", ctypes.c_int32),
        ("joined", ctypes.c_int32),
        ("sizes", Axes),
        ("values_count", ctypes.c_int32),
        ("others_count", ctypes.c_int32),
        ("values", ctypes.POINTER(View)),
        ("others", ctypes.POINTER(View)),
        ("outs", View * 2),
        ("before", ctypes.POINTER(Code)),
        ("after", ctypes.POINTER(Code)),
        ("inputs", Sizes),
        ("kernel", Sizes),
        ("stride", Sizes),
        ("padding", Sizes),
        ("dilation", Sizes),
        ("adaptive", ctypes.c_int32),
        ("counts_padding", ctypes.c_int32),
        ("divisor", ctypes.c_double),
    )


class Winners(ctypes.Structure):
    """``transfuse_winners``"""

    _fields_ = (
        ("element", ctypes.c_int32),
        ("batch", ctypes.c_int64),
        ("in_channels", ctypes.c_int64),
        ("out_channels", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("spatial", Sizes),
        ("kernel", Sizes),
        ("stride", Sizes),
        ("padding", Sizes),
        ("dilation", Sizes),
        ("outputs", Sizes),
        ("windows", Sizes),
        ("window", Sizes),
        ("window_stride", Sizes),
        ("window_padding", Sizes),
        ("window_dilation", Sizes),
        ("gradient", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("input", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("by_input", ctypes.c_void_p),
        ("by_weights", ctypes.c_void_p),
    )


def element(tensor: Tensor) -> int:
    """The number of a tensor's type."""
    return ELEMENTS.index(BY_DTYPE[tensor.dtype].name)


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
    """The core with the instruction set asked for, or None where it was not built.

    A file that is another core raises RuntimeError.
    """
    found = path()
    if found is None:
        return None
    try:
        core = ctypes.CDLL(str(found))
    except OSError as error:
        raise _unusable(found, f"it cannot be loaded: {error}") from None
    try:
        core.transfuse_abi.restype = ctypes.c_char_p
    except AttributeError:
        raise _unusable(found, "it is another library, or an older one") from None
    theirs, ours = core.transfuse_abi().decode().splitlines(), abi()
    if theirs != ours:
        raise _unusable(found, "\n".join(_differences(theirs, ours)))
    try:
        return _chosen(_declared(core))
    except AttributeError as error:
        raise _unusable(found, f"it lacks a function: {error}") from None


def abi() -> list[str]:
    """The lines of ``transfuse_abi`` as the structures here would have them."""

    def layout(name: str, of: type[ctypes.Structure]) -> str:
        offsets = " ".join(f"{each[0]}@{getattr(of, each[0]).offset}" for each in of._fields_)
        return f"{name} {ctypes.sizeof(of)}: {offsets}"

    return [
        f"abi {ABI}",
        f"elements {' '.join(ELEMENTS)}",
        f"operations {' '.join(OPS).upper()}",
        f"cuts {' '.join(CUTS)}",
        f"primitives {' '.join(ARITY).upper()}",
        f"kinds {' '.join(KINDS).upper()}",
        f"foldings {' '.join(FOLDINGS).upper()}",
        layout("instruction", Instruction),
        layout("code", Code),
        layout("operand", Operand),
        layout("map", Map),
        layout("step", Step),
        layout("program", Program),
        layout("view", View),
        layout("sweep", Sweep),
        layout("winners", Winners),
    ]


def _differences(theirs: list[str], ours: list[str]) -> Iterator[str]:
    yield "it is a build of other sources:"
    known, wanted = ({line.partition(" ")[0]: line for line in lines} for lines in (theirs, ours))
    for key in [*wanted, *(known.keys() - wanted.keys())]:
        if known.get(key) != wanted.get(key):
            yield f"  here   {wanted.get(key, f'no {key}')}"
            yield f"  there  {known.get(key, f'no {key}')}"


def _unusable(file: Path, why: str) -> RuntimeError:
    cure = "install transfuse again (pip install, or make in a checkout)"
    if settings.read().core is not None:
        cure = "let TRANSFUSE_CORE name a core built from these sources, or unset it"
    return RuntimeError(f"{file} is no core of this transfuse; {cure}\n{why}")


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
    core.transfuse_packed_bytes.errcheck = _given
    core.transfuse_copies.argtypes = (program, Times)
    pointer, count = ctypes.c_void_p, ctypes.c_int32
    core.transfuse_pack.argtypes = (program, pointer, Strides, count, pointer)
    core.transfuse_digest.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, Digest)
    core.transfuse_finite.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
    core.transfuse_finite.errcheck = _given
    core.transfuse_decide.argtypes = (program, ctypes.POINTER(ctypes.c_int32))
    core.transfuse_run.argtypes = (program, ctypes.c_int32)
    core.transfuse_run_timed.argtypes = (program, ctypes.c_int32, ctypes.POINTER(ctypes.c_double))
    core.transfuse_run_unless_changed.argtypes = (
        *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p),
    )
    core.transfuse_sweep_run.argtypes = (ctypes.POINTER(Sweep), ctypes.c_int32)
    core.transfuse_winners_run.argtypes = (ctypes.POINTER(Winners), ctypes.c_int32)
    return core


def _given(number: Any, function: Any, arguments: Any) -> Any:
    """A function's result; -1 stands for a failure."""
    if number < 0:
        core = load()
        assert core is not None
        check(core, 1)
    return number


def finite(core: ctypes.CDLL, values: Tensor) -> bool:
    """Whether all of them are."""
    dense, element = values.contiguous(), ELEMENTS.index(BY_DTYPE[values.dtype].name)
    return bool(core.transfuse_finite(dense.data_ptr(), dense.numel(), element))


def check(core: ctypes.CDLL, status: int) -> None:
    """Raise what the core says went wrong."""
    if status:
        raise RuntimeError(core.transfuse_message().decode())
