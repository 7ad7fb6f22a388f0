"""The forward that a fused module has: versions, each for what its capture depended on."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch.compiler import is_dynamo_compiling
from torch.utils import _pytree as pytree

from transfuse import log
from transfuse.fusing.by_size import bypassing
from transfuse.fusing.calling import Arguments, arguments
from transfuse.fusing.capture import Captured, capture
from transfuse.fusing.generated import of_modules, of_root
from transfuse.fusing.module_kinds import callable_itself, mentions, transposed
from transfuse.fusing.rewriting import Site, fuse_graph
from transfuse.fusing.stopping import Untraceable
from transfuse.fusing.watching import State, hooked_globally, same

MOST = 16
"""Versions of one module; for a state that none of them serves, one more is not made."""
SIZES = 1024
"""Sizes remembered by a version that depends on them; one more, and all are forgotten."""


class PlainArguments(NamedTuple):
    """All of a call's arguments but the tensors. ``spec`` is a number for tensors alone."""

    spec: pytree.TreeSpec | int
    at: tuple[int, ...] = ()
    rest: tuple[Any, ...] = ()

    def same(self, other: "PlainArguments") -> bool:
        return (
            self.spec == other.spec
            and self.at == other.at
            and all(map(same, self.rest, other.rest))
        )


def _given(found: Arguments) -> PlainArguments:
    at = found.at
    args, kwargs = pytree.tree_unflatten(found.leaves, found.spec)
    if not kwargs and all(isinstance(each, Tensor) for each in args):
        return PlainArguments(len(at))
    return PlainArguments(
        found.spec, at, tuple(v for i, v in enumerate(found.leaves) if i not in at)
    )


