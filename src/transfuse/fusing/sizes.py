"""Sizes that are asked of values between a convolution and the end of its chain.

``y.shape`` needs no ``y``: sizes follow from those of the convolution's input and weight. Computed
from these, they do not keep operations on ``y`` out of one kernel.
"""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor, fx
from torch.fx import Node

from transfuse.fusing.meanings import Nothing, Pointwise
from transfuse.fusing.vocabulary import CONVOLVES, convolution, read

KEEP = frozenset(
    (
        "batch_norm",
        "group_norm",
        "instance_norm",
        "layer_norm",
        "rms_norm",
        "softmax",
        "log_softmax",
    )
)
"""Operations that are not pointwise and give what has the sizes of what they are given."""


def convolved_sizes(
    x: Tensor,
    weight: Tensor,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    output_padding: int | Sequence[int],
    groups: int,
    dilation: int | Sequence[int],
) -> torch.Size:
    """The sizes of what a transposed convolution gives."""
    rank = weight.dim() - 2
    along = [
        [each] * rank if isinstance(each, int | torch.SymInt) else [*each] * (rank // len(each))
        for each in (stride, padding, output_padding, dilation)
    ]
    space = [
        (n - 1) * step - 2 * off + gap * (k - 1) + more + 1
        for n, k, step, off, more, gap in zip(
            x.shape[-rank:], weight.shape[2:], *along, strict=True
        )
    ]
    return torch.Size([*x.shape[: -rank - 1], weight.shape[1] * groups, *space])


ALIKE = frozenset(("dim", "ndimension", "ndim", "device", "get_device", "is_cuda", "is_cpu"))
"""What a convolution's result has in common with its input."""


def ask_the_input(graph: fx.Graph) -> None:
    """Compute the sizes that a graph asks of a convolution's result from what goes into it."""
    for node in list(graph.nodes):
        found = convolution(node)
        if found is None or not all(isinstance(found[1][k], Node) for k in ("input", "weight")):
            continue
        given = tuple(found[1][name] for name in CONVOLVES if name != "bias")
        for query in _queries(node):
            if _asked(query) in ALIKE:
                query.update_arg(0, given[0])
                continue
            with graph.inserting_before(query):
                sizes = graph.call_function(convolved_sizes, given)
                if query.args[1:] and query.op == "call_method":
                    sizes = graph.call_function(operator.getitem, (sizes, query.args[1]))
            sizes.meta.update(query.meta)
            query.replace_all_uses_with(sizes)
            graph.erase_node(query)


def _queries(node: Node) -> list[Node]:
    """What asks for the sizes of a value, or of those that are made of it and have the same."""
    found = []
    for user in node.users:
        reading = read(user)
        if _asked(user) in ("shape", "size", *ALIKE):
            found.append(user)
        elif reading is not None and user.all_input_nodes[0] is node:
            alone = len(user.all_input_nodes) == 1
            same = isinstance(reading.row, Pointwise) and alone
            if same or isinstance(reading.row, Nothing) or reading.row.name in KEEP:
                found += _queries(user)
    return found


def _asked(node: Node) -> str:
    """The attribute or method of a tensor that an operation asks for; empty for others."""
    if node.op == "call_method" and not node.kwargs:
        return str(node.target)
    if node.op == "call_function" and node.target is getattr:
        return str(node.args[1])
    return ""
