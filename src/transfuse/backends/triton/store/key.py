"""The name of a compiled kernel: a digest of everything that its code depends on.

Triton's version is no part of it. What a kernel computes is in its source, and a kernel that one
version compiled serves where another one runs, be it one that could not compile it.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import triton.language as tl

PACKAGE = __name__.partition(".")[0]


def key(kernel: Any, architecture: str, *given: Any) -> str:
    """The digest of a kernel for an architecture, with what it is given when it is compiled."""
    parts = (sources(kernel.fn.__module__), kernel.fn.__qualname__, architecture, text(given))
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
    if isinstance(value, tl.constexpr):
        return text(value.value)
    if isinstance(value, tl.dtype | torch.dtype):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        members = (f"{each.name}={text(getattr(value, each.name))}" for each in fields(value))
        return f"{type(value).__qualname__}({', '.join(members)})"
    raise TypeError(f"{value!r} of {type(value).__name__} in the name of a compiled kernel")


def _kind(value: Any) -> str:
    """A named tuple by its name; lists and tuples are the same to a kernel."""
    return type(value).__qualname__ if hasattr(value, "_fields") else ""


@cache
def sources(module: str) -> str:
    """The digest of a module's source and of all that it imports of this package."""
    found: dict[str, bytes] = {}
    left = [module]
    while left:
        name = left.pop()
        file = getattr(sys.modules.get(name), "__file__", None)
        if name not in found and file is not None:
            found[name] = Path(file).read_bytes()
            left += _imported(found[name])
    digest = sha256()
    for name in sorted(found):
        digest.update(f"{name} {sha256(found[name]).hexdigest()}\n".encode())
    return digest.hexdigest()


def _imported(source: bytes) -> Iterator[str]:
    """The modules of this package that a source names in its imports; some may be no modules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE:
            yield str(node.module)
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] == PACKAGE)
