"""The name of a compiled kernel: a digest of everything that its code depends on.

Triton's version is no part of it. What a kernel computes is in its source, and a kernel that one
version compiled serves where another one runs, be it one that could not compile it.
"""

from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from transfuse.backends.triton.kernel import Kernel

FOLDERS = (Path(__file__).parents[1], Path(__file__).parents[3] / "maths")
"""Whose sources count."""


def key(kernel: Kernel, architecture: str, *given: Any) -> str:
    """The digest of a kernel for an architecture, with what it is given when it is compiled."""
    parts = (sources(), kernel.module, kernel.name, architecture, text(given))
    return sha256("\n".join(parts).encode()).hexdigest()


def text(value: Any) -> str:
    """A value as text that is the same in every process and for every version of Triton.

    Types are told apart, also where values are equal: 1, 1.0 and True compile to different code.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"{_kind(value)}({', '.join(map(text, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{text(k)}: {text(value[k])}' for k in sorted(value))}}}"
    if isinstance(value, torch.dtype):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        members = (f"{each.name}={text(getattr(value, each.name))}" for each in fields(value))
        return f"{type(value).__qualname__}({', '.join(members)})"
    raise TypeError(f"{value!r} of {type(value).__name__} in the name of a compiled kernel")


def _kind(value: Any) -> str:
    """A named tuple by its name; lists and tuples are the same to a kernel."""
    return type(value).__qualname__ if hasattr(value, "_fields") else ""


@cache
def sources() -> str:
    """The digest of all that kernels are made of: this backend, and what expressions mean.

    Kernels call functions of each other's modules, and what they are given has methods of its own:
    which of these each one reaches would take longer to find out than to compile some again.
    """
    digest = sha256()
    for folder in FOLDERS:
        for file in sorted(folder.rglob("*.py")):
            name = file.relative_to(folder).as_posix()
            digest.update(f"{name} {sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
