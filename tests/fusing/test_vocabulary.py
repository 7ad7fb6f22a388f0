"""Every row of the vocabulary, in every form that torch has for it, against torch in float64."""

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from tests.fusing.captured import close, gradients, never_unfused
from transfuse.fusing import vocabulary
from transfuse.fusing.meanings import Beside, Meaning, Nothing, OneStage, Pointwise
from transfuse.fusing.rewriting import fuse_graph
from transfuse.fusing.vocabulary import FUNCTIONS, METHODS

N, C, L = 2, 4, 6
"""Samples, channels and positions along each axis of what comes out of the convolution."""
T, W, M, V, PAIR = "T", "W", "M", "V", "PAIR"
"""A tensor like the values, one per channel, a mask; the values themselves; values and a tensor."""
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("add", "sub", "rsub", "mul", "div", "minimum", "maximum"), (V, T)),
    **dict.fromkeys(("gt", "lt", "ge", "le", "eq", "ne"), (V, 0.1)),
    **dict.fromkeys(("logical_and", "logical_or"), (V, M)),
    "pow": (V, 3),
    "clamp": (V, -0.5, 0.7),
    "clamp_min": (V, 0.1),
    "clamp_max": (V, 0.1),
    "masked_fill": (V, M, 0.3),
    "where": (M, V, T),
    "prelu": (V, W),
    "threshold": (V, 0.1, 0.2),
    "rrelu": (V, 0.1, 0.4, False),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "logsumexp"), (V, 1, True)),
    **dict.fromkeys(("softmax", "log_softmax"), (V, 1)),
    **dict.fromkeys(("max", "min"), (V, 1, True)),
    "batch_norm": (V, "MEAN", "VAR", W, W),
    "instance_norm": (V, None, None, W, W),
    "group_norm": (V, 2, W, W),
    "layer_norm": (V, (L,), None),
    "rms_norm": (V, (L,)),
    "flatten": (V, 1),
    "squeeze": (V, 1),
    "pixel_shuffle": (V, 2),
    "dropout": (V, 0.5, False),
    **dict.fromkeys(("dropout1d", "dropout2d", "dropout3d", "alpha_dropout"), (V, 0.5, False)),
    "cat": (PAIR, 1),
}
"""What an operation is called with, where that is more than the values."""
POSITIVE = ("log", "sqrt", "rsqrt", "log1p")


def arguments(row: Meaning) -> tuple[Any, ...]:
    if row.name in ARGUMENTS:
        return ARGUMENTS[row.name]
    if "pool" in row.name:
        adaptive = (V, 2)
        return adaptive if "adaptive" in row.name else (V, 2, 2) if "lp" in row.name else (V, 2)
    return (V,)


def row_of(choose: vocabulary.Choose) -> Meaning:
    found = choose((None, 1), {})
    assert found is not None
    return found


FORMS = [
    *(("call_function", target, row_of(choose)) for target, choose in FUNCTIONS.items()),
    *(("call_method", target, row_of(choose)) for target, choose in METHODS.items()),
]


def graph_of(op: str, target: Any, row: Meaning) -> tuple[fx.Graph, int]:
    """conv -> the operation, by one of its forms; and the spatial axes."""
    rank = row.rank or 2
    graph = fx.Graph()
    names = ("x", "w", "other", "channel", "mask", "mean", "var")
    x, w, other, channel, mask, *running = map(graph.placeholder, names)
    y = graph.call_function(getattr(F, f"conv_transpose{rank}d"), (x, w), {"stride": 2})
    known = {V: y, T: other, W: channel, M: mask, PAIR: [y, other]} | dict(
        zip(("MEAN", "VAR"), running, strict=True)
    )
    given = tuple(
        known.get(each, each) if isinstance(each, str) else each for each in arguments(row)
    )
    if op == "call_method" and row.name == "where":
        given = (y, mask, other)
    if target is F.softmax or target is F.log_softmax:
        given = (y, 1, 3)
    z = graph.create_node(op, target, given)
    if isinstance(row, OneStage) and row.pair:
        z = graph.call_function(operator.getitem, (z, 0))
    if isinstance(row, Pointwise) and row.condition:
        z = graph.call_function(torch.where, (z, y, graph.call_function(torch.mul, (y, 0.5))))
    graph.output(z)
    return graph, rank


