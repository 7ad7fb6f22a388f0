"""What Python read of modules while they were captured, and whether all of it still is so."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import repeat
from operator import getitem, is_, is_not
from typing import Any
from weakref import ref

from torch import Tensor
from torch.nn import Module
from torch.nn.modules import module as torch_module

from transfuse.plain import unrecorded
from transfuse.remembered import Guard, guarding

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a module has what runs around its ``forward``."""
OURS = frozenset({"forward", "explain"})
"""What fusing a model sets on its modules."""
KEPT = frozenset(vars(Module())) - {"training"}
"""What ``torch.nn.Module`` keeps for itself: tensors, children and hooks are looked at apart."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))
HELD = (*PLAIN, tuple, list, set, frozenset, dict)


def hooked(module: Module) -> bool:
    """Whether anything runs around the module's ``forward``."""
    return any(vars(module)[name] for name in HOOKS)


def hooked_globally() -> bool:
    """Whether there are hooks of all modules: no forward is traced through then."""
    return bool(
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )


def plain(value: object) -> bool:
    """Whether a value is told by what is in it alone: numbers, texts, and containers of such."""
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(plain, value))
    if isinstance(value, dict):
        return all(map(plain, value)) and all(map(plain, value.values()))
    return isinstance(value, PLAIN)


