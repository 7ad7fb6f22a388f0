"""What a forward asks in Python of the values that it computes, and what is answered."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.batchnorm import _NormBase

from transfuse.fusing.proxies import SIZED, VALUE, Stand
from transfuse.fusing.stopping import FIRST_CALL, Stop

_RANKS = {"1d": 3, "2d": 4, "3d": 5}


class Answering(fx.Tracer):
    """A tracer that answers by example, as far as sizes tell, and notes what was asked.

    Attributes:
        stack: the modules that are being called, by name, the innermost last
        fake: makes example values; None without the arguments of a call
        asked: the nodes whose values decided something in Python
        decisions: what they decided
        assumed: whether a number of axes was taken for granted
        running: whether the forward is under way
    """

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self.root = root
        self.stack = [""]
        self.fake: FakeTensorMode | None = None
        self.asked: set[fx.Node] = set()
        self.decisions: list[Any] = []
        self.assumed = False
        self.running = False

    def stop(self, reason: str, pending: bool = False) -> Stop:
        return Stop(reason, pending)

    def may_have(self, proxy: Stand, name: str) -> bool:
        """Whether a value of which nothing is known may have an attribute, for all one can tell."""
        kinds = (torch.Size, int, torch.dtype) if proxy.node.meta.get(SIZED) else (Tensor,)
        return self.fake is not None or any(hasattr(kind, name) for kind in kinds)

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
            raise Stop(f"asks for sizes in Python: {FIRST_CALL}", pending=True)
        if self.fake is None and _of_arguments(node):
            raise Stop(f"asks what an argument is: {FIRST_CALL}", pending=True)
        raise Stop("asks in Python for the values of a tensor")

    def written(self, proxy: Stand, ask: Callable[[Any], str]) -> str:
        """A value as text, which a forward may hand on; what it left somewhere is a name alone."""
        return self.decided(proxy, ask) if self.running else f"Proxy({proxy.node.name})"

    def length(self, proxy: Stand) -> int:
        """How many items a value has: sizes tell it, of a tensor or of what it is split into."""
        node = proxy.node
        if VALUE not in node.meta and self.fake is None:
            raise Stop(f"asks how many there are of something: {FIRST_CALL}", pending=True)
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


def _of_arguments(node: fx.Node) -> bool:
    """Whether a node is an argument, or an item of one."""
    while node.op == "call_function" and node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    return node.op == "placeholder"
