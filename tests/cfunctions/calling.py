"""The C function of an operator, written, compiled against the core and called as C users do."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from transfuse.backends.cpu import library
from transfuse.cfunctions.files import SOURCES, write
from transfuse.operators import Operator

COMPILER = shutil.which("g++") or shutil.which("clang++")
SUFFIXES = {"fp32": "f32", "fp64": "f64", "fp16": "f16", "bf16": "bf16"}
TYPES = {
    "size_t": ctypes.c_size_t,
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


class Functions:
    """The four functions of an operator, one for each element type."""

    def __init__(self, operator: Operator, place: Path) -> None:
        core = library.path()
        if core is None:
            pytest.skip("the compiled core is not installed")
        if COMPILER is None:
            pytest.skip("no C++ compiler: g++ or clang++")
        write([operator], place)
        flags = [
            "-std=gnu++17",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fPIC",
            "-shared",
            "-fopenmp",
        ]
        link = [str(core), f"-Wl,-rpath,{core.parent}"]
        # What was written comes first: there is a header of the same name among the sources.
        headers = ["-iquote", str(place), "-iquote", str(SOURCES)]
        made = place / "libsixth.so"
        subprocess.run(
            [COMPILER, *flags, *headers, str(place / "problems.cpp"), *link, "-o", str(made)],
            check=True,
        )
        self.operator, self.library = operator, ctypes.CDLL(str(made))
        self.library.transfuse_message.restype = ctypes.c_char_p

    def __call__(self, dtype: str, arguments: dict[str, Any]) -> str:
        """The message of a call; empty where it succeeds."""
        function = getattr(self.library, f"transfuse_{self.operator.__name__}_{SUFFIXES[dtype]}")
        parameters = self.operator.document.parameters
        function.argtypes = [ctypes.c_void_p if p.pointer else TYPES[p.type] for p in parameters]
        values = [v.data_ptr() if isinstance(v, Tensor) else v for v in arguments.values()]
        return self.library.transfuse_message().decode() if function(*values) else ""
