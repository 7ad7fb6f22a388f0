"""Graphs with a fused call in place of each transposed convolution and what joins it."""

from dataclasses import dataclass, field
from operator import getitem
from typing import Any

from torch import fx, nn
from torch.fx import Node

from transfuse.chain import Chain
from transfuse.fusing.fused_call import GEOMETRY, FusedCall
from transfuse.fusing.match import Match
from transfuse.fusing.matching import matches, text
from transfuse.fusing.sizes import ask_the_input


@dataclass(frozen=True)
class Site:
    """A transposed convolution of a graph, and what became of it.

    Attributes:
        path: the qualified name of the module that it came from; empty: the root itself, or unknown
        name: its name in the graph
        operations: the torch operations that were taken in, in order
        chain: what is called in their place; None: it was left as it is
        why: why it ends where it ends, or why it is not fused
        call: what is called in their place, with the operations that it stands for
    """

    path: str
    name: str
    operations: tuple[str, ...]
    chain: Chain | None
    why: str
    call: FusedCall | None = field(default=None, repr=False, compare=False)


def fuse_graph(graph: fx.Graph, root: nn.Module | None, compiled: bool = False) -> list[Site]:
    """Put a fused call in place of each transposed convolution with what joins it; in place.

    Args:
        graph: of placeholders, attributes, torch functions, tensor methods and modules left whole.
            ``meta["example_value"]`` of a node is a tensor like its value, where one is known.
        root: the module whose attributes the graph reads
        compiled: whether a compiler takes the graph from here and fuses what is left.
            Default: ``False``

    Returns:
        What became of every transposed convolution, in the graph's order
    """
    ask_the_input(graph)
    sites = []
    fused: dict[Node, Node] = {}
    for each in list(matches(graph, root, compiled)):
        if isinstance(each, Match):
            sites.append(_replaced(graph, each, fused))
        else:
            node, why = each
            sites.append(Site(_path(node), node.name, (text(node),), None, why))
    graph.lint()
    return sites


def _replaced(graph: fx.Graph, match: Match, others: dict[Node, Node]) -> Site:
    """Put the fused call of a match into its graph.

    ``others``: results that fused calls have taken the place of, which a match may still name; this
    one is added.
    """
    chain, operands = match.chain()
    order = {node: at for at, node in enumerate(graph.nodes)}
    taken = sorted(match.taken, key=order.__getitem__)
    weight = match.arguments["weight"]
    nodes = (match.x, weight, *(each.node for each in operands.values()))
    inputs: list[Any] = [others.get(each, each) for each in nodes]
    names = list(operands)
    geometry: dict[str, Any] = {}
    for key in GEOMETRY:
        given = match.arguments[key]
        if _of_graph(given):
            names.append(key)
            inputs.append(given)
            geometry[key] = key
        else:
            geometry[key] = tuple(given) if isinstance(given, list | tuple) else given
    spread = frozenset(name for name, each in operands.items() if each.spread)
    original = _original(taken, match.result, inputs)
    call = FusedCall(chain, names, spread, geometry, match.contiguous, original)
    path, name = _path(match.node), match.node.name
    operations = tuple(map(text, taken))
    with graph.inserting_after(match.result):
        fused = graph.call_function(call, tuple(inputs))
    fused.meta.update(match.result.meta)
    match.result.replace_all_uses_with(fused)
    others[match.result] = fused
    for node in reversed(taken):
        graph.erase_node(node)
    return Site(path, name, operations, chain, match.why, call)


def _of_graph(given: object) -> bool:
    """Whether it is a value of the graph, or a list with one."""
    parts = given if isinstance(given, list | tuple) else (given,)
    return any(isinstance(each, Node) for each in parts)


def _original(taken: list[Node], result: Node, inputs: list[Any]) -> fx.GraphModule:
    """The operations of a match as a module of their own, of the same inputs as the fused call."""
    graph = fx.Graph()
    known: dict[Node, Node] = {}
    for at, given in enumerate(inputs):
        made = graph.placeholder(f"input{at}")
        if isinstance(given, Node):
            known.setdefault(given, made)
            continue
        for place, part in enumerate(given):  # sizes, of which some are values of the graph
            if isinstance(part, Node):
                known.setdefault(part, graph.call_function(getitem, (made, place)))
    for node in taken:
        known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(known[result])
    return fx.GraphModule({}, graph)


def _path(node: Node) -> str:
    """The qualified name of the module that an operation came from, as far as it is known."""
    path = node.meta.get("path")
    if path is not None:
        return str(path)
    stack = node.meta.get("nn_module_stack")
    return str([*stack.values()][-1][0]) if stack else ""
