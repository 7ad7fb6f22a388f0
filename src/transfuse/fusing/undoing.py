"""An attempt at a forward leaves nothing behind: what it changes and draws is put back."""

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from inspect import getclosurevars, unwrap
from logging import Logger
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn

from transfuse.fusing.sources import named, written_here
from transfuse.fusing.watching import OURS, PLAIN

CONTAINERS = (list, deque, set, dict)
ENDS = (*PLAIN, Tensor, nn.Module, type, ModuleType, FunctionType, MethodType, Logger)
"""What is not looked into: it does not change, or is looked at by itself."""
FAR = 1000
"""Objects reached from one attribute: more are another program's, such as a trainer's."""
Change = tuple[nn.Module, str]
"""The module that a change was found by, and what was changed."""


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


class Room(NamedTuple):
    """Names that something holds, with their values before; ``owners``: the modules it is of."""

    holder: object
    before: dict[str, Any]
    owners: list[nn.Module]
    called: str = "self."

    @property
    def names(self) -> MutableMapping[str, Any]:
        return self.holder if isinstance(self.holder, dict) else vars(self.holder)

    def changed(self) -> list[str]:
        now = self.names
        new = now.keys() - self.before.keys() if isinstance(self.holder, type) else ()
        moved = (k for k, v in self.before.items() if now.get(k, self) is not v)
        return [*moved, *(name for name in new if not name.startswith("__"))]

    def put_back(self) -> None:
        for name in self.changed():
            if not isinstance(self.holder, type):
                self.names[name] = self.before[name]
            elif name in self.before:
                setattr(self.holder, name, self.before[name])
            else:
                delattr(self.holder, name)
        if isinstance(self.holder, nn.Module):
            for name in self.names.keys() - self.before.keys():
                del self.names[name]


class Contents(NamedTuple):
    """A container, what was in it before, and by which attributes it is reached."""

    container: Any
    before: list[Any]
    owners: list[Change]

    def changed(self) -> bool:
        return [*map(id, _items(self.container))] != [*map(id, self.before)]

    def put_back(self) -> None:
        if not self.changed():
            return
        self.container.clear()
        if isinstance(self.container, dict):
            self.container.update(zip(self.before[::2], self.before[1::2], strict=True))
        elif isinstance(self.container, set):
            self.container.update(self.before)
        else:
            self.container.extend(self.before)


@contextmanager
def restored(root: nn.Module) -> Iterator[Callable[[], list[Change]]]:
    """Whatever attempts do to what modules hold is undone; asked, what they have done.

    Looked at are attributes of modules and of their classes, global variables that these name,
    and what is reached from all of them, and from enclosing functions, through containers and
    objects.
    """
    rooms = _rooms(root)
    filled: dict[int, Contents] = {}
    for room in rooms:
        for name, value in room.before.items():
            for container in () if name in OURS else _within(value):
                each = Contents(container, _items(container), [])
                owners = filled.setdefault(id(container), each).owners
                owners += ((module, room.called + name) for module in room.owners)

    def changed() -> list[Change]:
        return [
            *((m, room.called + k) for room in rooms for k in room.changed() for m in room.owners),
            *(owner for each in filled.values() if each.changed() for owner in each.owners),
        ]

    try:
        yield changed
    finally:
        for room in rooms:
            room.put_back()
        for each in filled.values():
            each.put_back()


def _rooms(root: nn.Module) -> list[Room]:
    found = []
    classes: dict[type, list[nn.Module]] = {}
    for module in root.modules():
        found.append(Room(module, dict(vars(module)), [module]))
        for kind in written_here(type(module)):
            classes.setdefault(kind, []).append(module)
    for kind, modules in classes.items():
        own = {k: v for k, v in vars(kind).items() if not k.startswith("__")}
        found.append(Room(kind, own, modules))
        for each in vars(kind).values():
            if isinstance(each, FunctionType):
                found += _around(each, modules)
    return found


def _around(function: FunctionType, modules: list[nn.Module]) -> list[Room]:
    """Variables outside a function that it names."""
    function = unwrap(function)
    around = function.__globals__
    there = {name: around[name] for name in named(function.__code__) if name in around}
    enclosed = dict(getclosurevars(function).nonlocals)
    return [
        Room(around, there, modules, "the global "),
        Room(enclosed, {**enclosed}, modules, "the enclosing "),
    ]


def _within(value: object) -> Iterator[Any]:
    """The containers that a value is or leads to; an object is one by its attributes."""
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < FAR:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, ENDS):
            continue
        seen.add(id(each))
        if not isinstance(each, (*CONTAINERS, tuple, frozenset)):
            each = getattr(each, "__dict__", None)
        if isinstance(each, CONTAINERS):
            yield each
        if isinstance(each, Iterable):
            waiting += each.values() if isinstance(each, dict) else each


def _items(container: Any) -> list[Any]:
    """What is in a container, one after another; a set keeps its order while it stays the same."""
    if isinstance(container, dict):
        return [part for item in [*container.items()] for part in item]
    return [*container]
