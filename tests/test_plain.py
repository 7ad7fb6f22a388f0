"""Only plain tensors reach the fused backends; all else runs as torch operations, or raises.

Where torch only traces or watches what is called, it sees one operation.

A kind of tensor that has no memory would end the process, so those run in one of their own.
"""

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx import symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import transfuse
from transfuse import plain
from transfuse import stages as s
from transfuse.operators import OPERATORS
from transfuse.stages import Stage

torch.manual_seed(0)
X, W, B = torch.randn(2, 4, 5, 6), torch.randn(4, 6, 3, 3), torch.randn(6)

Call = Callable[..., Tensor]


def then(make: Callable[[Tensor], list[Stage]]) -> Call:
    """A chain over x, weight and one tensor per channel."""

    def call(x: Tensor, weight: Tensor, b: Tensor) -> Tensor:
        return transfuse.conv_transpose(x, weight, b, stride=2, then=make(b))

    return call


def conv(x: Tensor, weight: Tensor, b: Tensor) -> Tensor:
    return transfuse.conv_transpose2d(x, weight, b, stride=2)


def unbatched(x: Tensor, weight: Tensor, b: Tensor) -> Tensor:
    return transfuse.conv_transpose2d(x[0], weight, b, stride=2)


def pooled_first(x: Tensor, weight: Tensor, b: Tensor) -> Tensor:
    return transfuse.conv_transpose(x, weight, b, before=[s.avg_pool(2)])


CHAINS: dict[str, Call] = {
    "conv_transpose2d": conv,
    "unbatched": unbatched,
    "avg_pool first": pooled_first,
    "add": then(lambda b: [s.add(b)]),
    "scale": then(lambda b: [s.scale(b)]),
    "clamp": then(lambda b: [s.clamp(-1, 1)]),
    "sigmoid": then(lambda b: [s.sigmoid()]),
    "tanh": then(lambda b: [s.tanh()]),
    "sum": then(lambda b: [s.sum("channels", keepdim=True)]),
    "softmax over channels": then(lambda b: [s.softmax("channels")]),
    "softmax over space": then(lambda b: [s.softmax("space")]),
    "batch_norm": then(lambda b: [s.batch_norm(weight=b, bias=b, training=True)]),
    "batch_norm without weight": then(lambda b: [s.batch_norm(training=True)]),
    "group_norm": then(lambda b: [s.group_norm(2, b, b)]),
    "max_pool": then(lambda b: [s.max_pool(2)]),
    "avg_pool": then(lambda b: [s.avg_pool(2)]),
}


@pytest.fixture(params=[*CHAINS, *OPERATORS])
def case(request: pytest.FixtureRequest, given: Callable[..., Any]) -> tuple[Call, list[Tensor]]:
    """A call on tensors alone, and its tensors: each stage, and each operator."""
    if request.param in CHAINS:
        return CHAINS[request.param], [X, W, B]
    found = given(request.param, "small")
    return found.function, list(found.tensors)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# ---- traces, modes and transforms, through every stage ---------------------------------------


def test_fake_tensors(case: Any) -> None:
    call, tensors = case
    expected = call(*tensors)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in tensors]
        inside = call(*fakes)
    for y in (inside, call(*fakes)):
        assert type(y).__name__ == "FakeTensor"
        assert y.shape == expected.shape


def test_meta_tensors(case: Any) -> None:
    call, tensors = case
    y = call(*(each.to("meta") for each in tensors))
    assert (y.shape, y.device.type) == (call(*tensors).shape, "meta")


def test_vmap(case: Any) -> None:
    call, tensors = case
    expected = call(*tensors)
    for mapped in ({0}, {len(tensors) - 1}, {*range(len(tensors))}):
        stacked = [torch.stack([t, t]) if i in mapped else t for i, t in enumerate(tensors)]
        axes = tuple(0 if i in mapped else None for i in range(len(tensors)))
        close(torch.func.vmap(call, in_dims=axes)(*stacked), torch.stack([expected] * 2))


def test_forward_mode(case: Any) -> None:
    """Against a difference quotient in float64."""
    call, tensors = case
    tensors = [each.double() for each in tensors]
    ways = [torch.randn_like(each) for each in tensors]

    def moved(by: float) -> Tensor:
        return call(*(t + by * way for t, way in zip(tensors, ways, strict=True)))

    expected = (moved(1e-6) - moved(-1e-6)) / 2e-6
    value, tangent = torch.func.jvp(call, tuple(tensors), tuple(ways))
    torch.testing.assert_close(value, call(*tensors))
    torch.testing.assert_close(tangent, expected, rtol=1e-4, atol=1e-6)
    with forward_ad.dual_level():
        duals = map(forward_ad.make_dual, tensors, ways)
        tangent = forward_ad.unpack_dual(call(*duals)).tangent
        assert tangent is not None, "the tangent was dropped"
        torch.testing.assert_close(tangent, expected, rtol=1e-4, atol=1e-6)


