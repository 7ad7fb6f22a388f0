"""Compiled calls: one node for a chain, no break, no warning, no needless second graph."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.nn.functional import conv_transpose2d, max_pool2d

import transfuse
from transfuse import fills
from transfuse.operators import OPERATORS, Operator
from transfuse.stages import (
    add,
    batch_norm,
    clamp,
    exp,
    flatten,
    group_norm,
    layer_norm,
    leaky_relu,
    lp_pool,
    max_pool,
    pointwise,
    scale,
    softmax,
    squeeze,
)
from transfuse.stages import sigmoid as sigmoid_stage
from transfuse.stages import sum as sum_stage

X, W, B = torch.randn(2, 4, 7, 9), torch.randn(4, 6, 3, 3), torch.randn(6)
GLOBAL = [layer_norm("channels", eps=1e-3), scale(0.5)]
softmax_bias_scale = transfuse.conv_transpose2d_softmax_biasadd_scaling_sigmoid
gated = pointwise(lambda x, gate: x * gate + 0.25)


def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return transfuse.conv_transpose2d(x, w, b, stride=2)


def stages(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    then = [sigmoid_stage(), scale(2.5), group_norm(2, b, b), max_pool(2), add(b)]
    return transfuse.conv_transpose(x, w, b, stride=2, padding="same", then=then)


def own(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return transfuse.conv_transpose(x, w, then=[gated(b), *GLOBAL])


def unbatched(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return transfuse.conv_transpose(x[0], w, b, then=[scale(2.5)])


def operator(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return softmax_bias_scale(x, w, b, b, scaling_factor=2.0, stride=2)


CALLS: list[Callable[..., Tensor]] = [plain, stages, own, unbatched, operator]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    for call in CALLS:
        call(X, W, B)
    torch._dynamo.reset()
    counters.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    torch._dynamo.reset()


class Recorded:
    """A backend that runs graphs as they are, and keeps them."""

    def __init__(self) -> None:
        self.fw_graphs: list[Any] = []
        self.bw_graphs: list[Any] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        def keeping(graphs: list[Any]) -> Any:
            return lambda graph, inputs: graphs.append(graph) or make_boxed_func(graph.forward)

        compilers = {"fw": self.fw_graphs, "bw": self.bw_graphs}
        made = {f"{key}_compiler": keeping(graphs) for key, graphs in compilers.items()}
        return aot_autograd(**made)(graph, inputs)


def nodes(graph: Any) -> list[str]:
    """The operations of a graph; views count for nothing."""
    found = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    ignored = ("sym_", "squeeze", "getitem", "select", "<built-in", "copy", "detach", "alias")
    return [each for each in found if not any(word in each for word in ignored)]


QUICK = (stages, operator)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "call", [pytest.param(each, marks=() if each in QUICK else pytest.mark.long) for each in CALLS]
)
def test_one_node(call: Any, dynamic: bool) -> None:
    seen = Recorded()
    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend=seen)
    sizes = [(2, 4, 7, 9), (3, 4, 5, 8), (4, 4, 11, 6)] if dynamic else [(2, 4, 7, 9)] * 3
    for shape in sizes:
        x = torch.randn(shape)
        assert compiled(x, W, B).equal(call(x, W, B)), "the same kernels ran"
    assert [nodes(graph) for graph in seen.fw_graphs] == [["transfuse.chain.default"]]
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    ("call", "dynamic"),
    [
        (stages, True),
        (operator, False),
        pytest.param(stages, False, marks=pytest.mark.long),
        pytest.param(operator, True, marks=pytest.mark.long),
    ],
)
def test_training(call: Any, dynamic: bool) -> None:
    """One node forward, one backward; what is kept for it are the inputs."""
    seen = Recorded()
    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend=seen)
    ours, theirs = ([t.clone().requires_grad_() for t in (X, W, B)] for _ in range(2))
    compiled(*ours).square().sum().backward()
    call(*theirs).square().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad, b.grad)
    assert [nodes(graph) for graph in seen.fw_graphs] == [["transfuse.chain.default"]]
    (backward,) = (nodes(graph) for graph in seen.bw_graphs)
    assert backward.count("transfuse.chain_backward.default") == 1
    assert {*backward} <= {"transfuse.chain_backward.default", "aten.add.Tensor"}


@pytest.mark.parametrize("slug", OPERATORS)
def test_the_first_call_of_all(slug: str) -> None:
    """An operator whose document nobody has read yet."""
    known = OPERATORS[slug]
    case = known.case("small")
    x, weight, operands = fills.real(known.bound(case), case.problem, 0)
    options = {name: getattr(case.problem, name) for name in known.options}
    new = Operator(slug, known.chain)

    def call(x: Tensor, weight: Tensor) -> Tensor:
        return new(x, weight, *operands.values(), **case.scalars, **options)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    found = compiled(x, weight)
    assert found.equal(call(x, weight))


def skipping(x: Tensor, w: Tensor, skip: Tensor) -> Tensor:
    return transfuse.conv_transpose(x, w, stride=2, output_size=skip.shape[2:], then=[add(skip)])


def test_sizes_asked_for_are_left_open() -> None:
    """As a decoder asks for those of its skip connection."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(skipping, fullgraph=True, dynamic=True, backend=counter)
    for high, wide in ((7, 9), (8, 11), (9, 10)):
        x, skip = torch.randn(2, 4, high, wide), torch.randn(2, 6, 2 * high + 2, 2 * wide + 1)
        assert compiled(x, W, skip).equal(skipping(x, W, skip))
    assert counter.frame_count == 1


