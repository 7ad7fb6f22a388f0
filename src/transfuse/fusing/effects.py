"""What operations of a graph do beside giving a result: which memory they write to and share.

A fused operation stands where the last one it took in stood, so that earlier ones move there. None
may move across a write that it would see, nor write where something in between reads.
"""

import operator
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from torch import nn
from torch.fx import Node
from torch.fx.node import _side_effectful_functions

from transfuse.fusing.fused_call import FusedCall
from transfuse.fusing.meanings import OneStage, Pointwise
from transfuse.fusing.vocabulary import FRESH, Reading, read

FORMS = frozenset({"flatten", "squeeze"})
"""Operations of the vocabulary whose result is the memory of what they are given."""
PURE = ("torch", "_operator", "builtins", "math", "transfuse")
"""Modules whose functions write to memory only where their name or an argument says so."""


class Effects:
    """The effects of the operations of one graph; ``root``: where its attributes are found."""

    def __init__(self, nodes: Iterable[Node], root: nn.Module | None) -> None:
        self.root = root
        self.nodes = tuple(nodes)
        self.at = {node: at for at, node in enumerate(self.nodes)}
        self._memory: dict[Node, frozenset[object]] = {}
        for node in self.nodes:
            self._memory[node] = self._shared(node)
        changed = ((node, self.memory(written(node, root))) for node in self.nodes)
        self.writers = [(node, memory) for node, memory in changed if memory]
        self.borders = [node for node in self.nodes if border(node)]

    def memory(self, nodes: Iterable[Node]) -> frozenset[object]:
        """What stands for all memory that these values may share with others."""
        return frozenset().union(*(self._memory[node] for node in nodes))

    def fresh(self, node: Node) -> bool:
        """Whether a value is memory of its own, made in the graph."""
        return node.op.startswith("call") and self._memory[node] == {node}

    def in_the_way(self, taken: Iterable[Node], last: Node) -> str:
        """Why operations cannot move to where ``last`` stands; empty where they can."""
        moved = {*taken}
        first = min(self.at[node] for node in moved)
        end = self.at[last]
        for node in self.borders:
            if first < self.at[node] < end:
                return f"{node.name} stands in between"
        for node in moved:
            outer = [each for each in node.all_input_nodes if each not in moved]
            seen, begin = self.memory(outer), self.at[node]
            for writer, changed in self.writers:
                if writer not in moved and begin < self.at[writer] < end and changed & seen:
                    return f"{writer.name} writes in between to what {node.name} reads"
            changes = self.memory(each for each in written(node, self.root) if each not in moved)
            for other in self.nodes[begin + 1 : end] if changes else ():
                if other not in moved and changes & self.memory(other.all_input_nodes):
                    return f"{other.name} uses in between what {node.name} writes to"
        return ""

    def written_later(self, nodes: Iterable[Node], taken: Iterable[Node], last: Node) -> str:
        """Why gradients would not find what operations around a convolution read; mostly empty.

        A chain computes its values again from all that it reads, where torch's own operations may
        keep less: those of a sum keep nothing.
        """
        inner = {*taken}
        for node in nodes:
            own = inner.union(written(node, self.root))
            seen = self.memory(each for each in node.all_input_nodes if each not in own)
            for writer, changed in self.writers:
                if self.at[writer] > self.at[last] and changed & seen:
                    return f"{writer.name} writes later to what it reads"
        return ""

    def moved_again(self, nodes: Iterable[Node], fused: AbstractSet[Node]) -> str:
        """Why autograd would refuse what earlier operations have kept; mostly empty.

        Torch's norms do not tell it that they move running statistics, and chains do. ``fused``:
        operations of other chains, which keep copies.
        """
        for node in nodes:
            reading = read(node)
            inplace = reading is None or reading.inplace
            changed = self.memory(() if inplace else written(node, self.root))
            for other in self.nodes[: self.at[node]] if changed else ():
                if other in fused or isinstance(other.target, FusedCall):
                    continue
                if other.op.startswith("call") and changed & self.memory(other.all_input_nodes):
                    return f"{other.name} has read the statistics that it moves"
        return ""

    def _shared(self, node: Node) -> frozenset[object]:
        if node.op == "get_attr":
            return frozenset({self._attribute(str(node.target))})
        if node.op == "placeholder" or (node.op == "call_function" and node.target in FRESH):
            return frozenset({node})
        if node.op == "call_module" and _convolves(str(node.target), self.root):
            return frozenset({node})
        reading = read(node)
        if reading is not None and not reading.inplace:
            form = isinstance(reading.row, OneStage) and reading.row.name in FORMS
            if not form and not _passes_on(reading):
                return frozenset({node})
        return frozenset({node}) | self.memory(node.all_input_nodes)

    def _attribute(self, target: str) -> object:
        """The tensor itself, which modules may share; its name where it is not to be found."""
        found: object = self.root
        for name in target.split("."):
            # Read where it lies: a parametrised weight is computed when Python asks for it.
            held = found.__dict__ if isinstance(found, nn.Module) else {}
            rooms = (held.get(each, {}) for each in ("_modules", "_parameters", "_buffers"))
            found = next((room[name] for room in rooms if name in room), None)
        return target if found is None else id(found)