def test_gradients_as_a_transform(case: Any) -> None:
    call, tensors = case
    tensors = [each.double() for each in tensors]
    learnt = [each.clone().requires_grad_() for each in tensors]
    call(*learnt).square().sum().backward()
    indices = tuple(range(len(tensors)))
    found = torch.func.grad(lambda *t: call(*t).square().sum(), argnums=indices)(*tensors)
    for mine, theirs in zip(found, learnt, strict=True):
        torch.testing.assert_close(
            mine, torch.zeros_like(mine) if theirs.grad is None else theirs.grad
        )


def test_functionalize(case: Any) -> None:
    call, tensors = case
    close(torch.func.functionalize(call)(*tensors), call(*tensors))


def test_jit_trace(case: Any) -> None:
    """The graph holds the computation: other values give other results."""
    call, tensors = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # torch keeps to itself those of its own modules; ours must give none.
        warnings.filterwarnings(
            "ignore", category=torch.jit.TracerWarning, module=r"torch\.(?!jit)"
        )
        traced = torch.jit.trace(call, tuple(tensors))
    for factor in (1.0, 1.5):
        others = [each * factor for each in tensors]
        close(traced(*others), call(*others))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(case: Any, mode: str) -> None:
    call, tensors = case

    def listed(tensors: list[Tensor]) -> Tensor:
        return call(*tensors)

    traced = make_fx(listed, tracing_mode=mode)(tensors)
    for factor in (1.0, 1.5):
        others = [each * factor for each in tensors]
        close(traced(others), call(*others))