OUTSIDE = {
    "axes": [sum_stage("channels", keepdim=True), squeeze(1)],
    "flattened": [flatten()],
    "window": [exp(), lp_pool(2, 2)],
    "axis": [softmax(-1), scale(2)],
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_numbers_of_stages_made_outside(name: str) -> None:
    """Where sizes are left open, a trace has symbols for these, too."""

    then = OUTSIDE[name]

    def call(x: Tensor, w: Tensor) -> Tensor:
        return transfuse.conv_transpose(x, w, then=then)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    assert compiled(X, W).equal(call(X, W))


def test_functions_of_ones_own_made_in_a_trace() -> None:
    def call(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        def half(x: Any, share: Any = 0.5) -> Any:
            return share * x

        then = [pointwise(lambda x, a: x * a + 0.25)(b), pointwise(half)(), pointwise(half)(b)]
        return transfuse.conv_transpose(x, w, then=then)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call, fullgraph=True, backend=counter)
    for _ in range(3):
        assert compiled(X, W, B).equal(call(X, W, B))
    assert counter.frame_count == 1


def test_other_calls_do_not_compile_it_again() -> None:
    """What the package keeps of other calls is nothing that a graph is bound to."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(stages, fullgraph=True, backend=counter)
    for number in (0.5, 1.5, 2.5):
        assert compiled(X, W, B).equal(stages(X, W, B))
        transfuse.conv_transpose(X, W, then=[scale(number)])
        transfuse.conv_transpose(X[..., : int(2 + number)], W, backend="eager")
    assert counter.frame_count == 1


def test_numbers_stand_beside_the_line() -> None:
    """A graph with another number differs in that number, and not in its chain."""

    def call(x: Tensor, w: Tensor, gain: float) -> Tensor:
        return transfuse.conv_transpose(x, w, then=[scale(gain), sigmoid_stage()])

    seen = Recorded()
    compiled = torch.compile(call, fullgraph=True, dynamic=False, backend=seen)
    for number in (0.5, -1 / 3):
        assert compiled(X, W, number).equal(call(X, W, number))
    found = [
        node.args[3:5]
        for graph in seen.fw_graphs
        for node in graph.graph.nodes
        if str(node.target) == "transfuse.chain.default"
    ]
    line = "conv_transpose2d -> scale(numbers[0]) -> sigmoid"
    assert repr(found) == repr([([0.5], line), ([-1 / 3], line)])


CHANGING: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "scale": (
        lambda x, w, t: transfuse.conv_transpose(x, w, then=[scale(t)]),
        lambda x, w, t: conv_transpose2d(x, w) * t,
    ),
    "clamp": (
        lambda x, w, t: transfuse.conv_transpose(x, w, then=[clamp(-1.0, t), max_pool(2)]),
        lambda x, w, t: max_pool2d(conv_transpose2d(x, w).clamp(-1.0, t), 2),
    ),
    "before and computed": (
        lambda x, w, t: transfuse.conv_transpose(x, w, before=[add(t)], then=[leaky_relu(t / 8)]),
        lambda x, w, t: torch.nn.functional.leaky_relu(conv_transpose2d(x + t, w), t / 8),
    ),
    "operator": (
        lambda x, w, t: softmax_bias_scale(x, w, B, B, scaling_factor=t),
        lambda x, w, t: ((conv_transpose2d(x, w, B).softmax(1) + B[:, None, None]) * t).sigmoid(),
    ),
}


@pytest.mark.parametrize("name", CHANGING)
def test_a_number_that_changes_from_call_to_call(name: str) -> None:
    """No more graphs than torch has of the same operations: one for the first number, one for
    those after it. Not one for each.
    """
    counts = []
    for call in CHANGING[name]:
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(call, fullgraph=True, backend=counter)
        for number in (0.5, 0.25, 1 / 3, 2.5):
            torch.testing.assert_close(compiled(X, W, number), call(X, W, number))
        counts.append(counter.frame_count)
    ours, torchs = counts
    assert ours <= min(torchs, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_beside_16_bits_is_not_rounded_to_them(dtype: torch.dtype) -> None:
    """So it stays a number, at the price of a graph for each."""
    call, _ = CHANGING["scale"]
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    x, w = X.to(dtype), W.to(dtype)
    for number in (1 / 3, 1.001):
        assert compiled(x, w, number).equal(call(x, w, number))


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_beside_a_number_that_changes(dynamic: bool | None) -> None:
    call, plain = CHANGING["scale"]
    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for number in (0.5, 0.25, 1 / 3):
        ours, theirs = ([t.clone().requires_grad_() for t in (X, W)] for _ in range(2))
        compiled(*ours, number).square().sum().backward()
        plain(*theirs, number).square().sum().backward()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_running_statistics() -> None:
    """They move as outside, once a call, and the graph writes to no more than these."""

    def call(x: Tensor, w: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return transfuse.conv_transpose(x, w, then=[batch_norm(mean, var, training=True)])

    seen = Recorded()
    compiled = torch.compile(call, fullgraph=True, backend=seen)
    ours, theirs = ([torch.zeros(6), torch.ones(6)] for _ in range(2))
    for _ in range(3):
        assert compiled(X, W, *ours).equal(call(X, W, *theirs))
        assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))
    assert nodes(seen.fw_graphs[0]) == ["transfuse.chain_updating.default"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    compiled = torch.compile(stages, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=dtype):
        y, expected = compiled(X, W, B), stages(X, W, B)
    assert y.dtype == expected.dtype == dtype
    assert y.equal(expected)


def test_a_backend_by_name() -> None:
    def call(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return transfuse.conv_transpose2d(x, w, b, backend="cpu")

    def eager(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return transfuse.conv_transpose2d(x, w, b, backend="eager")

    for function, node in ((call, "transfuse.chain.default"), (eager, "aten.convolution.default")):
        seen = Recorded()
        compiled = torch.compile(function, fullgraph=True, backend=seen)
        assert compiled(X, W, B).equal(function(X, W, B))
        assert nodes(seen.fw_graphs[0]) == [node]


def test_compiled_autograd() -> None:
    """A backward pass that is compiled as a whole, of calls that were not."""
    warnings.simplefilter("default")  # torch's own, when it looks for gradients of what it wraps
    ours, theirs = ([t.clone().requires_grad_() for t in (X, W, B)] for _ in range(2))
    loss = stages(*ours).square().sum()
    with compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        loss.backward()
    stages(*theirs).square().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_layouts(form: torch.memory_format) -> None:
    compiled = torch.compile(stages, fullgraph=True, backend="aot_eager")
    x = X.contiguous(memory_format=form)
    y, expected = compiled(x, W, B), stages(x, W, B)
    assert y.equal(expected)
    assert y.stride() == expected.stride()


@pytest.mark.long
@pytest.mark.parametrize("call", [stages, operator])
def test_inductor(call: Any) -> None:
    warnings.simplefilter("default")  # torch's own, when it first loads its compiler
    compiled = torch.compile(call, fullgraph=True)
    ours, theirs = ([t.clone().requires_grad_() for t in (X, W, B)] for _ in range(2))
    compiled(*ours).square().sum().backward()
    call(*theirs).square().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
