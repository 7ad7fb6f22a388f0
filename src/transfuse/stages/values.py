"""What a stage holds: plain values that never change, and are the same only bit for bit.

Plans, verdicts and checks are kept by the chain they were made for, so a chain must not change
under them, and two that compute something else must not be taken for one another.
"""

from collections.abc import Hashable
from dataclasses import Field
from struct import Struct
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
from torch import Tensor

from transfuse.geometry import integer
from transfuse.symbols import Symbol

Kinds = tuple[type, ...]
AS_THEY_ARE = frozenset({int, float, bool, str, NoneType})
_KNOWN = AS_THEY_ARE | {tuple, Tensor}


def admitted(declared: "Field[Any]") -> Kinds:
    """The types that a field takes: those of a ``parameter``, else those it is annotated with.

    ``object`` stands for all that is not known here, such as an enumeration.
    """
    given: Kinds = declared.metadata.get("parameter", ())
    if given:
        return (*given, NoneType) if declared.default is None else given
    union = get_origin(declared.type) in (Union, UnionType)
    found = get_args(declared.type) if union else (declared.type,)
    classes = (str if get_origin(each) is Literal else get_origin(each) or each for each in found)
    return tuple(each if each in _KNOWN else object for each in classes)


def plain(stage: str, name: str, value: object, kinds: Kinds) -> object:
    """A field's value as a Python number, string or tuple of integers; tensors as they are.

    Taken are the numbers that torch takes: Python's, NumPy's, and tensors without axes, which are
    read now: what becomes of them later is not seen. All else raises TypeError.
    """
    if type(value) in AS_THEY_ARE and type(value) in kinds:
        return value
    if Tensor in kinds and hasattr(value, "__torch_function__"):  # a tensor, or a tracer's
        return value
    if isinstance(value, str) and str in kinds:
        return str.__str__(value)
    if isinstance(value, list | tuple) and tuple in kinds:
        return tuple(integer(f"{stage} {name}", _number(each)) for each in value)
    if isinstance(value, Symbol) and (value.type in kinds or float in kinds):
        return value
    number = _number(value)
    if float in kinds:
        if isinstance(number, int):
            return int(number) if int in kinds else float(number)
        if isinstance(number, float):
            return float(number)
    elif int in kinds:
        return integer(f"{stage} {name}", number)
    elif bool in kinds and isinstance(number, bool):
        return number
    elif object in kinds and isinstance(value, Hashable):
        return value
    words = ("hashable" if kind is object else kind.__name__ for kind in kinds)
    known = ", ".join(word for word in words if word != "NoneType")
    known = f"one of {known}" if "," in known else known
    raise TypeError(f"{stage}: {name} must be {known}, not {type(value).__name__}")


def _number(value: object) -> object:
    """NumPy's numbers and tensors without axes as Python's; all else as it is."""
    if isinstance(value, Tensor) and value.dim() == 0 and not value.requires_grad:
        return value.item()
    if isinstance(value, np.floating):
        return float(value)
    return value.item() if isinstance(value, np.generic) else value


_bits = Struct("d").pack


def exact(value: object) -> Hashable:
    """What equals that of another value only where both are of one type and have the same bits.

    By themselves 0.0 equals -0.0, 1 equals 1.0, NaN does not equal itself, and a tensor's elements
    are compared; here it is the tensor itself that counts.
    """
    kind = type(value)
    if kind is float:
        return _bits(value)
    if kind is str or kind is int or value is None:
        return value
    if hasattr(value, "__torch_function__"):
        return Tensor, id(value)
    if isinstance(value, tuple):
        return kind, *map(exact, value)
    return kind, value


def outlined(value: object) -> Hashable:
    """``exact``, and the same for every tensor."""
    kind = type(value)
    if kind is str or kind is int or value is None:
        return value
    return Tensor if hasattr(value, "__torch_function__") else exact(value)