class Wrap(torch.nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.call(*tensors)


def test_export(case: Any) -> None:
    call, tensors = case
    exported = torch.export.export(Wrap(call), tuple(tensors)).module()
    others = [each * 1.5 for each in tensors]
    close(exported(*others), call(*others))


VIEWS = {f"aten.{name}" for name in ("select.int", "unsqueeze.default", "squeeze.dim")}
"""What an unbatched call does besides."""


class Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_one_operation(case: Any) -> None:
    call, tensors = case
    with Watch() as watch:
        y = call(*tensors)
    assert watch.seen.count("transfuse.chain.default") == 1
    assert {*watch.seen} <= VIEWS | {"transfuse.chain.default"}
    assert y.equal(call(*tensors)), "the same backend ran it"


# ---- one operation to __torch_function__ -----------------------------------------------------

POSITIONS = ("x", "weight", "bias", "stage", "out", "all")
ENTRIES: dict[str, Callable[..., Any]] = {
    "conv_transpose": lambda x, w, b, a, **more: transfuse.conv_transpose(
        x, w, b, then=[s.add(a)], **more
    ),
    "operator": lambda x, w, b, a, **more: (
        transfuse.conv_transpose2d_softmax_biasadd_scaling_sigmoid(
            x, w, b, a, scaling_factor=2.0, **more
        )
    ),
}


class Spy(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", ["cpu", "eager"])
def test_a_function_mode_sees_one_operation(backend: str) -> None:
    op, solve = (
        transfuse.conv_transpose3d_max_max_sum,
        transfuse.solution("conv-transpose3d-max-max-sum"),
    )
    x, w, b = torch.randn(1, 2, 3, 3, 3), torch.randn(2, 3, 4, 4, 4), torch.randn(3)
    calls: dict[Any, Callable[[], Any]] = {
        transfuse.conv_transpose: lambda: transfuse.conv_transpose(X, W, B, backend=backend),
        transfuse.conv_transpose1d: lambda: transfuse.conv_transpose1d(
            X[:, :, 0], W[..., 0], backend=backend
        ),
        transfuse.conv_transpose2d: lambda: transfuse.conv_transpose2d(X, W, backend=backend),
        transfuse.conv_transpose3d: lambda: transfuse.conv_transpose3d(x, w, b, backend=backend),
        op: lambda: op(x, w, b, backend=backend),
        solve: lambda: solve(
            x, w, b, torch.empty(1, 1, 1, 1, 1), 1, 2, 3, 3, 3, 3, 4, 4, 4, 1, 1, 1, 0, 0, 0
        ),
    }
    for expected, call in calls.items():
        with Spy() as spy:
            call()
        assert expected in spy.seen
        assert not {F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d} & {*spy.seen}


def test_a_default_device_is_no_obstacle() -> None:
    """torch sets one with a function mode, which is to see the call and let it pass."""
    with torch.device("cpu"):
        y = transfuse.conv_transpose2d(X, W, B, backend="cpu")
    assert y.equal(transfuse.conv_transpose2d(X, W, B, backend="cpu"))


class Marked(torch.Tensor):
    """Plain memory under another name."""


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("backend", ["cpu", "eager"])
@pytest.mark.parametrize("at", range(5), ids=POSITIONS[:5])
def test_a_subclass_that_is_memory(entry: str, backend: str, at: int) -> None:
    """Its type comes back, as from torch's own functions; the fused backends serve it."""
    call = ENTRIES[entry]
    tensors = [X, W, B, B, torch.empty(2, 6, 7, 8)]
    expected = call(*tensors[:4], backend=backend)
    tensors[at] = tensors[at].as_subclass(Marked)
    y = call(*tensors[:4], backend=backend, out=tensors[4])
    assert type(y) is Marked
    assert y.as_subclass(Tensor).equal(expected)
    assert type(F.conv_transpose2d(X.as_subclass(Marked), W)) is Marked


@pytest.mark.parametrize("backend", ["cpu", "eager"])
def test_parameters_give_tensors(backend: str) -> None:
    with torch.no_grad():
        y = transfuse.conv_transpose2d(
            torch.nn.Parameter(X), torch.nn.Parameter(W), torch.nn.Parameter(B), backend=backend
        )
    assert type(y) is Tensor
    assert y.equal(transfuse.conv_transpose2d(X, W, B, backend=backend))


class Upsample(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = torch.nn.Parameter(W.clone()), torch.nn.Parameter(B.clone())

    def forward(self, x: Tensor) -> Tensor:
        y = transfuse.conv_transpose(x, self.weight, then=[s.sigmoid(), s.scale(self.scale)])
        y = transfuse.conv_transpose2d(y, torch.ones(6, 6, 1, 1), self.scale)
        return transfuse.conv_transpose2d_softmax_biasadd_scaling_sigmoid(
            y, torch.ones(6, 6, 1, 1), self.scale, self.scale, scaling_factor=2.0
        )


def test_fx_keeps_each_call_as_a_node() -> None:
    module = Upsample()
    traced = symbolic_trace(module)
    called = {node.target for node in traced.graph.nodes if node.op == "call_function"}
    assert {
        transfuse.conv_transpose,
        transfuse.conv_transpose2d,
        transfuse.conv_transpose2d_softmax_biasadd_scaling_sigmoid,
    } <= called
    with torch.no_grad():
        assert traced(X).equal(module(X))
        module.scale.mul_(2)
        assert traced(X).equal(module(X))


def test_onnx_holds_the_computation(tmp_path: Any) -> None:
    """The older exporter, which traces: what it writes is a graph, not a constant."""
    pytest.importorskip("onnx", reason="the exporter writes with onnx, which is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="nothing here runs ONNX files")
    module, file = Upsample(), str(tmp_path / "model.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (X,), file, dynamo=False)
    session = runtime.InferenceSession(file)
    for x in (X, X * 1.5):
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        close(torch.from_numpy(found), module(x).detach())


# ---- tensors that are more, or less, than memory ---------------------------------------------

ODD = str(Path(__file__).with_name("odd_tensors.py"))
REFUSED = ("nested", "jagged", "mkldnn", "quantized", "sparse", "freed", "shortened")
SERVED = {"wrapper": "Wrapper", "fake": "FakeTensor", "functional": "Tensor", "zero": "Tensor"}
EITHER = ("masked", "distributed")  # as torch's operations on them serve or raise


QUICK = ("freed", "wrapper", "zero")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in QUICK else pytest.mark.long)
        for kind in (*REFUSED, *SERVED, *EITHER, "negated")
    ],
)
def test_tensors_that_are_not_plain(kind: str) -> None:
    """Never a crash, never a wrong number: torch's answer, or an error."""
    done = subprocess.run([sys.executable, ODD, kind], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|") for line in done.stdout.splitlines()]
    assert len(rows) == 2 * 6 * 3
    for row in rows:
        _, at, backend, verb, what = row
        if kind in REFUSED:
            assert verb == "raises", row
        elif kind == "negated":
            assert verb == "serves", row
        elif backend == "cpu" and (kind != "fake" or POSITIONS[int(at)] == "out"):
            # A backend asked for by name serves or raises; a fake call is one operation to torch.
            assert (verb, what) == ("raises", "UnsupportedError"), row
        elif kind in SERVED and POSITIONS[int(at)] != "out":
            assert (verb, what) == ("serves", SERVED[kind]), row


@contextmanager
def dual() -> Iterator[None]:
    with forward_ad.dual_level():
        yield


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        (dual, "forward-mode automatic differentiation is on"),
    ],
)
def test_a_backend_asked_for_by_name_says_why_not(inside: Any, reason: str) -> None:
    with inside(), pytest.raises(transfuse.UnsupportedError, match=f"cpu  *{reason}"):
        transfuse.conv_transpose2d(X, W, backend="cpu")


def test_the_rule() -> None:
    """What is plain, and what is passed over because it is no tensor."""
    learnt = torch.nn.Parameter(W)
    with torch.inference_mode():
        inference = torch.ones(2)
    usual = (X, learnt, X[:0], X.transpose(1, 2), torch._neg_view(X), inference)
    assert plain.why_not((*usual, X.as_subclass(Marked), None, 1, [])) == ""
    assert "ZeroTensor" in plain.why_not((X, torch._efficientzerotensor(3)))
    assert "a FakeTensor is more than its memory" in plain.why_not(
        (FakeTensorMode().from_tensor(X),)
    )


def test_running_statistics_are_not_looked_at_where_there_are_none() -> None:
    """A norm looks whether they are finite; a fake tensor has no values to look at."""

    def call(x: Tensor, w: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return transfuse.conv_transpose(x, w, then=[s.batch_norm(mean, var)])

    given = (X, W, B, B.square())
    with FakeTensorMode() as mode:
        found = call(*map(mode.from_tensor, given)).shape
    assert found == call(*given).shape
