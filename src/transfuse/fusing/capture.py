"""A module's forward as a graph of torch's functions, with the modules that it calls inlined."""

import builtins
import operator
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.batchnorm import SyncBatchNorm, _NormBase
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from transfuse.fusing.by_size import WEIGHT_HOOKS, bypassed, called_by_size, faked, other_hooks
from transfuse.fusing.calling import Arguments
from transfuse.fusing.proxies import SIZED, VALUE, Read, Stand, sized
from transfuse.fusing.undoing import draw_again, drawn, restored
from transfuse.fusing.vocabulary import knows
from transfuse.fusing.watching import State, hooked
from transfuse.nn.base import Layer

CONVOLUTIONS = frozenset({torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d})
TRIED = frozenset(
    f"torch.nn.modules.{name}"
    for name in (
        "activation", "batchnorm", "container", "dropout", "flatten", "instancenorm",
        "normalization", "pixelshuffle", "pooling", "upsampling",
    )
)  # fmt: skip
"""Where torch has modules that may be of the vocabulary."""
CALLS = ("call_function", "call_method", "call_module")
MANAGERS = (
    (torch.no_grad, "__enter__"),
    (torch.enable_grad, "__enter__"),
    (torch.set_grad_enabled, "__init__"),
    (torch.inference_mode, "__enter__"),
    (torch.autocast, "__enter__"),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__"),
)
"""How a forward computes in another way for a while: a graph would not have it."""
FIRST_CALL = "decided at the first call"
HERE = (str(Path(__file__).parent), str(Path(torch.__file__).parent))


class Untraceable(Exception):
    """Why a forward is no graph. ``pending``: the arguments of a call may tell more."""

    def __init__(self, reason: str, pending: bool = False) -> None:
        super().__init__(reason)
        self.pending = pending


class _Stop(BaseException):
    """Tracing stops here. Not an ``Exception``: a forward that catches those must not see it."""

    def __init__(self, reason: str, pending: bool = False) -> None:
        self.reason = reason
        self.pending = pending


@dataclass(frozen=True)
class Captured:
    """A forward as a graph, and what it depends on.

    Attributes:
        graph: its placeholders are the tensors among the arguments; the root's tensors are read
            by name. None where the forward is no graph.
        returns: how the outputs nest; None for one tensor
        state: what was read of modules
        whole: the modules that the graph calls although they have transposed convolutions, by
            name, and why
        decisions: what sizes decided in Python
        grad: whether gradients were recorded, if the forward asked
        provisional: whether arguments were not there to ask, but the forward asked
        left: all modules that the graph calls for some reason, by name: another attempt in the
            same state, with other sizes, need not find them out again
    """

    graph: fx.Graph | None
    returns: pytree.TreeSpec | None
    state: State
    whole: dict[str, str]
    decisions: tuple[Any, ...] = ()
    grad: bool | None = None
    provisional: bool = False
    left: "Mapping[str, _Left]" = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """The number of tensors that the graph is given."""
        nodes = () if self.graph is None else self.graph.nodes
        return sum(node.op == "placeholder" for node in nodes)


def transposed(module: nn.Module) -> bool:
    """Whether it is one of torch's layers for this: those of this package are fused already."""
    kinds = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
    return isinstance(module, kinds) and not isinstance(module, Layer)


def mentions(module: nn.Module) -> bool:
    """Whether a module has transposed convolutions, or seems to."""
    return any(map(seems, module.modules()))


def seems(module: nn.Module) -> bool:
    """Whether a module is a transposed convolution, or its own forward names the function."""
    names = {each.__name__ for each in CONVOLUTIONS}
    code = getattr(type(module).forward, "__code__", None)
    return transposed(module) or bool(names & {*getattr(code, "co_names", ())})