def same(a: Any, b: Any) -> bool:
    """Whether two values are one, or plain ones that no forward can tell apart: -0.0 is not 0.0,
    and neither are 1, 1.0 and True the same.
    """
    if a is b:
        return True
    if type(a) is not type(b) or not isinstance(a, HELD):
        return False
    if isinstance(a, float | complex):
        return repr(a) == repr(b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same([*a.items()], [*b.items()])
    return plain(a) and bool(a == b)


def _contents(value: Any) -> tuple[Any, ...]:
    return (*value, *value.values()) if isinstance(value, dict) else tuple(value)


def _attributes(module: Module) -> dict[str, Any]:
    return {k: v for k, v in vars(module).items() if k not in KEPT and k not in OURS}


class State:
    """The state of modules: attributes, children, hooks, which tensors there are.

    Not the tensors themselves: a version reads those anew at each call; of ``shaped``, by module
    and name, the sizes were asked. Of the module whose forward is replaced hooks do not count,
    since they run around that.
    """

    def __init__(
        self,
        modules: Iterable[Module],
        outermost: Module,
        shaped: Iterable[tuple[Module, str]] = (),
    ) -> None:
        self.modules = tuple(modules)
        self._kinds = tuple(map(type, self.modules))
        self._known = [_attributes(each).keys() for each in self.modules]
        # Where each value that was read is found: a dictionary, a name in it, the value. In flat
        # lists, so that one call of ``map`` looks at them all.
        self._rooms: list[dict[Any, Any]] = []
        self._names: list[Any] = []
        self._values: list[Any] = []
        self._filled: list[tuple[dict[Any, Any], str, Any]] = []
        self._tensors: tuple[list[dict[str, Any]], list[str]] = ([], [])
        self._dictionaries: list[dict[Any, Any]] = []
        for module in self.modules:
            held = vars(module)
            mine = _attributes(module)
            self._watch(held, {k: v for k, v in mine.items() if not isinstance(v, Tensor)})
            self._there(held, [k for k, v in mine.items() if isinstance(v, Tensor)])
            self._watch(held["_modules"], held["_modules"])
            self._dictionaries += held, held["_modules"]
            for name in ("_parameters", "_buffers"):
                room = held[name]
                self._watch(room, {k: v for k, v in room.items() if v is None})
                self._there(room, [k for k, v in room.items() if v is not None])
                self._dictionaries.append(room)
            for name in () if module is outermost else HOOKS:
                self._watch(held[name], held[name])
                self._dictionaries.append(held[name])
        self._counts = list(map(len, self._dictionaries))
        self.shapes = [
            (module, name, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            for module, name in shaped
            if isinstance(tensor := getattr(module, name, None), Tensor)
        ]
        # The same for the tensors of shapes: attributes of a module, a dictionary of these, a name.
        asked = [(vars(each), within(each, name), name) for each, name, *_ in self.shapes]
        self._asked: tuple[Any, ...] = tuple(zip(*asked, strict=True))
        self._alike: Guard | None = None  # tells tensors like those of the call before
        self.plain = [
            (module, name, value)
            for module in self.modules
            for name, value in _attributes(module).items()
            if isinstance(value, PLAIN)
        ]
        self.children = [
            (module, name, child)
            for module in self.modules
            for name, child in module._modules.items()
            if child is not None
        ]
        self.hooked = [
            (module, len(module._forward_pre_hooks))
            for module in self.modules
            if module is not outermost
        ]

    def _watch(self, room: dict[Any, Any], values: Mapping[Any, Any]) -> None:
        for name, value in values.items():
            self._rooms.append(room)
            self._names.append(name)
            self._values.append(value)
            if isinstance(value, list | dict | set):  # it can change and stay the same object
                self._filled.append((room, name, _kept(value)))

    def _there(self, room: dict[str, Any], names: list[str]) -> None:
        self._tensors[0].extend(repeat(room, len(names)))
        self._tensors[1].extend(names)

    def __len__(self) -> int:
        return len(self.modules)

    def holds(self) -> bool:
        """Whether nothing has changed; about a microsecond for each module."""
        try:
            if not all(map(is_, map(getitem, self._rooms, self._names), self._values)):
                self._values = self._equal()
            return (
                self._counted()
                and all(map(is_, map(type, self.modules), self._kinds))
                and all(map(is_not, map(getitem, *self._tensors), repeat(None)))
                and all(_still(room[name], kept) for room, name, kept in self._filled)
                and self._shaped()
            )
        except KeyError:  # one is not there any more
            return False

    def _shaped(self) -> bool:
        """Whether the tensors that were asked for their sizes have the same ones."""
        if not self.shapes:
            return True
        if all(self._asked[1]):
            held, rooms, names = self._asked
            found: list[Any] = [*map(getitem, map(getitem, held, rooms), names)]
        else:
            found = [getattr(module, name) for module, name, *_ in self.shapes]
        if any(each.is_nested for each in found):
            return False
        if self._alike is not None and self._alike(*found):
            return True
        with unrecorded():
            as_before = self._as_before(found)
            self._alike = guarding(found) if as_before else None
        return as_before

    def _as_before(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these have the sizes of the tensors that were asked."""
        for tensor, (_, _, shape, stride, dtype, device) in zip(tensors, self.shapes, strict=True):
            if tensor.shape != shape or tensor.stride() != stride:
                return False
            if tensor.dtype != dtype or tensor.device != device:
                return False
        return True

    def _equal(self) -> list[Any]:
        """The values that there are now, if they mean the same; else KeyError."""
        now = list(map(getitem, self._rooms, self._names))
        if not all(map(same, now, self._values)):
            raise KeyError
        return now

    def _counted(self) -> bool:
        """Whether no attribute is new: it could hide one of the class."""
        counts = list(map(len, self._dictionaries))
        if counts != self._counts:
            if [_attributes(each).keys() for each in self.modules] != self._known:
                return False
            if any(
                now != then and "training" not in room  # not the attributes, which are the same
                for now, then, room in zip(counts, self._counts, self._dictionaries, strict=True)
            ):
                return False
            self._counts = counts
        return True

    def holds_in_trace(self) -> bool:
        """The same for ``torch.compile``, which guards whatever it sees to be read here."""
        for module, name, child in self.children:
            if module._modules[name] is not child:
                return False
        for module, count in self.hooked:
            if len(module._forward_hooks) or len(module._forward_pre_hooks) != count:
                return False
        if not self._as_before([getattr(module, name) for module, name, *_ in self.shapes]):
            return False
        return all(getattr(module, name) == value for module, name, value in self.plain)


def within(module: Module, name: str) -> str:
    """Which of a module's dictionaries has a tensor; empty where another attribute hides it.

    What a class of its own makes of it in ``__getattr__`` is in the graph already.
    """
    if name in vars(module) or hasattr(type(module), name):
        return ""
    return next((each for each in ("_parameters", "_buffers") if name in vars(module)[each]), "")


def _kept(value: Any) -> Any:
    """What a container holds, to be compared later."""
    return deepcopy(value) if plain(value) else tuple(map(_found_again, _contents(value)))


def _found_again(item: Any) -> Callable[[], Any]:
    """What gives an item back without keeping it alive, where it can be so.

    An id would not do: the next object may be where this one was.
    """
    try:
        return ref(item)
    except TypeError:
        return partial(_itself, item)


def _itself(item: Any) -> Any:
    return item


def _still(value: Any, kept: Any) -> bool:
    """Whether a container holds what it did: what is no plain value by its identity."""
    if not isinstance(kept, tuple):
        return same(value, kept)
    contents = _contents(value)
    return len(contents) == len(kept) and all(
        found() is item for found, item in zip(kept, contents, strict=True)
    )
