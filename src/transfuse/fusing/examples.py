"""What example values tell of a match: whether shapes fit, and whether a backend would fuse it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from transfuse import dispatch
from transfuse.chain import Chain
from transfuse.errors import UnsupportedError
from transfuse.front import call
from transfuse.fusing.fused_call import GEOMETRY, met
from transfuse.fusing.match import WRONG, Match
from transfuse.problem import Problem
from transfuse.stages import Stage
from transfuse.tensors import describe


class Unknown(Exception):
    """A value that no example is known of."""


class Examples:
    """The example values of a graph; ``root``: where its attributes are found."""

    def __init__(self, root: nn.Module | None) -> None:
        self.root = root
        self._steady: dict[Node, bool] = {}

    def value(self, node: object) -> Any:
        """A value by example; what is no value of the graph is itself."""
        if isinstance(node, list | tuple):
            return tuple(map(self.value, node))
        if not isinstance(node, Node):
            return node
        found = node.meta.get("example_value")
        if found is None and node.op == "get_attr" and self.root is not None:
            found = _attribute(self.root, str(node.target))
        if found is None:
            raise Unknown
        if isinstance(found, torch.SymInt | torch.SymFloat):
            found = found.node.hint
            if found is None:
                raise Unknown
        return found

    def steady(self, node: Node) -> bool:
        """Whether a value is the same in every call: a parameter, or made of such alone."""
        if node not in self._steady:
            found = node.op == "get_attr" or isinstance(
                node.meta.get("example_value"), nn.Parameter
            )
            if not found and node.op in ("call_function", "call_method"):
                inputs = node.all_input_nodes
                found = bool(inputs) and all(self.steady(each) for each in inputs)
            self._steady[node] = found
        return self._steady[node]

    def unfit(
        self,
        match: Match,
        before: Iterable[Stage] = (),
        then: Iterable[Stage] = (),
        result: Node | None = None,
    ) -> str:
        """Why a match with further stages would not run fused; empty where it does, or may.

        That a backend yields to a faster one is no reason yet: with more stages it may not.
        """
        try:
            reached = self._reached(match, before, then, result)
        except WRONG as error:
            return str(error)
        if reached is None:
            return ""
        choice = _choice(*reached)
        if choice is None:
            return ""
        refused = [f"{each.name}: {verdict}" for each, verdict in choice.passed if not verdict.ok]
        if choice.backend.differentiable:
            yields = any(verdict.ok for _, verdict in choice.passed)
            return "" if yields else "; ".join(refused)
        ends = [each.does for each in choice.backend.plan(*reached).passes]
        ends = [does for does in ends if does.endswith("in torch")]
        return f"{choice.backend.name} would leave it to torch: {ends[0]}" if ends else ""

    def slower(self, match: Match) -> str:
        """Why a match as it is would run as torch operations after all; empty where it does not."""
        reached = self._reached(match)
        choice = None if reached is None else _choice(*reached)
        if choice is None or not choice.backend.differentiable:
            return ""
        return "; ".join(f"{each.name}: {verdict}" for each, verdict in choice.passed)

    def passes(self, match: Match) -> int | None:
        """How many passes over memory a match takes as it is; None where that is not known."""
        reached = self._reached(match)
        choice = None if reached is None else _choice(*reached)
        if reached is None or choice is None or choice.backend.differentiable:
            return None
        return len(choice.backend.plan(*reached).passes)

    def _reached(
        self,
        match: Match,
        before: Iterable[Stage] = (),
        then: Iterable[Stage] = (),
        result: Node | None = None,
    ) -> tuple[Chain, Problem] | None:
        """The chain and the problem of a call of the examples; what is wrong with it raises.

        None where an example is not known, or the device of one is not here.
        """
        chain, operands = match.chain(before, then)
        try:
            x = self.value(match.x)
            given = {name: self.value(each.node) for name, each in operands.items()}
            options = [self.value(match.arguments[each]) for each in GEOMETRY]
            wanted = None if result is None else tuple(map(_size, self.value(result).shape))
            like, weight = _like(x, x), _like(self.value(match.arguments["weight"]), x)
            named = {
                name: met(_like(each, x), x.dtype, match.rank + 2)
                if operands[name].spread
                else _like(each, x)
                for name, each in given.items()
                if isinstance(each, Tensor)
            }
        except Unknown:
            return None
        numbers = {k: v for k, v in given.items() if not isinstance(v, Tensor)}
        if like.dim() != match.rank + 2:
            raise ValueError(f"its input has {like.dim()} axes, and a chain is of batches")
        reached = dispatch.reached(lambda: call(chain, like, weight, named, numbers, *options))
        fitted, problem, _, _ = reached.args
        made = fitted.result(problem)
        if wanted is not None and made != wanted:
            raise ValueError(f"it gives {list(wanted)}, and the chain would give {list(made)}")
        if x.device.type == "cuda" and not torch.cuda.is_available():
            return None
        there = describe(torch.empty(0, dtype=x.dtype, device=x.device))
        return fitted, replace(problem, device=there["device"], precision=there["precision"])


def _choice(chain: Chain, problem: Problem) -> dispatch.Chosen | None:
    """What would run a chain; None where a call is to say that nothing does."""
    try:
        return dispatch.decide(chain, problem)
    except UnsupportedError:
        return None


def _attribute(root: nn.Module, target: str) -> Any:
    found: Any = root
    for name in target.split("."):
        found = getattr(found, name, None)
    return found


def _like(tensor: Any, x: Tensor) -> Tensor:
    """A tensor of sizes alone, in the type of the input if it is floating point."""
    if not isinstance(tensor, Tensor):
        raise Unknown
    sizes = tuple(map(_size, tensor.shape))
    strides = tuple(map(_size, tensor.stride()))
    kind = x.dtype if tensor.is_floating_point() else tensor.dtype
    return torch.empty_strided(sizes, strides, dtype=kind, device="meta")


def _size(size: Any) -> int:
    if type(size) is int:
        return size
    hint = size.node.hint
    if hint is None:
        raise Unknown
    return int(hint)