def capture(
    root: nn.Module,
    forward: Callable[..., Any],
    given: Arguments | None = None,
    original: Callable[[nn.Module], Callable[..., Any]] = lambda module: module.forward,
    left: "Mapping[str, _Left] | None" = None,
) -> Captured:
    """A forward as a graph, or why it is none (:class:`Untraceable`).

    Without arguments, each parameter of ``forward`` that has no default stands for a tensor of
    which nothing is known. ``original``: the forward of a module, were it not fused.
    ``left``: modules that another capture in the same state had to leave whole.
    """
    whole: dict[str, _Left] = {**left} if left else {}
    while True:  # once more for each module that has to be left whole
        tracer = _Tracer(root, whole, original)
        stop = tracer.run(forward, given)
        if stop is not None:
            at = tracer.stack[-1]
            if not at or at in whole:
                raise Untraceable(stop.reason, stop.pending)
            whole[at] = _Left(stop.reason, stop.pending)
            continue
        without = tracer.without_convolution() - whole.keys()
        if not without:
            break
        whole |= dict.fromkeys(without, _Left())
    modules = dict(root.named_modules(remove_duplicate=False))
    told = {
        path: left.reason
        for path, left in {**whole, **tracer.hooked}.items()
        if left.reason and any(map(transposed, modules[path].modules()))
    }
    pending = any(left.pending for left in whole.values())
    watched = {id(modules[path]): modules[path] for path in tracer.watched()}
    return Captured(
        tracer.graph,
        tracer.returns,
        State(watched.values(), root, tracer.shaped()),
        told,
        tuple(tracer.decisions),
        tracer.grad,
        given is None and (pending or tracer.assumed),
        whole,
    )


class _Left(NamedTuple):
    """A module that is left whole: why, if one would want to know."""

    reason: str = ""
    pending: bool = False


class Constant:
    """A tensor that no module holds, as a function of nothing."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.__name__ = self.__qualname__ = "constant"

    def __call__(self) -> Tensor:
        return self.tensor


def hooked_weight(module: nn.Module, name: str) -> Tensor:
    """The weight of a module as torch's old-style hook computes it before each call."""
    for hook in vars(module)["_forward_pre_hooks"].values():
        if isinstance(hook, WEIGHT_HOOKS) and hook.name == name:
            hook(module, ())
    weight: Tensor = getattr(module, name)
    return weight


STANDS = (Stand, Read)
_ISINSTANCE, _PRINT = isinstance, print
_GRAD, _AUTOCAST = torch.is_grad_enabled, torch.is_autocast_enabled


def _modes() -> tuple[Any, ...]:
    """What else changes how operations compute."""
    return _GRAD(), torch.is_inference_mode_enabled(), torch._C._len_torch_dispatch_stack()


class _Recording(TorchFunctionMode):
    """Records what torch computes of no value of the call: it would run now, and only once."""

    def __init__(self, tracer: "_Tracer") -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        leaves = pytree.tree_leaves((args, kwargs))
        name = getattr(func, "__name__", "")
        if (
            self.tracer.paused
            or any(isinstance(leaf, fx.Proxy) for leaf in leaves)
            or name == "__get__"
            or name.lstrip("_").startswith(("set_", "get_", "is_"))
            or name in ("dim", "size", "numel", "__len__")
        ):
            return func(*args, **kwargs)
        if torch.overrides.is_tensor_method_or_property(func):
            return self.tracer.create_proxy("call_method", name, args, kwargs)
        return self.tracer.create_proxy("call_function", func, args, kwargs)


