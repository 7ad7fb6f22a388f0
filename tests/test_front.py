"""The way in: which backend is chosen, how a refusal reads, and what comes back."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import transfuse
from transfuse import dispatch, front, remembered, tensors
from transfuse.backends import BACKENDS, Verdict
from transfuse.stages import scale, sigmoid

X, W = torch.ones(1, 2, 3, 3), torch.ones(2, 1, 2, 2)


@dataclass(frozen=True)
class Fake:
    """A backend whose every result is one number, or which refuses."""

    name: str
    value: float
    reason: str = ""
    device: str = "cpu"

    def verdict(self, *_: Any) -> Verdict:
        return Verdict(self.reason)

    def prepare(self, chain: Any, problem: Any) -> Any:
        return lambda *tensors: torch.full(chain.shapes(problem)[-1].dims, self.value)


FAST, SLOW = Fake("fast", 1.0), Fake("slow", 2.0)
PICKY = Fake("picky", 3.0, reason="needs 256 channels in one tile; limit 128")


@pytest.fixture(autouse=True)
def no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRANSFUSE_BACKEND", raising=False)


@pytest.mark.parametrize(
    ("backends", "asked", "setting", "value"),
    [
        ([FAST, SLOW], None, None, 1.0),
        ([PICKY, SLOW], None, None, 2.0),
        ([FAST, SLOW], "slow", None, 2.0),
        ([FAST, SLOW], None, "slow", 2.0),
        ([FAST, SLOW], None, "", 1.0),
        ([FAST, SLOW], "fast", "slow", 1.0),
        ([FAST, PICKY], "fast", "picky", 1.0),
    ],
    ids=[
        "first",
        "first-that-can",
        "asked",
        "set",
        "set-to-nothing",
        "asked-over-set",
        "not-asked",
    ],
)
def test_choice(
    backends: list[Fake],
    asked: str | None,
    setting: str | None,
    value: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "BACKENDS", tuple(backends))
    if setting is not None:
        monkeypatch.setenv("TRANSFUSE_BACKEND", setting)
    assert (transfuse.conv_transpose2d(X, W, backend=asked) == value).all()


def test_a_backend_asked_for_serves_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "BACKENDS", (PICKY, SLOW))
    expected = """picky does not run this chain
  chain    conv_transpose2d -> sigmoid
  problem  n1 ci2 co1 i3x3 k2 s1 p0 fp32 cpu
  picky    needs 256 channels in one tile; limit 128
  try      backend="slow\""""
    out = torch.full((1, 1, 4, 4), -77.0)
    with pytest.raises(transfuse.UnsupportedError) as asked:
        transfuse.conv_transpose(X, W, then=[sigmoid()], backend="picky", out=out)
    monkeypatch.setenv("TRANSFUSE_BACKEND", "picky")
    with pytest.raises(transfuse.UnsupportedError) as set_:
        transfuse.conv_transpose(X, W, then=[sigmoid()], out=out)
    assert str(asked.value) == str(set_.value) == expected
    assert (out == -77.0).all()


def test_nobody_can(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = Fake("strict", 4.0, reason="tensor is on cpu")
    monkeypatch.setattr(dispatch, "BACKENDS", (PICKY, strict))
    with pytest.raises(transfuse.UnsupportedError) as refused:
        transfuse.conv_transpose2d(X, W)
    first, *rows = str(refused.value).splitlines()
    assert first == "no backend runs this chain"
    assert rows[-2:] == [f"  picky    {PICKY.reason}", f"  strict   {strict.reason}"]


def test_an_unknown_backend_is_never_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "BACKENDS", (FAST, SLOW))
    monkeypatch.setenv("TRANSFUSE_BACKEND", "swift")
    with pytest.raises(ValueError, match="unknown backend 'swift'; known: fast, slow"):
        transfuse.conv_transpose2d(X, W)


CALLS: dict[str, Callable[..., Tensor]] = {
    "conv_transpose": lambda **more: transfuse.conv_transpose(X, W, **more),
    "conv_transpose2d": lambda **more: transfuse.conv_transpose2d(X, W, **more),
    "then": lambda **more: transfuse.conv_transpose(X, W, then=[sigmoid()], **more),
    "operator": lambda **more: transfuse.conv_transpose_2d_square_input_asym_kernel(X, W, **more),
}