def _passes_on(reading: Reading) -> bool:
    """Whether it gives what it is given, as dropout does that drops nothing."""
    return not isinstance(reading.row, Pointwise | OneStage) and reading.row.name not in (
        "cat",
        "clone",
    )


def written(node: Node, root: nn.Module | None) -> tuple[Node, ...]:
    """The values whose memory an operation writes to, or may write to."""
    if node.op == "call_module":
        return () if _only_torchs(str(node.target), root) else tuple(node.all_input_nodes)
    if node.op not in ("call_function", "call_method"):
        return ()
    first = tuple(each for each in node.args[:1] if isinstance(each, Node))
    reading = read(node)
    if reading is not None:
        if reading.inplace:
            return first
        flag = {"batch_norm": "training", "instance_norm": "use_input_stats"}.get(reading.row.name)
        if flag is None or reading.bound[flag] is False:
            return ()
        moved = (reading.bound["running_mean"], reading.bound["running_var"])
        return tuple(each for each in moved if isinstance(each, Node))
    if isinstance(node.target, FusedCall):
        given = [each for each in node.args if isinstance(each, Node)]
        return tuple(given[at] for at in node.target.writes)
    if "out" in node.kwargs or node.kwargs.get("inplace") is True:
        return tuple(node.all_input_nodes)
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    if name.endswith("_") and not name.endswith("__"):
        return first
    if node.op == "call_method":
        return ()
    if node.target is operator.setitem or name in IN_PLACE_NAMES:
        return first
    module = str(getattr(node.target, "__module__", None) or "torch")
    return () if module.partition(".")[0] in PURE else tuple(node.all_input_nodes)


def _parts(target: str, root: nn.Module | None) -> list[nn.Module]:
    """A module left whole and all within it; none where it is not to be found."""
    try:
        return [] if root is None else [*root.get_submodule(target).modules()]
    except AttributeError:
        return []


def _convolves(target: str, root: nn.Module | None) -> bool:
    """Whether a module left whole is a convolution of torch's: its result is memory of its own."""
    return any(type(each) in (nn.Conv1d, nn.Conv2d, nn.Conv3d) for each in _parts(target, root)[:1])


def _only_torchs(target: str, root: nn.Module | None) -> bool:
    """Whether a module left whole is torch's own in all its parts, and none works in place."""
    parts = _parts(target, root)
    return bool(parts) and all(
        type(each).__module__.startswith("torch.nn.") and not getattr(each, "inplace", False)
        for each in parts
    )


IN_PLACE_NAMES = frozenset(
    name for name in dir(operator) if name.startswith("i") and hasattr(operator, name[1:])
)


def border(node: Node) -> bool:
    """Whether it changes what operations behind it do: autocast, gradients on or off."""
    if node.op != "call_function" or node.target not in _side_effectful_functions:
        return False
    name = getattr(node.target, "__name__", "")
    return node.target is not operator.setitem and not name.startswith(("_assert", "sym_constrain"))
