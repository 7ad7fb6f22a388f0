"""transfuse.explain: what a call would do, while nothing is done."""

import doctest
import json
import logging
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from importlib.util import find_spec
from threading import Thread
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import transfuse
from transfuse import Chain, dispatch, explain, explanation, front, log
from transfuse.backends import BACKENDS
from transfuse.backends.base import prepared
from transfuse.operators import OPERATORS
from transfuse.plan import MACHINES
from transfuse.problem import Problem
from transfuse.stages import (
    add,
    conv_transpose,
    group_norm,
    max_pool,
    scale,
    sigmoid,
    softmax,
    tanh,
)

X, W, B = torch.ones(2, 4, 6, 6), torch.ones(4, 8, 3, 3), torch.ones(8)
SOFTMAX = transfuse.conv_transpose2d_softmax_biasadd_scaling_sigmoid
SOLUTION = transfuse.solution("conv-transpose-2d-square-input-asym-kernel")
SIZES = (2, 4, 8, 6, 6, 3, 3, 2, 2, 0, 0, 0, 0, 1, 1, 1)
OUT = torch.full((2, 8, 13, 13), -77.0)

CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "conv_transpose": (transfuse.conv_transpose, (X, W, B), {"stride": 2, "then": [tanh()]}),
    "conv_transpose1d": (transfuse.conv_transpose1d, (X[..., 0], W[..., 0], B, 2, 1), {}),
    "conv_transpose2d": (transfuse.conv_transpose2d, (X, W), {"bias": B, "stride": (2, 1)}),
    "conv_transpose3d": (transfuse.conv_transpose3d, (X[:, :, None], W[:, :, None]), {}),
    "unbatched": (transfuse.conv_transpose2d, (X[0], W), {"stride": 2}),
    "out": (transfuse.conv_transpose2d, (X, W, B, 2), {"out": OUT}),
    "operator": (SOFTMAX, (X, W, B, B), {"scaling_factor": 2.0, "stride": 2}),
    "solution": (SOLUTION, (X, W, OUT, *SIZES), {}),
    "numpy": (SOLUTION, (X.numpy(), W.numpy(), OUT.numpy(), *SIZES), {}),
}


@pytest.fixture(autouse=True)
def no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRANSFUSE_BACKEND", raising=False)


