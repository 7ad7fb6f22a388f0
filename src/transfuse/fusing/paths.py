"""Modules by their names in a model: ``decoder.up.weight``."""

from collections.abc import Iterator
from typing import Any


def under(path: str, name: str) -> str:
    """The name of what is in the module at ``path``."""
    return f"{path}.{name}" if path else name


def parent(path: Any) -> str:
    return str(path).rpartition(".")[0]


def last(path: Any) -> str:
    return str(path).rpartition(".")[2]


def above(path: str) -> Iterator[str]:
    """A path and all above it, up to the root."""
    while path:
        yield path
        path = parent(path)
    yield ""
