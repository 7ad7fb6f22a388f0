"""Graphs as functions of Python."""

from collections.abc import Callable
from operator import getitem
from types import SimpleNamespace
from typing import Any

from torch import fx, nn

from transfuse.fusing.paths import last, parent
from transfuse.fusing.watching import within


def of_root(graph: fx.Graph) -> Callable[..., Any]:
    """A function of the root, whose tensors it reads by name at each call, and of tensors."""
    code = graph.python_code("self")
    namespace = dict(code.globals)
    exec(compile(code.src, "<transfuse.fuse>", "exec"), namespace)
    function: Callable[..., Any] = namespace["forward"]
    return function


def of_modules(graph: fx.Graph, root: nn.Module) -> tuple[Callable[..., Any], SimpleNamespace]:
    """The same for modules that are known to be the root's: a function of these, and of tensors.

    To find a tensor by its name in a model takes longer than some operations on it: a module looks
    for each part of the name among its own attributes, its parameters and its buffers.
    """
    found = fx.Graph()
    found.output(found.graph_copy(graph, {}))
    held = SimpleNamespace()
    names: dict[int, str] = {}
    for node in list(found.nodes):
        if node.op == "call_module":
            node.target = _held(root.get_submodule(str(node.target)), held, names)
        elif node.op == "get_attr":
            module, name = root.get_submodule(parent(node.target)), last(node.target)
            owner, room = _held(module, held, names), within(module, name)
            if not room:
                node.target = f"{owner}.{name}"
                continue
            with found.inserting_before(node):
                tensors = found.get_attr(f"{owner}.{room}")
                node.replace_all_uses_with(found.call_function(getitem, (tensors, name)))
            found.erase_node(node)
    return of_root(found), held


def _held(module: nn.Module, held: SimpleNamespace, names: dict[int, str]) -> str:
    """The name of a module among those held."""
    name = names.setdefault(id(module), f"module{len(names)}")
    setattr(held, name, module)
    return name