@pytest.mark.parametrize("name", CALLS)
def test_says_what_the_call_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain, problem and backend explained are those that then run."""
    call, args, options = CALLS[name]
    found = explain(call, *args, **options)
    ran: list[Any] = []
    monkeypatch.setattr(front, "_checked", {})
    prepared.cache_clear()
    for backend in BACKENDS:
        kind, prepare = type(backend), type(backend).prepare
        monkeypatch.setattr(
            kind,
            "prepare",
            lambda self, *given, prepare=prepare: (
                ran.append((self, *given)) or prepare(self, *given)
            ),
        )
    call(*args, **options)
    backend, chain, problem = ran[0]
    assert (found.chosen, found.chain, found.problem) == (backend.name, chain, problem)
    assert found.plan == backend.plan(chain, problem)
    assert list(found.verdicts) == [each.name for each in BACKENDS]
    assert {n: str(v) for n, v in found.verdicts.items()} == {
        each.name: str(each.verdict(chain, problem)) for each in BACKENDS
    }


@pytest.mark.parametrize("name", CALLS)
def test_computes_nothing_and_changes_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "transfuse")
    monkeypatch.setattr(log, "_said", {})
    monkeypatch.setattr(front, "_checked", {})
    for backend in BACKENDS:
        monkeypatch.setattr(type(backend), "prepare", lambda *_: pytest.fail("it ran"))
    call, args, options = CALLS[name]
    OUT.fill_(-77.0)
    for _ in range(2):
        explain(call, *args, **options)
    assert (OUT == -77.0).all()
    assert front._checked == log._said == {}
    assert caplog.records == []
    assert not dispatch.explaining()


def test_a_remembered_call_is_explained_all_the_same() -> None:
    for _ in range(2):
        transfuse.conv_transpose2d(X, W)
        assert explain(transfuse.conv_transpose2d, X, W).chosen == "cpu"


def test_gradients() -> None:
    x = X.clone().requires_grad_()
    assert explain(transfuse.conv_transpose2d, x, W, B).chosen == "cpu"
    with torch.no_grad():
        assert explain(transfuse.conv_transpose2d, x, W, B).chosen == "cpu"
    with pytest.raises(RuntimeError, match="out= does not support automatic differentiation"):
        explain(transfuse.conv_transpose2d, x, W, B, 2, out=OUT)


def test_a_backend_by_name() -> None:
    found = explain(transfuse.conv_transpose2d, X, W, backend="eager")
    assert found.chosen == "eager"
    assert str(found.verdicts["cpu"]) == "not asked, since eager is asked for by name"
    with pytest.raises(transfuse.UnsupportedError, match="triton does not run this chain"):
        explain(transfuse.conv_transpose2d, X, W, backend="triton")
    with pytest.raises(ValueError, match="unknown backend 'swift'; known: cpu, triton, eager"):
        explain(transfuse.conv_transpose2d, X, W, backend="swift")
    assert not dispatch.explaining()


def test_a_backend_by_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFUSE_BACKEND", "eager")
    assert explain(transfuse.conv_transpose2d, X, W).chosen == "eager"


def test_a_chain_with_names_and_with_tensors() -> None:
    named = Chain(conv_transpose(2, "b"), scale("gain"), group_norm(2, "w"))
    found = explain(named, X, W, {"b": B, "w": B}, scalars={"gain": 2.0}, stride=2)
    assert str(found.chain) == "conv_transpose2d(+ b) -> scale(2.0) -> group_norm(2, w)"
    held = Chain(conv_transpose(2, B), add(B), add("more"))
    found = explain(held, X, W, {"more": B})
    assert str(found.chain) == "conv_transpose2d(+ bias) -> add(add1.other) -> add(more)"
    with pytest.raises(TypeError, match="nothing is given under the name 'more'"):
        explain(held, X, W)
    with pytest.raises(TypeError, match="that a chain names are given as a dict, not as Tensor"):
        explain(held, X, W, B)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_sizes_suffice(device: str | None) -> None:
    x, w, b = (tensor.to("meta") for tensor in (X, W, B))
    found = explain(transfuse.conv_transpose, x, w, b, stride=2, then=[add(b)], device=device)
    assert found.problem.device == (device or "meta")
    assert found.chosen == ("cpu" if device else "eager")


def test_as_if_on_another_device() -> None:
    x, w = map(FakeTensorMode().from_tensor, (X.half(), W.half()))
    then = [add(torch.ones(8, dtype=torch.half))]
    found = explain(transfuse.conv_transpose, x, w, stride=2, then=then, device="cuda:sm90")
    assert str(found.problem) == "n2 ci4 co8 i6x6 k3 s2 p0 fp16 cuda:sm90"
    assert str(found.verdicts["cpu"]) == "tensors are on cuda:sm90"
    assert (found.chosen == "triton") == (find_spec("triton") is not None)
    assert bool(found.tiles) == (found.chosen == "triton")
    graded = explain(transfuse.conv_transpose2d, X.clone().requires_grad_(), W, device="cuda:sm90")
    assert graded.chosen == "eager"
    numpy = explain(SOLUTION, X.numpy(), W, OUT, *SIZES, device="cuda:sm80")
    assert str(numpy.problem).endswith(" cuda:sm80")


def test_precision_as_if_on_a_gpu() -> None:
    def found(**options: Any) -> str:
        return explain(
            transfuse.conv_transpose2d, X, W, device="cuda:sm90", **options
        ).problem.precision

    assert found(precision="tf32") == "tf32"
    assert found(precision="ieee") == "ieee"
    before = torch.backends.cudnn.conv.fp32_precision
    try:
        for setting in ("ieee", "tf32"):
            torch.backends.cudnn.conv.fp32_precision = setting
            assert found() == setting
    finally:
        torch.backends.cudnn.conv.fp32_precision = before


WRONG: dict[str, Callable[[Any], Any]] = {
    "bias": lambda go: go(transfuse.conv_transpose2d, X, W, B[:3]),
    "channels": lambda go: go(transfuse.conv_transpose2d, X[:, :3], W),
    "no tensor": lambda go: go(transfuse.conv_transpose, X, [1.0]),
    "keyword": lambda go: go(transfuse.conv_transpose2d, X, W, strides=2),
    "output": lambda go: go(transfuse.conv_transpose2d, X, W, out=OUT[0]),
    "sizes": lambda go: go(SOLUTION, X, W, OUT, 3, *SIZES[1:]),
    "scalar": lambda go: go(SOFTMAX, X, W, B, B, scaling_factor="2"),
    "missing": lambda go: go(SOFTMAX, X, W, B, B),
    "sparse": lambda go: go(transfuse.conv_transpose2d, X.to_sparse(), W),
    "window": lambda go: go(transfuse.conv_transpose, X, W, then=[max_pool(99)]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_raises_what_it_raises(name: str) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError)) as called:
        WRONG[name](lambda call, *args, **options: call(*args, **options))
    with pytest.raises(called.type) as explained:
        WRONG[name](explain)
    assert str(explained.value) == str(called.value)
    assert not dispatch.explaining()


@pytest.mark.parametrize("what", [torch.nn.functional.conv_transpose2d, "conv_transpose2d", None])
def test_other_functions_are_refused_and_not_called(what: Any) -> None:
    with pytest.raises(
        TypeError, match=r"explain takes a function of transfuse \(conv_transpose, "
    ):
        explain(what, X, W)


def test_other_threads_run_their_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread explains, the same call of another is computed."""
    results: list[Any] = []
    decide = dispatch.choose

    def choose(*given: Any) -> Any:
        if dispatch.explaining():
            thread = Thread(target=lambda: results.append(transfuse.conv_transpose2d(X, W)))
            thread.start()
            thread.join(60)
        return decide(*given)

    monkeypatch.setattr(front, "_checked", {})
    monkeypatch.setattr(dispatch, "choose", choose)
    explain(transfuse.conv_transpose2d, X, W)
    assert results[0].shape == (2, 8, 8, 8)