class _Tracer(fx.Tracer):
    """One attempt at a forward."""

    def __init__(
        self,
        root: nn.Module,
        whole: Mapping[str, _Left],
        original: Callable[[nn.Module], Callable[..., Any]],
    ) -> None:
        super().__init__()
        self.root = root
        self.graph = fx.Graph(tracer_cls=_Tracer)
        self.original = original
        self.left = whole
        self.stack = [""]
        self.traced = {""}
        self.hooked: dict[str, _Left] = {}
        self.decisions: list[Any] = []
        self.asked: set[fx.Node] = set()
        self.assumed = False
        self.grad: bool | None = None
        self.paused = False
        self.running = False
        self.returns: pytree.TreeSpec | None = None
        self.fake: FakeTensorMode | None = None
        self.thread = threading.get_ident()
        self.names: dict[int, str] = {}
        self.read: dict[str, Stand] = {}
        self.modules: dict[int, str] = {}
        for path, module in root.named_modules(remove_duplicate=False):
            self.modules.setdefault(id(module), path)
            held = (vars(module), module._parameters, module._buffers)
            for name, tensor in (item for each in held for item in each.items()):
                if isinstance(tensor, Tensor):
                    self.names.setdefault(id(tensor), _under(path, name))

    # What a trace is asked afterwards.

    def without_convolution(self) -> set[str]:
        """The modules to be left whole, outermost first: no transposed convolution is in them, but
        something that cannot be part of a chain.
        """
        convolves: set[str] = {""}
        foreign: set[str] = set()
        held: set[fx.Node] = set()  # what is made of parameters and buffers alone: operands
        for node in self.graph.nodes:
            above, made_of = {*_above(node.meta["path"])}, node.all_input_nodes
            if node.op == "get_attr" or (node.op in CALLS and made_of and held >= {*made_of}):
                held.add(node)
            elif node.target in CONVOLUTIONS:
                convolves |= above
            elif node.op in CALLS and not node.meta[SIZED] and not knows(node):
                foreign |= above
        foreign -= convolves
        return {path for path in foreign if not {*_above(path)} - {path} & foreign}

    def watched(self) -> set[str]:
        """The modules whose state the graph depends on: called by it inlined, or on the way; and
        all of those left whole that gave what Python asked about.
        """
        ways = {_parent(node.target) for node in self.graph.nodes
                if node.op in ("get_attr", "call_module")}  # fmt: skip
        return {up for path in self.traced | ways for up in _above(path)} | self._answered()

    def shaped(self) -> list[tuple[nn.Module, str]]:
        """The tensors of modules whose sizes decided something in Python."""
        names = [str(node.target) for node in self.asked if node.op == "get_attr"]
        held = [(self.root.get_submodule(_parent(each)), _last(each)) for each in names]
        return [each for each in held if not parametrize.is_parametrized(*each)]

    def _answered(self) -> set[str]:
        """The modules left whole whose results decided something in Python, with all in them."""
        whole = {str(node.target) for node in self.asked if node.op == "call_module"}
        paths = [path for path, _ in self.root.named_modules(remove_duplicate=False)]
        return {path for path in paths if whole & {*_above(path)}} if whole else whole

    # The attempt.

    def run(self, forward: Callable[..., Any], given: Arguments | None) -> _Stop | None:
        """Fill the graph; None, or where it stopped."""
        self.modes = _modes()
        if given is not None:
            self.fake = detect_fake_mode(given.tensors) or FakeTensorMode(
                allow_non_fake_inputs=True
            )
        before = drawn()
        try:
            with (
                _ONE,
                bypassed(),
                restored(self.root) as changed,
                self._patched(),
                _Recording(self),
            ):
                args, kwargs = self._placeholders(forward, given)
                self.running = True
                result = forward(*args, **kwargs)
                leaves, self.returns = pytree.tree_flatten(result)
                if self.returns.is_leaf():
                    self.returns = None
                    self.graph.output(self.create_arg(leaves[0]))
                else:
                    self.graph.output([self.create_arg(leaf) for leaf in leaves])
                answered = self._answered()
                for module, name in changed():
                    path = self.modules.get(id(module))
                    if path in self.traced:
                        raise _Stop(f"changes what is in self.{name}")
                    if path in answered:
                        raise _Stop(f"asks for sizes of what {path} gives, which changes {name}")
                if drawn() != before:
                    raise _Stop("draws Python's or NumPy's random numbers")
        except _Stop as stop:
            stop.reason = _told(stop.reason, stop)
            return stop
        except Exception as error:
            line = (str(error).splitlines() or [""])[0]
            waits = f": {FIRST_CALL}" if given is None else ""
            return _Stop(_told(f"{type(error).__name__}: {line}{waits}", error), given is None)
        finally:
            self.running = False
            if drawn() != before:
                draw_again(before)
        for node in reversed(self.graph.nodes):
            node.meta.setdefault("path", "")
            if node.meta.setdefault(SIZED, False) and not node.users:
                self.graph.erase_node(node)  # Python asked, and has its answer
        return None

    def _placeholders(
        self, forward: Callable[..., Any], given: Arguments | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if given is None:
            kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
            needed = [
                each.name
                for each in signature(forward).parameters.values()
                if each.default is Parameter.empty and each.kind in kinds
            ]
            return tuple(self.create_proxy("placeholder", n, (), {}) for n in needed), {}
        leaves = list(given.leaves)
        for count, at in enumerate(given.at):
            self.paused = True
            self.value = self._faked(leaves[at])
            self.paused = False
            leaves[at] = self.create_proxy("placeholder", f"input_{count}", (), {})
        args, kwargs = pytree.tree_unflatten(leaves, given.spec)
        return args, kwargs

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """What a forward asks of modules goes through the tracer, in this thread alone."""
        call, getattr_ = nn.Module.__call__, nn.Module.__getattr__
        setattr_, delattr_ = nn.Module.__setattr__, nn.Module.__delattr__

        def mine() -> bool:
            return not self.paused and threading.get_ident() == self.thread

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not mine():
                return call(module, *args, **kwargs)
            return self.call_module(module, module.forward, args, kwargs)

        def attribute(module: nn.Module, name: str) -> Any:
            value = getattr_(module, name)
            if not mine() or not isinstance(value, Tensor):
                return value
            path = self.modules.get(id(module))
            return self._attribute(value, None if path is None else _under(path, name))

        def assigned(module: nn.Module, name: str, value: Any) -> None:
            if mine():
                raise _Stop(f"sets self.{name}")
            setattr_(module, name, value)

        def deleted(module: nn.Module, name: str) -> None:
            if mine():
                raise _Stop(f"deletes self.{name}")
            delattr_(module, name)

        def grad() -> bool:
            if mine():
                self.grad = _GRAD()
            return _GRAD()

        def autocast(*kind: str) -> bool:
            if mine():
                raise _Stop("asks whether autocast is on")
            return _AUTOCAST(*kind)

        def is_(value: object, kinds: Any) -> bool:
            if type(value) in STANDS and mine():
                asking = sys._getframe(1).f_code.co_filename
                if not asking.startswith(HERE):
                    return issubclass(value.kind(), kinds)  # type: ignore[attr-defined]
            return _ISINSTANCE(value, kinds)

        def is_tensor(value: object) -> bool:
            return type(value) in STANDS or _ISINSTANCE(value, Tensor)

        def prints(*args: Any, **kwargs: Any) -> None:
            if mine():
                raise _Stop("prints")
            _PRINT(*args, **kwargs)

        def entered(enter: Callable[..., Any]) -> Callable[..., Any]:
            def enters(manager: Any, *args: Any, **kwargs: Any) -> Any:
                if mine():
                    raise _Stop(f"enters torch's {type(manager).__name__}")
                return enter(manager, *args, **kwargs)

            return enters

        replaced: tuple[tuple[Any, str, Any], ...] = (
            *((owner, name, entered(getattr(owner, name))) for owner, name in MANAGERS),
            (nn.Module, "__call__", called),
            (nn.Module, "__getattr__", attribute),
            (nn.Module, "__setattr__", assigned),
            (nn.Module, "__delattr__", deleted),
            (torch, "is_grad_enabled", grad),
            (torch, "is_autocast_enabled", autocast),
            (torch, "is_tensor", is_tensor),
            (builtins, "isinstance", is_),
            (builtins, "print", prints),
            (parametrize, "_cache_enabled", 0),
        )
        kept = [getattr(owner, name) for owner, name, _ in replaced]
        try:
            for owner, name, other in replaced:
                setattr(owner, name, other)
            yield
        finally:
            for (owner, name, _), each in zip(replaced, kept, strict=True):
                setattr(owner, name, each)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        path = self.modules.get(id(m))
        if path is None:
            raise _Stop(f"calls a {type(m).__name__} that is not among its modules")
        if isinstance(m, ParametrizationList) and not args:
            return self._parametrized(path)
        hooks = self._weight_hooks(m)
        if hooks is None:
            self.hooked[path] = _Left("has forward hooks")
        if hooks is None or path in self.left or self._opaque(m):
            return self.create_proxy("call_module", path, args, kwargs)
        self.traced.add(path)
        self.stack.append(path)
        held = vars(m)
        kept = {name: held[name] for name in hooks}
        try:
            for name in hooks:
                call = (hooked_weight, (m, name))
                held[name] = self.create_proxy("call_function", *call, {})
            result = self.original(m)(*args, **kwargs)
        finally:
            held.update(kept)
        self.stack.pop()  # not where it stopped: there it tells in which module
        return result

    def _parametrized(self, path: str) -> Any:
        """What a parametrization computes, as the property that it is read by."""
        owner, _, name = path.rpartition(".parametrizations.")
        target = _under(owner, name) if owner else path.removeprefix("parametrizations.")
        return self.create_proxy("get_attr", target, (), {})

    def _weight_hooks(self, module: nn.Module) -> list[str] | None:
        """The weights that hooks of torch's compute; None if there are other hooks."""
        if not hooked(module):
            return []
        if other_hooks(module) or not transposed(module):
            return None
        return [hook.name for hook in vars(module)["_forward_pre_hooks"].values()]

    def _opaque(self, module: nn.Module) -> bool:
        if isinstance(module, Layer | SyncBatchNorm | torch.jit.ScriptModule):
            return True
        kind = next(k for k in type(module).__mro__ if k.__module__ != parametrize.__name__)
        if not kind.__module__.startswith("torch.") or transposed(module):
            return False
        return kind.__module__ not in TRIED and kind is not nn.Identity

    # What the forward asks.

    def stop(self, reason: str) -> _Stop:
        return _Stop(reason)

    def rank(self, proxy: Stand) -> int | None:
        """The number of axes: by example, or as torch's norms expect it with a batch axis."""
        value = proxy.node.meta.get(VALUE)
        if isinstance(value, Tensor):
            self.depends(proxy.node)
            return value.dim()
        module = self.root.get_submodule(self.stack[-1])
        name = next((k.__name__ for k in type(module).__mro__ if k.__name__[-2:] in _RANKS), "")
        if value is None and isinstance(module, _NormBase) and name:
            self.assumed = True
            return _RANKS[name[-2:]]
        return None

    def depends(self, node: fx.Node) -> None:
        """Python asks about a value: note what it is made of."""
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if each not in self.asked:
                self.asked.add(each)
                waiting += each.all_input_nodes

    def decided(self, proxy: Stand, ask: Callable[[Any], Any]) -> Any:
        """What Python asks of a value: known by example if sizes tell it, else no graph."""
        node = proxy.node
        if node.meta.get(SIZED) and VALUE in node.meta:
            self.depends(node)
            answer = ask(node.meta[VALUE])
            self.decisions.append(answer)
            return answer
        if node.meta.get(SIZED):
            raise _Stop(f"asks for sizes in Python: {FIRST_CALL}", pending=True)
        if self.fake is None and _of_arguments(node):
            raise _Stop(f"asks what an argument is: {FIRST_CALL}", pending=True)
        raise _Stop("asks in Python for the values of a tensor")

    def written(self, proxy: Stand, ask: Callable[[Any], str]) -> str:
        """A value as text, which a forward may hand on; what it left somewhere is a name alone."""
        return self.decided(proxy, ask) if self.running else f"Proxy({proxy.node.name})"

    def length(self, proxy: Stand) -> int:
        """How many items a value has: sizes tell it, of a tensor or of what it is split into."""
        node = proxy.node
        if VALUE not in node.meta and self.fake is None:
            raise _Stop(f"asks how many there are of something: {FIRST_CALL}", pending=True)
        value = node.meta.get(VALUE)
        if not isinstance(value, Tensor | tuple | list | dict):
            return int(self.decided(proxy, len))
        if not isinstance(value, torch.Size):  # of which there are as many as axes
            self.depends(node)
            self.decisions.append(len(value))
        return len(value)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(obj)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        return iter([obj[i] for i in range(len(obj))])  # type: ignore[index]

    # Nodes.

    def proxy(self, node: fx.Node) -> Stand:
        return Stand(node, self)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, fx.Proxy):
            return a.node
        if isinstance(a, Tensor):
            return self._attribute(a).node
        if isinstance(a, nn.Module):
            path = self.modules.get(id(a))
            if path is None:
                raise _Stop(f"uses a {type(a).__name__} that is not among its modules")
            return self.create_node("get_attr", path, (), {})
        try:
            return super().create_arg(a)
        except NotImplementedError:
            raise _Stop(f"hands on or returns a {type(a).__name__}, which no graph holds") from None

    def _attribute(self, tensor: Tensor, name: str | None = None) -> Stand:
        """A tensor that is there already: read of its module at each call, if it has one."""
        name = name or self.names.get(id(tensor))
        if name is None:
            return self.create_proxy("call_function", Constant(tensor), (), {})  # type: ignore[return-value]
        if name not in self.read:
            self.read[name] = self.create_proxy("get_attr", name, (), {})  # type: ignore[assignment]
        return self.read[name]

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any | None = None,
    ) -> fx.Node:
        if _modes() != self.modes:
            raise _Stop("computes in another mode for a while")
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        node.meta["path"] = self.stack[-1]
        node.meta[SIZED] = sized(node)
        if self.fake is not None:
            self._value(node)
        return node

    def _value(self, node: fx.Node) -> None:
        """Give a node the value that it has for the arguments given, where those tell it."""
        if node.op == "placeholder":
            node.meta[VALUE] = self.value
            return
        if not all(VALUE in each.meta for each in node.all_input_nodes):
            return
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta[VALUE])
        self.paused = True
        try:
            with torch.no_grad():
                node.meta[VALUE] = self._computed(node, args, kwargs)
        except Exception:  # what is wrong is said when it is computed
            pass
        finally:
            self.paused = False

    def _computed(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        assert self.fake is not None
        if isinstance(node.target, Constant):
            return self._faked(node.target.tensor)
        if node.target is hooked_weight:  # as the hook left it: it is not run for this
            return self._faked(vars(args[0])[args[1]])
        if node.op == "get_attr":
            owner, name = self.root.get_submodule(_parent(node.target)), _last(node.target)
            if parametrize.is_parametrized(owner, name):
                return self._called(owner.get_submodule(f"parametrizations.{name}"), (), {})
            held = getattr(owner, name)
            return self._faked(held) if isinstance(held, Tensor) else held
        if node.op == "call_module":
            return self._called(self.root.get_submodule(str(node.target)), args, kwargs)
        with self.fake:
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            return node.target(*args, **kwargs)  # type: ignore[operator]

    def _called(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        assert self.fake is not None
        return called_by_size(self.fake, module, args, kwargs)

    def _faked(self, tensor: Tensor) -> Tensor:
        assert self.fake is not None
        return faked(self.fake, tensor)


_RANKS = {"1d": 3, "2d": 4, "3d": 5}

_ONE = threading.RLock()
"""What is replaced in torch for the time of an attempt is given back by the one that took it."""


def _of_arguments(node: fx.Node) -> bool:
    """Whether a node is an argument, or an item of one."""
    while node.op == "call_function" and node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    return node.op == "placeholder"


def _under(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _parent(path: Any) -> str:
    return str(path).rpartition(".")[0]


def _last(path: Any) -> str:
    return str(path).rpartition(".")[2]


def _above(path: str) -> Iterator[str]:
    """A path and all above it, up to the root."""
    while path:
        yield path
        path = _parent(path)
    yield ""


def _told(reason: str, error: BaseException) -> str:
    """The reason, with the place in the user's code."""
    frames = [each for each, _ in traceback.walk_tb(error.__traceback__)]
    mine = [each for each in frames if not each.f_code.co_filename.startswith(HERE)]
    lines = [n for each, n in traceback.walk_tb(error.__traceback__) if each in mine]
    if not mine:
        return reason
    return f"{Path(mine[-1].f_code.co_filename).name}:{lines[-1]} {reason}"