def tensors(rank: int, positive: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def drawn(*sizes: int) -> Tensor:
        values = torch.randn(*sizes, dtype=torch.float64, generator=generator)
        return values.abs() + 0.1 if positive else values

    space = (L,) * rank
    mask = torch.rand(N, C, *space, generator=generator) > 0.5
    x, w = drawn(N, 3, *(L // 2,) * rank), drawn(3, C, *(2,) * rank)
    return [x, w, drawn(N, C, *space), drawn(C), mask, drawn(C), drawn(C).abs() + 0.5]


def name_of(op: str, target: Any) -> str:
    if op == "call_method":
        return f"Tensor.{target}"
    module = getattr(target, "__module__", None) or "torch"
    return f"{module}.{getattr(target, '__name__', target)}"


def not_read(op: str, target: Any, row: Meaning) -> bool:
    """Forms that are not read: conditions written as numbers, squeeze_ that changes a tensor."""
    inplace = str(target if op == "call_method" else target.__name__).endswith("_")
    condition = isinstance(row, Pointwise) and row.condition
    return target in vocabulary.IN_PLACE and inplace and (condition or row.name == "squeeze")


@pytest.mark.parametrize(
    ("op", "target", "row"), FORMS, ids=[f"{name_of(op, target)}" for op, target, _ in FORMS]
)
def test_every_form_of_every_row_joins_and_is_the_same(op: str, target: Any, row: Meaning) -> None:
    graph, rank = graph_of(op, target, row)
    before = fx.GraphModule({}, graph)
    after = fx.GraphModule({}, graph)
    (site,) = fuse_graph(after.graph, None)
    after.recompile()
    assert site.chain is not None
    if not_read(op, target, row):
        assert len(site.operations) == 1
        return
    assert len(site.operations) > 1, site.why
    assert site.why == "its result is returned"
    assert [n.op for n in after.graph.nodes].count("call_function") == 1
    given = tensors(rank, row.name in POSITIVE)
    expected, of_expected = gradients(before, given, learning=5)
    found, of_found = gradients(never_unfused(after, site), given, learning=5)
    close(expected, found)
    # torch's own derivative of hardsigmoid is 1/6 in float32.
    close(of_expected, of_found, 1e-7 if row.name == "hardsigmoid" else 1e-11)


def test_the_forms_are_many() -> None:
    """What the table is filled with follows from torch's own names: none may be lost unseen."""
    names = {name_of(op, target) for op, target, _ in FORMS}
    assert {"torch.relu", "Tensor.relu_", "torch.nn.functional.relu", "_operator.iadd"} <= names
    kinds = {type(row) for _, _, row in FORMS}
    assert kinds == {Pointwise, OneStage, Beside, Nothing}
    assert len(FORMS) > 280


def test_knows_what_can_join_and_the_convolution_itself() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for known, function, given in (
        (True, F.conv_transpose2d, (x, x)),
        (True, F.relu, (x,)),
        (True, operator.add, (x, 1)),
        (True, F.dropout, (x,)),  # whether it does nothing is seen by its arguments
        (False, F.conv2d, (x, x)),
        (False, torch.cumsum, (x, 1)),
        (False, torch.max, (x,)),  # over all axes
        (False, torch.relu, (x, 1, 2)),  # as torch cannot be called
    ):
        assert vocabulary.knows(graph.call_function(function, given)) is known, function
    assert not vocabulary.knows(x)
    assert vocabulary.knows(graph.call_method("relu_", (x,)))
    assert not vocabulary.knows(graph.call_method("cumsum", (x, 1)))
