"""What CONTRIBUTING.md says a new operator and a new stage take, done, and run on every backend."""

import re
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse import fills
from transfuse.accuracy import Oracle
from transfuse.backends.cpu import library
from transfuse.backends.triton import Triton
from transfuse.bench.peers.onnx_graph import onnx_model
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.maths import sin
from transfuse.operators import OPERATORS, Operator
from transfuse.problem import DTYPES, Problem
from transfuse.reference import reference
from transfuse.stages import conv_transpose, group_norm, max_pool, pointwise, text

from .backends.triton.conftest import Interpreter, interpreter  # noqa: F401
from .cfunctions.calling import Functions

ROOT = Path(__file__).parents[1]
SLUG = "conv-transpose2d-leakyrelu-maxpool-groupnorm-sigmoid"
built = pytest.mark.skipif(library.path() is None, reason="the compiled core is not installed")


def fence(language: str) -> str:
    """The example of CONTRIBUTING.md in a language."""
    found = re.search(
        rf"^```{language}\n(.*?)^```$",
        (ROOT / "CONTRIBUTING.md").read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert found
    return found[1]


@pytest.fixture(scope="module")
def sixth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """The operator of CONTRIBUTING.md: its document among the others, its declaration, its line."""
    documents = import_module("transfuse.problems.document")
    place = tmp_path_factory.mktemp("problems")
    for each in documents._HERE.glob("*.md"):
        shutil.copy(each, place)
    (place / f"{SLUG}.md").write_text(fence("md"), encoding="utf-8")
    namespace: dict[str, Any] = {}
    exec(fence("py"), namespace)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_HERE", place)
        forget(documents)
        operator = namespace[SLUG.replace("-", "_")]
        patch.setitem(OPERATORS, SLUG, operator)
        yield operator
    forget(documents)


def forget(documents: Any) -> None:
    documents.slugs.cache_clear()
    documents.document.cache_clear()


@pytest.fixture(scope="module")
def functions(sixth: Operator, tmp_path_factory: pytest.TempPathFactory) -> Functions:
    return Functions(sixth, tmp_path_factory.mktemp("functions"))


LINES = [
    "small",
    "n2 ci3 co8 i5x6 k4 s2 negative_slope=0.2 pool_kernel=3 num_groups=2",
    "n1 ci5 co6 i4x7 k3x2 s1x3 negative_slope=-1.5 pool_kernel=1 num_groups=1",
    "n2 ci40 co16 i60x50 k3 s2 negative_slope=0.5 pool_kernel=2 num_groups=1",
]


def wrong(given: Any, y: Tensor, ulp: float) -> str:
    """What the oracle has against a result; empty where nothing."""
    chain, problem = given.operator.bound(given.case), given.case.problem
    return Oracle(chain, problem, given.x, given.weight, given.operands, ulp).judge(y).fault


def eps(problem: Problem) -> float:
    return float(torch.finfo(ELEMENTS[problem.dtype].compute).eps)


def test_the_maths_of_the_example(sixth: Operator, given: Callable[..., Any]) -> None:
    one = given(sixth, "small fp64")
    conv_bias, weight, bias = one.operands.values()
    y = F.leaky_relu(F.conv_transpose2d(one.x, one.weight, conv_bias, stride=2), 0.2)
    y = F.group_norm(F.max_pool2d(y, 2), 4, weight, bias).sigmoid()
    assert (one.exact() - y).abs().max() < 1e-12


@pytest.mark.parametrize("backend", ["eager", pytest.param("cpu", marks=built)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("line", LINES)
def test_both_signatures(
    line: str,
    dtype: str,
    backend: str,
    sixth: Operator,
    given: Callable[..., Any],
    monkeypatch: Any,
) -> None:
    one = given(sixth, f"{line} {dtype}")
    ulp = float(torch.finfo(one.x.dtype).eps) if backend == "eager" else eps(one.case.problem)
    y = one.function(backend=backend)
    assert not wrong(one, y, ulp)
    out = one.empty()
    monkeypatch.setenv("TRANSFUSE_BACKEND", backend)
    transfuse.solution(SLUG)(**one.arguments(out))
    assert torch.equal(out, y)


@pytest.mark.parametrize(
    "line", [LINES[0], *(pytest.param(line, marks=pytest.mark.long) for line in LINES[1:3])]
)
def test_in_tritons_interpreter(
    line: str,
    sixth: Operator,
    given: Callable[..., Any],
    interpreter: Interpreter,  # noqa: F811
) -> None:
    one = given(sixth, line)
    chain, problem = sixth.bound(one.case), one.case.problem
    answer = interpreter(chain, problem, one.x, one.weight, one.operands)
    assert "refusal" not in answer, answer["refusal"]
    assert not wrong(one, answer["results"][0], Triton().ulp(problem))


@built
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("line", LINES)
def test_from_c(
    line: str, dtype: str, sixth: Operator, functions: Functions, given: Callable[..., Any]
) -> None:
    """Right, and the very bits that Python's call gives."""
    one = given(sixth, f"{line} {dtype}")
    y = one.empty()
    assert functions(dtype, one.arguments(y)) == ""
    assert not wrong(one, y, eps(one.case.problem))
    assert torch.equal(y, one.function(backend="cpu"))


@built
@pytest.mark.parametrize("operand", ["conv_bias", "gn_weight", "gn_bias"])
def test_from_c_with_operands_that_are_not_finite(
    operand: str, sixth: Operator, functions: Functions, given: Callable[..., Any]
) -> None:
    one = given(sixth, "small")
    one.operands[operand][1] = torch.inf
    y = one.empty()
    assert functions("fp32", one.arguments(y)) == ""
    assert torch.equal(y.isnan(), one.function(backend="cpu").isnan())
    assert torch.equal(y.nan_to_num(), one.function(backend="cpu").nan_to_num())


@built
@pytest.mark.parametrize(
    "changes",
    [
        {"pool_kernel": 0},
        {"pool_kernel": 100},
        {"num_groups": 3},
        {"num_groups": 0},
        {"stride_h": 0},
        {"kernel_w": 0},
        {"out_channels": 0},
        {"batch_size": 1, "height": 1, "width": 1, "pool_kernel": 4, "num_groups": 8},
    ],
    ids=str,
)
def test_c_refuses_what_python_refuses_in_the_same_words(
    changes: dict[str, int], sixth: Operator, functions: Functions, given: Callable[..., Any]
) -> None:
    one = given(sixth, "small")
    y = one.empty()
    arguments = one.arguments(y) | changes
    with pytest.raises((RuntimeError, ValueError)) as refused:
        sixth.solution(**arguments)
    assert functions("fp32", arguments) == str(refused.value)
    assert y.isnan().all()
    for each in sixth.document.pointers:
        nothing = one.arguments(y) | {each.name: None}
        assert functions("fp32", nothing) == f"{each.name} is a null pointer"


# ---- a stage ---------------------------------------------------------------------------------


@pointwise
def wavy(x: Any, a: Any = 0.5, b: Any = 2.0) -> Any:
    """``y = x + a sin(b x)``"""
    return x + a * sin(b * x)


STAGES = [wavy(), wavy(0.25), wavy(b="shift"), wavy("gain", "shift")]


@pytest.mark.parametrize(("stage", "dtype"), list(zip(STAGES, DTYPES, strict=True)), ids=str)
def test_a_new_stage_is_one_function(stage: Any, dtype: str, request: Any) -> None:
    problem = Problem.parse(f"n2 ci3 co4 i5x6 k3 s2 p1 {dtype}")
    chain = Chain(conv_transpose(2, "bias"), stage, max_pool(2), group_norm(2))
    x, weight, operands = fills.real(chain, problem, 0)
    exact = reference(chain, problem, x, weight, operands)
    y = F.conv_transpose2d(
        *(t.double() for t in (x, weight, operands["bias"])), stride=2, padding=1
    )
    a, b = (
        operands[each].double().view(-1, 1, 1) if isinstance(each, str) else each
        for each in stage.arguments
    )
    y = F.group_norm(F.max_pool2d(y + a * torch.sin(b * y), 2), 2)
    assert (exact - y).abs().max() < 1e-10
    judge = {
        name: Oracle(chain, problem, x, weight, operands, ulp)
        for name, ulp in (("eager", float(torch.finfo(x.dtype).eps)), ("fused", eps(problem)))
    }
    then = [replace_names(each, operands) for each in chain.epilogue]
    options = {"stride": 2, "padding": 1, "then": then}
    for backend in ("eager", *(["cpu"] if library.path() else [])):
        found = transfuse.conv_transpose(x, weight, operands["bias"], backend=backend, **options)
        assert not judge["eager" if backend == "eager" else "fused"].judge(found).fault
    interpret = request.getfixturevalue("interpreter")
    answer = interpret(chain, problem, x, weight, operands)
    assert "refusal" not in answer, answer["refusal"]
    assert not judge["fused"].judge(answer["results"][0]).fault


def replace_names(stage: Any, operands: dict[str, Tensor]) -> Any:
    """The stage with tensors in place of their names."""
    named = {k: operands[v] for k, v in stage.parameters() if isinstance(v, str)}
    return stage.with_parameters(named)


def test_a_new_stage_goes_to_onnx() -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    problem = Problem.parse("n2 ci3 co4 i5x6 k3 s2 p1")
    chain = Chain(conv_transpose(2, "bias"), wavy("gain", 3.0))
    x, weight, operands = fills.real(chain, problem, 0)
    model = onnx_model(chain, problem, weight, operands)
    onnx.checker.check_model(model, full_check=True)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, {"x": x.numpy()})
    exact = reference(chain, problem, x, weight, operands)
    assert (torch.from_numpy(y).double() - exact).abs().max() < 1e-4


def test_a_new_stage_prints_and_parses_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(text.KNOWN, "wavy", wavy)  # as a name of transfuse.stages is
    for stage in STAGES:
        assert text.parse(str(stage)) == (stage,)
    assert str(wavy(b=3.0)) == "wavy(b=3.0)"
