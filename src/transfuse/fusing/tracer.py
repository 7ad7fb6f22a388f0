"""One attempt at a forward: run with what stands for tensors, and each operation is a node."""

import gc
import threading
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any
from weakref import ref

from torch import Tensor, fx, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils import _pytree as pytree

from transfuse.fusing.asking import Answering
from transfuse.fusing.by_size import bypassed, faked
from transfuse.fusing.calling import Arguments
from transfuse.fusing.example_values import KnownTensor, give_value, hooked_weight
from transfuse.fusing.module_kinds import opaque, weight_hooks
from transfuse.fusing.patching import ONE, Recording, modes, patched
from transfuse.fusing.paths import above, under
from transfuse.fusing.proxies import SIZED, VALUE, Stand, sized
from transfuse.fusing.sources import unreadable
from transfuse.fusing.stopping import FIRST_CALL, Left, Stop, told
from transfuse.fusing.undoing import draw_again, drawn, restored


class Tracer(Answering):
    """One attempt at a forward.

    Attributes:
        graph: what was recorded
        returns: how the outputs nest; None for one tensor
        traced: the modules that were looked into, by name
        hooked: those that are called for their hooks' sake
        grad: whether gradients are recorded, if the forward asked
    """

    def __init__(
        self,
        root: nn.Module,
        whole: Mapping[str, Left],
        original: Callable[[nn.Module], Callable[..., Any]],
    ) -> None:
        super().__init__(root)
        self.graph = fx.Graph(tracer_cls=Tracer)
        self.original = original
        self.left = whole
        self.traced = {""}
        self.hooked: dict[str, Left] = {}
        self.grad: bool | None = None
        self.paused = False
        self.returns: pytree.TreeSpec | None = None
        self.thread = threading.get_ident()
        self.names: dict[int, str] = {}
        self.read: dict[str, Stand] = {}
        self.stands: list[ref[Stand]] = []
        self.modules: dict[int, str] = {}
        for path, module in root.named_modules(remove_duplicate=False):
            self.modules.setdefault(id(module), path)
            held = (vars(module), module._parameters, module._buffers)
            for name, tensor in (item for each in held for item in each.items()):
                if isinstance(tensor, Tensor):
                    self.names.setdefault(id(tensor), under(path, name))

    def run(self, forward: Callable[..., Any], given: Arguments | None) -> Stop | None:
        """Fill the graph; None, or where it stopped."""
        self.modes = modes()
        if given is not None:
            self.fake = detect_fake_mode(given.tensors) or FakeTensorMode(
                allow_non_fake_inputs=True
            )
        before = drawn()
        try:
            with ONE, bypassed(), restored(self.root) as changed, patched(self), Recording(self):
                args, kwargs = self._placeholders(forward, given)
                self.running = True
                result = self._run(forward, args, kwargs)
                leaves, self.returns = pytree.tree_flatten(result)
                if self.returns.is_leaf():
                    self.returns = None
                    self.graph.output(self.create_arg(leaves[0]))
                else:
                    self.graph.output([self.create_arg(leaf) for leaf in leaves])
                answered = self.answered()
                for module, name in changed():
                    path = self.modules.get(id(module))
                    if path in self.traced:
                        raise Stop(f"changes what is in {name}")
                    if path in answered:
                        raise Stop(f"asks for sizes of what {path} gives, which changes {name}")
                if drawn() != before:
                    raise Stop("draws Python's or NumPy's random numbers")
                del args, kwargs, result, leaves
            self._expect_let_go()
        except Stop as stop:
            stop.reason = told(stop.reason, stop)
            return stop
        except Exception as error:
            self.running = False  # what the error holds is shown, not asked
            line = (str(error).splitlines() or [""])[0]
            waits = f": {FIRST_CALL}" if given is None else ""
            return Stop(told(f"{type(error).__name__}: {line}{waits}", error), given is None)
        finally:
            self.running = False
            if drawn() != before:
                draw_again(before)
        for node in reversed(self.graph.nodes):
            node.meta.setdefault("path", "")
            if node.meta.setdefault(SIZED, False) and not node.users:
                self.graph.erase_node(node)  # Python asked, and has its answer
        return None

    def _run(self, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        if why := unreadable(forward):
            raise Stop(why)
        return forward(*args, **kwargs)

    def _expect_let_go(self) -> None:
        """What stood for values is gone with the call, unless the forward has put it somewhere."""
        self.read.clear()
        if any(each() is not None for each in self.stands):
            gc.collect()  # functions that call themselves hold their own variables
            if any(each() is not None for each in self.stands):
                raise Stop("keeps a value of the call for later")

    def answered(self) -> set[str]:
        """The modules left whole whose results decided something in Python, with all in them."""
        whole = {str(node.target) for node in self.asked if node.op == "call_module"}
        paths = [path for path, _ in self.root.named_modules(remove_duplicate=False)]
        return {path for path in paths if whole & {*above(path)}} if whole else whole

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
        assert self.fake is not None
        leaves = list(given.leaves)
        for count, at in enumerate(given.at):
            self.paused = True
            self.value = faked(self.fake, leaves[at])
            self.paused = False
            leaves[at] = self.create_proxy("placeholder", f"input_{count}", (), {})
        args, kwargs = pytree.tree_unflatten(leaves, given.spec)
        return args, kwargs

    # Modules.

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        path = self.modules.get(id(m))
        if path is None:
            raise Stop(f"calls a {type(m).__name__} that is not among its modules")
        if isinstance(m, ParametrizationList) and not args:
            return self._parametrized(path)
        hooks = weight_hooks(m)
        if hooks is None:
            self.hooked[path] = Left("has forward hooks")
        if hooks is None or path in self.left or opaque(m):
            return self.create_proxy("call_module", path, args, kwargs)
        self.traced.add(path)
        self.stack.append(path)
        held = vars(m)
        kept = {name: held[name] for name in hooks}
        try:
            for name in hooks:
                call = (hooked_weight, (m, name))
                held[name] = self.create_proxy("call_function", *call, {})
            result = self._run(self.original(m), args, kwargs)
        finally:
            held.update(kept)
        self.stack.pop()  # not where it stopped: there it tells in which module
        return result

    def _parametrized(self, path: str) -> Any:
        """What a parametrization computes, as the property that it is read by."""
        owner, _, name = path.rpartition(".parametrizations.")
        target = under(owner, name) if owner else path.removeprefix("parametrizations.")
        return self.create_proxy("get_attr", target, (), {})

    def attribute(self, tensor: Tensor, name: str | None = None) -> Stand:
        """A tensor that is there already: read of its module at each call, if it has one."""
        name = name or self.names.get(id(tensor))
        if name is None:
            return self.create_proxy("call_function", KnownTensor(tensor), (), {})  # type: ignore[return-value]
        if name not in self.read:
            self.read[name] = self.create_proxy("get_attr", name, (), {})  # type: ignore[assignment]
        return self.read[name]

    # Nodes.

    def proxy(self, node: fx.Node) -> Stand:
        stand = Stand(node, self)
        self.stands.append(ref(stand))
        return stand

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, fx.Proxy):
            return a.node
        if isinstance(a, Tensor):
            return self.attribute(a).node
        if isinstance(a, nn.Module):
            path = self.modules.get(id(a))
            if path is None:
                raise Stop(f"uses a {type(a).__name__} that is not among its modules")
            return self.create_node("get_attr", path, (), {})
        try:
            return super().create_arg(a)
        except NotImplementedError:
            raise Stop(f"hands on or returns a {type(a).__name__}, which no graph holds") from None

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any | None = None,
    ) -> fx.Node:
        if modes() != self.modes:
            raise Stop("computes in another mode for a while")
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        node.meta["path"] = self.stack[-1]
        node.meta[SIZED] = sized(node)
        if self.fake is not None and kind == "placeholder":
            node.meta[VALUE] = self.value
        elif self.fake is not None:
            self.paused = True
            try:
                give_value(node, self.root, self.fake)
            finally:
                self.paused = False
        return node