def _sizes(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple((each.shape, each.stride(), each.dtype, each.device) for each in tensors)


class Version:
    """A forward for calls of one kind: captured and fused, or else as it was written.

    Attributes:
        sites: the transposed convolutions that were found
        whole: modules that are called although they have some, by name, and why; the root itself
            under an empty name
        provisional: it was captured without arguments, and an argument may make it another
    """

    def __init__(
        self,
        module: nn.Module,
        given: PlainArguments,
        tensors: Sequence[Tensor] | None,
        found: Captured,
    ) -> None:
        self.given = given
        self.state = found.state
        self.grad = found.grad
        self.whole = found.whole
        self.provisional = found.provisional
        self.decisions = found.decisions
        self.left = found.left
        self.ranks = None if tensors is None else tuple(each.dim() for each in tensors)
        self.sizes = {_sizes(tensors)} if tensors is not None and found.decisions else set()
        self.returns = found.returns
        self.sites: list[Site] = []
        self.function: Callable[..., Any] | None = None
        if found.graph is not None:
            self.sites = fuse_graph(found.graph, module)
            if any(site.chain is not None for site in self.sites):
                self.function, self.modules = of_modules(found.graph, module)
                self.traced = of_root(found.graph)

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        assert self.function is not None
        y = self.function(self.modules, *tensors)
        return y if self.returns is None else pytree.tree_unflatten(y, self.returns)

    def in_trace(self, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """The same for ``torch.compile``, which guards what it sees to be read of the module."""
        y = self.traced(module, *tensors)
        return y if self.returns is None else pytree.tree_unflatten(y, self.returns)

    def kind(self, given: PlainArguments) -> bool:
        """Whether it is for calls with these arguments, in the modules' present state."""
        return (
            (self.grad is None or self.grad is torch.is_grad_enabled())
            and self.given.same(given)
            and self.state.holds()
        )

    def serves(self, given: PlainArguments, tensors: Sequence[Tensor]) -> bool:
        return (
            not self.provisional
            and (self.ranks is None or self.ranks == tuple(each.dim() for each in tensors))
            and (not self.decisions or _sizes(tensors) in self.sizes)
            and self.kind(given)
        )

    def serves_in_trace(self, tensors: Sequence[Tensor]) -> bool:
        """Whether ``torch.compile`` may use it for a call; it guards what is compared here."""
        if self.function is None or self.given.spec != len(tensors):
            return False
        if self.ranks is not None and self.ranks != tuple(each.dim() for each in tensors):
            return False
        if self.decisions and not any(_like(tensors, known) for known in self.sizes):
            return False
        if self.grad is not None and self.grad != torch.is_grad_enabled():
            return False
        return self.state.holds_in_trace()


def _like(tensors: Sequence[Tensor], sizes: tuple[Any, ...]) -> bool:
    """Whether tensors have these sizes, in a way that ``torch.compile`` follows."""
    return all(
        each.shape == shape
        and each.stride() == stride
        and each.dtype == dtype
        and each.device == device
        for each, (shape, stride, dtype, device) in zip(tensors, sizes, strict=True)
    )


def _unfused(module: nn.Module, given: PlainArguments) -> Version:
    """The forward as it was written, for one call."""
    return Version(module, given, None, Captured(None, None, State((), module), {}))


class Forward:
    """What stands in place of a module's ``forward``.

    A version is made at the first call of its kind: other arguments that are no tensors, another
    number of axes, another state of the modules make another one. ``why``: why it is captured
    alone, and not as part of a larger one. ``pending``: why there is no version yet.
    """

    def __new__(cls, module: nn.Module, why: str = "") -> "Forward":
        return _blank(type(module))

    def __init__(self, module: nn.Module, why: str = "") -> None:
        self.module = module
        self.name = type(module).__name__
        self.why = why
        self.pending = ""
        self.own = vars(module).get("forward")
        self.versions: list[Version] = []

    @property
    def waits(self) -> bool:
        """Whether nothing was captured yet: see :func:`settle`."""
        return not self.versions and not self.pending

    def __reduce__(self) -> Any:
        """A copy captures anew: versions are functions of this process."""
        return _blank, (type(self.module),), {**vars(self), "versions": []}

    @property
    def unfused(self) -> Callable[..., Any]:
        """The forward as it was written."""
        forward: Callable[..., Any] = self.own or type(self.module).forward.__get__(self.module)
        return forward

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """Where ``inspect.signature`` looks: the arguments are the same."""
        return self.unfused

    @property
    def __code__(self) -> Any:
        """Where ``torch.export`` looks, to tell the module in messages."""
        return getattr(self.unfused, "__code__", Forward.__call__.__code__)

    @property
    def __globals__(self) -> Any:
        """Where ``torch.jit.script`` looks, to compile the source code that there is not."""
        raise AttributeError(f"{self.name} is fused: torch.jit.script takes transfuse.unfuse of it")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return self._traced(args, kwargs)
        if bypassing() or hooked_globally():
            return self.unfused(*args, **kwargs)
        tensors: Sequence[Tensor]
        if kwargs or not all(isinstance(each, Tensor) for each in args):
            found = arguments(args, kwargs)
            if any(isinstance(leaf, fx.Proxy) for leaf in found.leaves):
                return self.unfused(*args, **kwargs)
            given, tensors = _given(found), found.tensors
        else:
            given, tensors = PlainArguments(len(args)), args
        version = self._served(given, tensors)
        if version is None:
            version = self._captured(given, tensors, arguments(args, kwargs))
        if version.function is None:
            return self.unfused(*args, **kwargs)
        return version(tensors)

    def _served(self, given: PlainArguments, tensors: Sequence[Tensor]) -> Version | None:
        """The version for a call, if there is one already."""
        for version in self.versions:
            if version.serves(given, tensors):
                return version
        if not _len_torch_dispatch_stack() and _get_tracing_state() is None:
            return None
        # Something looks at every operation, such as torch.export: a capture would disturb it.
        for version in self.versions:
            if version.provisional and version.kind(given):
                return version
        return _unfused(self.module, given)

    def _captured(
        self, given: PlainArguments, tensors: Sequence[Tensor], found: Arguments
    ) -> Version:
        """A version for a call that none serves yet."""
        # One that was made without arguments gives way to one that is made with them.
        self.versions = [e for e in self.versions if not (e.provisional and e.kind(given))]
        if len(self.versions) >= MOST:
            return self._crowded(given)
        alike = [each for each in self.versions if each.decisions and each.kind(given)]
        try:
            taken = self._taken(found, alike[0].left if alike else None)
        except Untraceable as error:
            taken = self._left(error)
        ranks = tuple(each.dim() for each in tensors)
        for known in alike:  # decided alike, for other sizes
            if known.decisions == taken.decisions and known.ranks == ranks:
                if len(known.sizes) >= SIZES:
                    known.sizes.clear()
                known.sizes.add(_sizes(tensors))
                return known
        self.versions.append(Version(self.module, given, tensors, taken))
        return self.versions[-1]

    def _crowded(self, given: PlainArguments) -> Version:
        """The forward as it was written, with what is inside fused by itself: no more captures."""
        line = "%s has %s versions for as many states, sizes and arguments: %s"
        why = "in other calls its parts are fused by themselves"
        log.once(logging.WARNING, (id(self), MOST), line, self.name, MOST, why)
        for child in self.module.children():
            settle(child, why=line % (self.name, MOST, why))
        return _unfused(self.module, given)

    def _taken(self, given: Arguments | None, left: Any = None) -> Captured:
        """The forward captured; modules that it has to leave whole are settled by themselves."""
        found = capture(self.module, self.unfused, given, original, left)
        for path, why in found.whole.items():
            settle(self.module.get_submodule(path), why=why)
        return found

    def _left(self, error: Untraceable) -> Captured:
        """The forward as it was written; what is inside is settled by itself."""
        why = str(error)
        log.once(logging.INFO, (id(self), why), "%s runs as it was written: %s", self.name, why)
        for child in self.module.children():
            settle(child, why=why)
        return Captured(None, None, State((self.module,), self.module), {"": why})

    def prepare(self, example: Arguments | None) -> Version:
        """Make the version for calls like an example, or with tensors alone; or Untraceable."""
        found = self._taken(example)
        if example is None:
            given = PlainArguments(found.inputs)
            tensors = None
        else:
            given, tensors = _given(example), example.tensors
        for known in self.versions:
            if known.kind(given):
                return known
        self.versions.append(Version(self.module, given, tensors, found))
        return self.versions[-1]

    def _traced(self, args: Any, kwargs: Any) -> Any:
        """A call that ``torch.compile`` traces: a version is there already, or none is used."""
        if not kwargs and all(isinstance(each, Tensor) for each in args):
            for version in self.versions:
                if version.serves_in_trace(args):
                    return version.in_trace(self.module, args)
        line = "torch.compile has %s as it was written: no version for this call was made before"
        log.once(logging.WARNING, (line, self.name), line, self.name)
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


_of_class: WeakKeyDictionary[type[nn.Module], type[Forward]] = WeakKeyDictionary()


def _blank(module: type[nn.Module]) -> Forward:
    """A forward to be filled, for a module of this class.

    ``torch.compile`` counts its compilations by a function's code object, and stops at a limit. A
    class of modules has a forward of its own, so it also gets a code object of its own here.
    """
    if module not in _of_class:
        call = Forward.__call__
        own = FunctionType(call.__code__.replace(), call.__globals__, call.__name__)
        _of_class[module] = type(Forward.__name__, (Forward,), {"__call__": own})
    return object.__new__(_of_class[module])


def original(module: nn.Module) -> Callable[..., Any]:
    """A module's forward, were it not fused."""
    forward = vars(module).get("forward")
    if isinstance(forward, Forward):
        return forward.unfused
    return module.forward


def settle(module: nn.Module, example: Arguments | None = None, why: str = "") -> None:
    """Give a module its fused forward, or those below it where it cannot have one.

    Versions are made for the present state and for both modes, so that ``torch.compile`` finds
    them. Its parts are captured when they are called by themselves, as ``model.decode`` calls a
    decoder: until then theirs wait.
    """
    held = vars(module).get("forward")
    if isinstance(held, Forward):
        if not held.waits:
            return
        remove(module)
    if not callable_itself(module):
        for child in module.children():
            settle(child, why=why)
        return
    forward = Forward(module, why)
    try:
        version = forward.prepare(example)
    except Untraceable as error:
        if not error.pending:
            for child in module.children():
                settle(child, why=str(error))
            return
        if not mentions(module):
            return
        forward.pending = str(error)
    else:
        if not version.sites and not version.provisional and not version.whole:
            return
        for training in (True, False):
            with _mode(module, training), suppress(Untraceable):
                forward.prepare(example)
    vars(module)["forward"] = forward
    for part in module.modules():
        fused = isinstance(vars(part).get("forward"), Forward)
        if not fused and mentions(part) and callable_itself(part) and not transposed(part):
            vars(part)["forward"] = Forward(part)


def remove(module: nn.Module) -> None:
    """Give a module its own forward back."""
    held = vars(module)
    forward = held.get("forward")
    if isinstance(forward, Forward):
        del held["forward"]
        if forward.own is not None:
            held["forward"] = forward.own


@contextmanager
def _mode(module: nn.Module, training: bool) -> Iterator[None]:
    """All modules in one mode for a while: ``train()`` might do more than that."""
    before = {each: each.training for each in module.modules()}
    try:
        for each in before:
            vars(each)["training"] = training
        yield
    finally:
        for each, was in before.items():
            vars(each)["training"] = was
