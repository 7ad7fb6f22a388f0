"""The type that torch operations give under autocast: asked of torch, by tensors without values."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes

from transfuse.ops.schema import LIBRARY

_known: "WeakKeyDictionary[fx.GraphModule, dict[Any, torch.dtype]]" = WeakKeyDictionary()
"""By the operations, and by all that the type of their result depends on."""
_by_code: "WeakValueDictionary[str, fx.GraphModule]" = WeakValueDictionary()


def the_one(operations: fx.GraphModule) -> fx.GraphModule:
    """The same operations, one object for all that are written alike: their code names them."""
    return _by_code.setdefault(operations.code, operations)


def result_type(operations: fx.GraphModule, values: Sequence[Any]) -> torch.dtype:
    """The type of what these operations give of these values, as autocast is set now."""
    device = values[0].device.type
    types = tuple(value.dtype if isinstance(value, Tensor) else None for value in values)
    key = device, torch.get_autocast_dtype(device), types
    kept = _known.setdefault(operations, {})
    if key not in kept:
        kept[key] = _tried(operations, values)
    return kept[key]


def _tried(operations: fx.GraphModule, values: Sequence[Any]) -> torch.dtype:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with _disable_current_modes(), FakeTensorMode(), torch.no_grad():
        given = [
            torch.empty(_sizes(each), dtype=each.dtype, device=each.device)
            if isinstance(each, Tensor)
            else each
            for each in values
        ]
        found: Tensor = operations(*given)
    return found.dtype


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    """Its sizes; of those that are symbols, what they stand for now."""
    sizes: tuple[Any, ...] = tuple(tensor.shape)
    return tuple(each if type(each) is int else each.node.hint for each in sizes)


def _typed(y: Tensor, code: str, values: Sequence[Tensor | None]) -> Tensor:
    """A result in the type of these operations, where numbers are None: any will do."""
    given = [1.0 if each is None else each for each in values]
    return y.to(result_type(_by_code[code], given))


# For torch.compile, which cannot trace what is asked here: one operation, made of torch's own.
LIBRARY.define(  # type: ignore[no-untyped-call]
    "typed(Tensor(a) y, str code, Tensor?[] values) -> Tensor(a)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
LIBRARY.impl("typed", _typed, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
