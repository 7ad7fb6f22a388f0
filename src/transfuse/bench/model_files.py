"""A user's model, ``FILE.py:Name``: a class, a function that makes one, or one that is there."""

from collections.abc import Callable
from copy import deepcopy
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from torch import nn


def from_file(text: str) -> Callable[[], nn.Module]:
    """What makes the model, each time anew."""
    path, _, name = text.rpartition(":")
    file = Path(path)
    if not path or not name.isidentifier():
        raise ValueError(f"{text!r} names no model in a file; write FILE.py:Name")
    if not file.is_file():
        raise FileNotFoundError(f"{text}: there is no file {path}")
    spec = spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{text}: {path} is no Python file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{text}: {path} cannot be imported: {_said(error)}") from error
    if not hasattr(module, name):
        known = [n for n, value in vars(module).items() if _makes(value) and not n.startswith("_")]
        raise ValueError(f"{text}: {path} has no {name}; it has {', '.join(known) or 'no model'}")
    found = getattr(module, name)
    if isinstance(found, nn.Module):
        return lambda: deepcopy(found)
    if not callable(found):
        raise TypeError(f"{text}: {name} is a {type(found).__name__}, no model")

    def make() -> nn.Module:
        try:
            made = found()
        except Exception as error:
            raise ValueError(f"{text}: {name}() raises {_said(error)}") from error
        if not isinstance(made, nn.Module):
            raise TypeError(f"{text}: {name}() gives a {type(made).__name__}, no model")
        return made

    return make


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _makes(value: object) -> bool:
    return isinstance(value, nn.Module) or (
        isinstance(value, type) and issubclass(value, nn.Module)
    )