@pytest.mark.parametrize("name", CALLS)
def test_precision_on_a_cpu(name: str) -> None:
    call = CALLS[name]
    y = call()
    assert y.equal(call(precision="auto"))
    assert y.equal(call(precision="ieee"))
    out = torch.full_like(y, -77.0)
    wrong = "^precision tf32 is for fp32 on cuda, not for fp32 on cpu$"
    with pytest.raises(ValueError, match=wrong):
        call(precision="tf32", out=out)
    with pytest.raises(ValueError, match=r"^unknown precision 'fast'; known: auto, ieee, tf32$"):
        call(precision="fast", out=out)
    assert (out == -77.0).all()


@pytest.mark.parametrize("set_to", ["ieee", "tf32"])
def test_auto_follows_torch_on_cuda(set_to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "float32_on_cuda", lambda: set_to)
    x: Any = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    assert tensors._precision(x, "auto") == set_to
    assert [tensors._precision(x, given) for given in ("ieee", "tf32")] == ["ieee", "tf32"]
    for other in (SimpleNamespace(is_cuda=True, dtype=torch.float64), X):
        assert tensors._precision(other, "auto") == "ieee"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_tf32_is_for_float32_alone(dtype: torch.dtype) -> None:
    x, w = X.to(dtype), W.to(dtype)
    assert transfuse.conv_transpose2d(x, w, precision="ieee").equal(
        transfuse.conv_transpose2d(x, w)
    )
    with pytest.raises(ValueError, match="precision tf32 is for fp32 on cuda, not for"):
        transfuse.conv_transpose2d(x, w, precision="tf32")


@pytest.mark.parametrize("backend", [backend.name for backend in BACKENDS])
def test_out_itself_is_returned(backend: str) -> None:
    verdict = next(each for each in BACKENDS if each.name == backend).verdict
    problem = transfuse.Problem.parse("n1 ci2 co1 i3x3 k2")
    if not verdict(transfuse.Chain(transfuse.stages.conv_transpose(2)), problem).ok:
        pytest.skip(f"{backend} does not run here")
    for x in (X, X[0]):
        out = torch.full_like(transfuse.conv_transpose2d(x, W), torch.nan)
        assert transfuse.conv_transpose2d(x, W, out=out, backend=backend) is out
        assert out.equal(transfuse.conv_transpose2d(x, W))


# ---- calls that were checked before ----------------------------------------------------------

