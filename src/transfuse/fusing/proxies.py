"""What stands for a tensor, or for something read of one, while a forward is captured.

It is a proxy of ``torch.fx`` that keeps to what Python would have seen: ``isinstance`` is right,
``x += y`` and ``x[i] = y`` write in place, sizes that are known by example can be asked for.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor, fx

from transfuse.fusing.stopping import FIRST_CALL

VALUE = "example_value"
"""Under this name a node's meta has its value, where that is known; tensors are fake ones."""
SIZED = "sized"
"""Under this one whether it is told by sizes, types and devices alone, not by what tensors hold."""

READ = frozenset({
    "shape", "ndim", "dtype", "device", "layout", "is_cuda", "is_cpu", "is_meta", "itemsize",
    "nbytes", "is_sparse", "is_quantized",
})  # fmt: skip
ASKED = frozenset({
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "get_device",
    "is_contiguous", "is_floating_point", "is_complex", "storage_offset", "__len__",
})  # fmt: skip
RANK = frozenset({"dim", "ndimension"})
PRIVATE = frozenset({"grad", "grad_fn", "_base", "_backward_hooks", "_version"})
"""What autograd notes on a tensor, which another one of the same sizes may have otherwise."""


def sized(node: fx.Node) -> bool:
    """Whether a node is told by the sizes, types and devices of tensors."""
    if node.op == "call_function" and node.target is getattr and node.args[1] in READ:
        return True
    if node.op == "call_method" and node.target in ASKED:
        return True
    if node.op not in ("call_function", "call_method") or not node.all_input_nodes:
        return False
    made_by = getattr(node.target, "__module__", None) or ""
    if node.op == "call_function" and made_by.split(".")[0] == "torch":
        return False
    return all(each.meta.get(SIZED, False) for each in node.all_input_nodes)


class Stand(fx.Proxy):
    """What stands for the value of a node."""

    tracer: Any

    def kind(self) -> type:
        """The type that ``isinstance`` is to see, in Python: torch's own code must not take it for
        a tensor, whose memory it would read.
        """
        value = self.node.meta.get(VALUE)
        if value is not None:
            self.tracer.depends(self.node)
            return Tensor if isinstance(value, Tensor) else type(value)
        if self.node.meta.get(SIZED):
            raise self.tracer.stop(f"asks what a size is: {FIRST_CALL}", pending=True)
        return Tensor

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("node", "tracer", "root", "attr", "_node"):
            raise self.tracer.stop(f"sets .{name} of a value of the call")
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name == "ndim":
            rank = self.tracer.rank(self)
            if rank is not None:
                return rank
        self._expect(name)
        return Read(self, name)

    def _expect(self, name: str) -> None:
        """That there is such an attribute: ``hasattr`` and ``getattr`` may be who asks."""
        value = self.node.meta.get(VALUE)
        tensor = isinstance(value, Tensor) or (value is None and self.node.op == "placeholder")
        if name in PRIVATE or (tensor and not hasattr(Tensor, name)):
            raise self.tracer.stop(f"asks a tensor for .{name}")
        if value is None and not tensor and not self.tracer.may_have(self, name):
            raise self.tracer.stop(f"asks a value for .{name}: {FIRST_CALL}", pending=True)
        if value is not None and not tensor:
            self.tracer.depends(self.node)
            if not hasattr(value, name):
                raise AttributeError(f"{type(value).__name__!r} object has no attribute {name!r}")

    def __hash__(self) -> int:
        """That of a size is its value's: it may be looked up in a table."""
        return int(self.tracer.decided(self, hash)) if self.node.meta.get(SIZED) else id(self)

    def __bool__(self) -> bool:
        return bool(self.tracer.decided(self, bool))

    def __int__(self) -> int:
        return int(self.tracer.decided(self, int))

    def __index__(self) -> int:
        return int(self.tracer.decided(self, operator.index))

    def __float__(self) -> float:
        return float(self.tracer.decided(self, float))

    def __ceil__(self) -> int:
        return int(self.tracer.decided(self, math.ceil))

    def __floor__(self) -> int:
        return int(self.tracer.decided(self, math.floor))

    def __round__(self, ndigits: int | None = None) -> Any:
        return self.tracer.decided(self, lambda value: round(value, ndigits))

    def __trunc__(self) -> int:
        return int(self.tracer.decided(self, math.trunc))

    def __repr__(self) -> str:
        return str(self.tracer.written(self, repr))

    def __str__(self) -> str:
        return str(self.tracer.written(self, str))

    def __format__(self, spec: str) -> str:
        return str(self.tracer.written(self, lambda value: format(value, spec)))

    def __len__(self) -> int:
        return int(self.tracer.length(self))

    def __setitem__(self, key: object, value: object) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


class Read(Stand):
    """An attribute of a value; called, it is a method."""

    def __init__(self, root: Stand, attr: str) -> None:
        self.root = root
        self.attr = attr
        self.tracer = root.tracer
        self._node: fx.Node | None = None

    @property
    def node(self) -> fx.Node:  # type: ignore[override]
        if self._node is None:
            args = (self.root, self.attr)
            self._node = self.tracer.create_proxy("call_function", getattr, args, {}).node
        return self._node

    def kind(self) -> type:
        return Read if self._node is None and self.attr not in READ else super().kind()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.attr in RANK:
            rank = self.tracer.rank(self.root)
            if rank is not None:
                return rank
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


def _in_place(name: str) -> Callable[[Stand, object], Any]:
    writes, plain = getattr(operator, f"i{name}"), getattr(operator, name, None)
    plain = plain or getattr(operator, f"{name}_")

    def apply(self: Stand, other: object) -> Any:
        # A number that was read of a tensor is not written to: the name stands for another one.
        target = plain if self.node.meta.get(SIZED) else writes
        return self.tracer.create_proxy("call_function", target, (self, other), {})

    return apply


for _name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
    "lshift", "rshift",
):  # fmt: skip
    setattr(Stand, f"__i{_name}__", _in_place(_name))
