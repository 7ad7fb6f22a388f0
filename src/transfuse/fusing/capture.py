"""A module's forward as a graph of torch's functions, with the modules that it calls inlined."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from transfuse.fusing.calling import Arguments
from transfuse.fusing.module_kinds import CONVOLUTIONS, transposed
from transfuse.fusing.paths import above, last, parent
from transfuse.fusing.proxies import SIZED
from transfuse.fusing.stopping import Left, Untraceable
from transfuse.fusing.tracer import Tracer
from transfuse.fusing.vocabulary import knows
from transfuse.fusing.watching import State

CALLS = ("call_function", "call_method", "call_module")


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
    left: Mapping[str, Left] = field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """The number of tensors that the graph is given."""
        nodes = () if self.graph is None else self.graph.nodes
        return sum(node.op == "placeholder" for node in nodes)


def capture(
    root: nn.Module,
    forward: Callable[..., Any],
    given: Arguments | None = None,
    original: Callable[[nn.Module], Callable[..., Any]] = lambda module: module.forward,
    left: Mapping[str, Left] | None = None,
) -> Captured:
    """A forward as a graph, or why it is none (:class:`Untraceable`).

    Without arguments, each parameter of ``forward`` that has no default stands for a tensor of
    which nothing is known. ``original``: the forward of a module, were it not fused.
    ``left``: modules that another capture in the same state had to leave whole.
    """
    whole: dict[str, Left] = {**left} if left else {}
    while True:  # once more for each module that has to be left whole
        tracer = Tracer(root, whole, original)
        stop = tracer.run(forward, given)
        if stop is not None:
            at = tracer.stack[-1]
            if not at or at in whole:
                raise Untraceable(stop.reason, stop.pending)
            whole[at] = Left(stop.reason, stop.pending)
            continue
        without = _without_convolution(tracer.graph) - whole.keys()
        if not without:
            break
        whole |= dict.fromkeys(without, Left())
    modules = dict(root.named_modules(remove_duplicate=False))
    reasons = {
        path: left.reason
        for path, left in {**whole, **tracer.hooked}.items()
        if left.reason and any(map(transposed, modules[path].modules()))
    }
    pending = any(left.pending for left in whole.values())
    watched = {id(modules[path]): modules[path] for path in _watched(tracer)}
    return Captured(
        tracer.graph,
        tracer.returns,
        State(watched.values(), root, _shaped(tracer)),
        reasons,
        tuple(tracer.decisions),
        tracer.grad,
        given is None and (pending or tracer.assumed),
        whole,
    )


def _without_convolution(graph: fx.Graph) -> set[str]:
    """The modules to be left whole, outermost first: no transposed convolution is in them, but
    something that cannot be part of a chain.
    """
    convolves: set[str] = {""}
    foreign: set[str] = set()
    held: set[fx.Node] = set()  # what is made of parameters and buffers alone: operands
    for node in graph.nodes:
        around, made_of = {*above(node.meta["path"])}, node.all_input_nodes
        if node.op == "get_attr" or (node.op in CALLS and made_of and held >= {*made_of}):
            held.add(node)
        elif node.target in CONVOLUTIONS:
            convolves |= around
        elif node.op in CALLS and not node.meta[SIZED] and not knows(node):
            foreign |= around
    foreign -= convolves
    return {path for path in foreign if not {*above(path)} - {path} & foreign}


def _watched(tracer: Tracer) -> set[str]:
    """The modules whose state the graph depends on: called by it inlined, or on the way; and all
    of those left whole that gave what Python asked about.
    """
    ways = {parent(node.target) for node in tracer.graph.nodes
            if node.op in ("get_attr", "call_module")}  # fmt: skip
    return {up for path in tracer.traced | ways for up in above(path)} | tracer.answered()


def _shaped(tracer: Tracer) -> list[tuple[nn.Module, str]]:
    """The tensors of modules whose sizes decided something in Python."""
    names = [str(node.target) for node in tracer.asked if node.op == "get_attr"]
    held = [(tracer.root.get_submodule(parent(each)), last(each)) for each in names]
    return [each for each in held if not parametrize.is_parametrized(*each)]