SOFTMAX = transfuse.conv_transpose2d_softmax_biasadd_scaling_sigmoid
SX, SW = torch.randn(1, 2, 3, 3), torch.randn(2, 3, 2, 2)
B, OUT = torch.linspace(-1, 1, 3), torch.zeros(1, 3, 6, 6)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each call that is checked in full; nothing is remembered at first."""
    made: list[Any] = []
    check = front._check
    monkeypatch.setattr(front, "_checked", {})
    monkeypatch.setattr(front, "_check", lambda *args: made.append(args) or check(*args))
    return made


def softmax(*given: Any, w: Any = SW, b: Any = B, a: Any = B, **changes: Any) -> Tensor:
    tensors = given if len(given) == 4 else (*(given or (SX,)), w, b, a)
    return SOFTMAX(*tensors, **{"scaling_factor": 2.0, "stride": 2, **changes})


AGAIN: dict[str, Callable[..., Tensor]] = {
    **CALLS,
    "operator with scalars": softmax,
    "unbatched": lambda **more: softmax(SX[0], **more),
    "lists": lambda **more: softmax(stride=[2, 3], **more),
    "by keyword": lambda **more: SOFTMAX(
        x=SX, weight=SW, conv_bias=B, add_bias=B, scaling_factor=2.0, stride=2, **more
    ),
}


@pytest.mark.parametrize("name", AGAIN)
def test_the_same_call_is_checked_once(name: str, checks: list[Any]) -> None:
    call = AGAIN[name]
    first = call()
    again = [call() for _ in range(3)]
    assert len(checks) == 1
    outs = [torch.full_like(first, torch.nan) for _ in range(3)]
    for out in outs:
        assert call(out=out) is out
    assert len(checks) == 2
    assert all(y.equal(first) for y in (*again, *outs))


def test_a_solution_is_checked_once(checks: list[Any]) -> None:
    call = transfuse.solution("conv-transpose-2d-square-input-asym-kernel")
    sizes = (1, 2, 1, 3, 3, 2, 2, 1, 1, 0, 0, 0, 0, 1, 1, 1)
    outs = [torch.full((1, 1, 4, 4), torch.nan) for _ in range(3)]
    for out in outs:
        call(X, W, out, *sizes)
    assert len(checks) == 1
    assert all(out.equal(transfuse.conv_transpose2d(X, W)) for out in outs)
    with pytest.raises(RuntimeError, match=r"expected input of shape \[2, 2, 3, 3\]"):
        call(X, W, outs[0], 2, *sizes[1:])


# Each differs from the usual call in one thing that a check looks at.
OTHER: dict[str, Callable[[], Tensor]] = {
    "size": lambda: softmax(torch.ones(1, 2, 3, 4)),
    "batch": lambda: softmax(torch.ones(2, 2, 3, 3)),
    "no batch": lambda: softmax(SX[0]),
    "kernel": lambda: softmax(w=torch.ones(2, 3, 3, 2)),
    "operand": lambda: softmax(a=B[:, None, None]),
    "types": lambda: softmax(*(t.double() for t in (SX, SW, B, B))),
    "strides": lambda: softmax(SX.transpose(2, 3)),
    "layout": lambda: softmax(SX.to(memory_format=torch.channels_last)),
    "stride": lambda: softmax(stride=3),
    "stride per axis": lambda: softmax(stride=(2, 2)),
    "padding": lambda: softmax(padding=1),
    "output_padding": lambda: softmax(output_padding=1),
    "scalar": lambda: softmax(scaling_factor=3.0),
    "backend": lambda: softmax(backend="eager"),
    "gradients": lambda: softmax(SX.clone().requires_grad_()),
    "out": lambda: softmax(out=torch.empty(1, 3, 6, 6)),
    "strides of out": lambda: softmax(out=torch.empty(1, 3, 6, 6).transpose(2, 3)),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_call_is_not_taken_for_it(name: str, checks: list[Any]) -> None:
    alone = OTHER[name]()
    front._checked.clear()
    softmax()
    checks.clear()
    y = OTHER[name]()
    assert len(checks) == 1
    assert y.equal(alone)
    for fact in ("shape", "dtype", "requires_grad"):
        assert getattr(y, fact) == getattr(alone, fact)
    assert y.stride() == alone.stride()


def test_zeros_have_signs() -> None:
    """0.0 and -0.0 are equal, and so would be the keys that hold them."""
    for call in (
        lambda factor: transfuse.conv_transpose(X, W, then=[scale(factor)], backend="cpu"),
        lambda factor: transfuse.conv_transpose(X, W, then=[scale(factor)], backend="eager"),
    ):
        for factor in (0.0, -0.0, 0.0):
            assert (call(factor).signbit() == (str(factor) == "-0.0")).all()


def test_a_key_of_numbers() -> None:
    """The same for the same values alone, however they are listed; none for what is no number."""
    different = [(1,), (1.0,), (0.0,), (-0.0,), (0,), ((1, 1),), ((1,),), (1, 1), (1, 1.0), ((),)]
    different += [("1",), ("same",), (((1, 1),),), (((1,), (1,)),), (((1, 1), (1, 1)),)]
    keys = [remembered.exactly(*each) for each in different]
    assert all(keys)
    assert len(set(keys)) == len(different)
    assert keys == [remembered.exactly(*each) for each in different]
    assert remembered.exactly([1, 1], 2.0) == remembered.exactly((1, 1), 2.0)
    assert remembered.exactly([[1, 2]], 2.0) == remembered.exactly(((1, 2),), 2.0)
    assert remembered.exactly(torch.Size((1, 1))) == remembered.exactly((1, 1))
    assert remembered.exactly(float("nan")) == remembered.exactly(float("nan"))
    for other in (True, None, 1j, (1, True), (1, 2.0), ((1, 2.0),), (1, (1,)), torch.tensor(1)):
        assert not remembered.exactly(1, other)


EXPANDED, LEARNT = OUT[0, 0].expand(1, 3, 6, 6), SX.clone().requires_grad_()
BAD: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "True": (TypeError, "stride must be an integer, not bool", lambda: softmax(stride=True)),
    "float": (TypeError, "stride must be an integer, not float", lambda: softmax(stride=2.0)),
    "floats": (TypeError, "stride must be an integer", lambda: softmax(stride=(2, 2.0))),
    "scalar": (TypeError, "must be a real number", lambda: softmax(scaling_factor=True)),
    "text": (TypeError, "must be a real number", lambda: softmax(scaling_factor="2.0")),
    "no tensor": (TypeError, "input must be a torch.Tensor", lambda: softmax(SX.numpy())),
    "None": (TypeError, "conv_bias must be a torch.Tensor", lambda: softmax(b=None)),
    "type": (RuntimeError, "must have the same type", lambda: softmax(a=B.double())),
    "sparse": (RuntimeError, "must be a dense tensor", lambda: softmax(a=B.to_sparse())),
    "shape": (RuntimeError, "to hold one value for each", lambda: softmax(a=torch.ones(4))),
    "keyword": (TypeError, "unexpected keyword argument", lambda: softmax(strides=2)),
    "twice": (TypeError, "multiple values for argument", lambda: softmax(x=SX)),
    "too many": (TypeError, "too many positional", lambda: SOFTMAX(SX, SW, B, B, 2.0)),
    "too few": (TypeError, "missing a required", lambda: SOFTMAX(SX, SW, B, B, stride=2)),
    "backend": (ValueError, "unknown backend", lambda: softmax(backend="swift")),
    "precision": (ValueError, "unknown precision", lambda: softmax(precision="fast")),
    "out": (RuntimeError, "expected output of shape", lambda: softmax(out=torch.ones(1, 3, 6, 7))),
    "out's type": (RuntimeError, "of type", lambda: softmax(out=OUT.double())),
    "expanded": (RuntimeError, "two elements in one place", lambda: softmax(out=EXPANDED)),
    "gradients": (RuntimeError, "automatic differentiation", lambda: softmax(LEARNT, out=OUT)),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_raises_after_a_good_one(name: str, checks: list[Any]) -> None:
    error, says, call = BAD[name]
    softmax()
    softmax(out=OUT)
    for _ in range(2):
        with pytest.raises(error, match=says):
            call()


def test_an_output_that_shares_memory_is_seen_every_time(checks: list[Any]) -> None:
    memory = torch.zeros(200)
    x, out = memory[:18].view(1, 2, 3, 3), memory[18:126].view(1, 3, 6, 6)
    x.copy_(SX)
    right = softmax()
    for _ in range(3):
        assert softmax(x, out=out).equal(right)
    checks.clear()
    shared = memory[17:125].view(1, 3, 6, 6)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="output shares memory with input"):
            softmax(x, out=shared)
        with pytest.raises(RuntimeError, match="output shares memory with add_bias"):
            softmax(a=shared.view(-1)[-3:], out=shared)
    # They interleave, and share nothing.
    wide = torch.zeros(1, 3, 6, 12)
    assert softmax(wide[:, :2, ::2, 1:6:2].copy_(SX), out=wide[..., ::2]).equal(right)
    assert not any(args[5] is shared for args in checks), "seen without the other checks"


def test_what_is_remembered_is_bounded(checks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST", 3)
    for width in range(3, 12):
        softmax(torch.ones(1, 2, 3, width))
        assert len(front._checked) <= 3
    assert len(checks) == 9


def test_the_environment_is_asked_each_time(
    checks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    softmax()
    monkeypatch.setenv("TRANSFUSE_BACKEND", "swift")
    with pytest.raises(ValueError, match="unknown backend 'swift'"):
        softmax()
    monkeypatch.setenv("TRANSFUSE_BACKEND", "eager")
    softmax()
    assert [each.backend.name for each in front._checked.values()][-1] == "eager"


def test_gradients_may_be_switched_off(checks: list[Any]) -> None:
    x = SX.clone().requires_grad_()
    assert softmax(x).requires_grad
    with torch.no_grad():
        assert not softmax(x).requires_grad
    assert softmax(x).requires_grad
    assert len(checks) == 2, "with gradients and without them"


def test_a_name_may_be_a_number_now_and_a_tensor_then() -> None:
    chain = transfuse.Chain(
        transfuse.stages.conv_transpose(2), transfuse.stages.scale("a"), transfuse.stages.add("b")
    )
    for _ in range(2):
        first = front.call(chain, SX, SW, {"b": B}, {"a": 2.0})
        assert first.equal(front.call(chain, SX, SW, {"b": B, "a": torch.full((3,), 2.0)}))
        other = front.call(chain, SX, SW, {"a": B}, {"b": 2.0})
        assert not other.equal(first)
        assert other.equal(front.call(chain, SX, SW, {"a": B, "b": torch.full((3,), 2.0)}))
