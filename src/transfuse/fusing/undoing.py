"""An attempt at a forward leaves nothing behind: attributes and random numbers are put back."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def drawn() -> Any:
    """Where the random numbers of Python and NumPy stand."""
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state(legacy=True) if numpy else (None, ())
    return random.getstate(), of_numpy[0], tuple(of_numpy[1]), of_numpy[2:]


def draw_again(state: Any) -> None:
    random.setstate(state[0])
    numpy = sys.modules.get("numpy")
    if numpy:
        numpy.random.set_state((state[1], list(state[2]), *state[3]))


@contextmanager
def restored(root: nn.Module) -> Iterator[Callable[[], list[tuple[nn.Module, str]]]]:
    """Whatever attempts do to the attributes of modules is undone; asked, what they have done."""
    before = {}
    for module in root.modules():
        held = vars(module)
        filled = {k: v.copy() for k, v in held.items() if isinstance(v, list | dict | set)}
        before[module] = (dict(held), filled)

    def changed() -> list[tuple[nn.Module, str]]:
        return [
            (module, name)
            for module, (attributes, filled) in before.items()
            for name, value in attributes.items()
            if vars(module).get(name) is not value
            or (name in filled and not _same(value, filled[name]))
        ]

    try:
        yield changed
    finally:
        for module, name in changed():
            attributes, filled = before[module]
            value = vars(module)[name] = attributes[name]
            if name in filled:
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(filled[name])
        for module, (attributes, _) in before.items():
            for name in vars(module).keys() - attributes.keys():
                del vars(module)[name]


def _same(value: Any, kept: Any) -> bool:
    if len(value) != len(kept):
        return False
    if isinstance(value, dict):
        return all(k in kept and kept[k] is v for k, v in value.items())
    if isinstance(value, list):
        return all(a is b for a, b in zip(value, kept, strict=True))
    return bool(value == kept)