@pytest.mark.parametrize("slug", OPERATORS)
def test_prints_in_80_columns_and_as_json(slug: str) -> None:
    op = OPERATORS[slug]
    case = op.case("benchmark")
    found = explanation.explained(op.bound(case), case.problem)
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    flat = " ".join(text.split())
    words = [str(found.problem), str(found.chain), "triton tensors are on cpu", "what cpu will run"]
    words += [step.rewrite.name for step in found.rewrites]
    for word in words:
        assert word in flat
    assert json.loads(found.json()) == json.loads(json.dumps(found.as_dict()))
    assert [*found.as_dict()] == [
        "problem", "chain", "rewrites", "fused", "floor_seconds", "floor_of_definition_seconds",
        "backends", "chosen", "plan", "tiles",
    ]  # fmt: skip


def test_floors_are_those_of_the_machine_that_plans_are_made_for() -> None:
    line = "n128 ci64 co128 i64x64 k4 s2 p1 op1 fp16 cuda:sm90"
    problem = Problem.parse(line)
    chain = Chain(conv_transpose(2), softmax("channels"), sigmoid())
    found = explanation.explained(chain, problem)
    rates = MACHINES["cuda"]
    products = found.fused.work / rates.flops["fp16"]
    copy = 2 * 2 * problem.input.numel / rates.bandwidth
    assert found.floor == pytest.approx(products + copy)
    assert found.floor_of_definition == pytest.approx(products)
    told = f"floor at an H200's rates: {1e3 * found.floor:.3g} ms in passes, "
    assert f"{told}{1e3 * products:.3g} ms by the definition" in str(found).splitlines()


def test_small_figures_are_not_zero() -> None:
    found = explain(transfuse.conv_transpose, X, W, then=[softmax("space")])
    lines = [line.split() for line in str(found).splitlines() if line.startswith("  total")]
    assert all(float(figure) > 0 for line in lines for figure in line[1:])


def test_an_explanation_is_short_in_a_list_and_does_not_change() -> None:
    found = explain(transfuse.conv_transpose, X, W, then=[sigmoid()])
    line = "n2 ci4 co8 i6x6 k3 s1 p0 fp32 cpu"
    assert f"{[found]}" == f"[<cpu runs conv_transpose2d -> sigmoid ({line})>]"
    with pytest.raises(FrozenInstanceError):
        found.chosen = "eager"  # type: ignore[misc]


def test_the_example_runs() -> None:
    names = {"torch": torch, "transfuse": transfuse, "max_pool": max_pool, "tanh": tanh}
    (example,) = doctest.DocTestFinder().find(explain, "explain", globs=names)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0
