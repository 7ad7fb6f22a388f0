"""The way in: which backend is chosen, how a refusal reads, and what comes back."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import transfuse
from transfuse import dispatch, front
from transfuse.backends import BACKENDS, Verdict
from transfuse.stages import sigmoid

X, W = torch.ones(1, 2, 3, 3), torch.ones(2, 1, 2, 2)


@dataclass
class Fake:
    """A backend whose every result is one number, or which refuses."""

    name: str
    value: float
    reason: str = ""

    def verdict(self, *_: Any) -> Verdict:
        return Verdict(self.reason)

    def run(self, chain: Any, problem: Any, *tensors: Any) -> Tensor:
        return torch.full(chain.shapes(problem)[-1].dims, self.value)


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


CALLS = {
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
    monkeypatch.setattr(front, "float32_on_cuda", lambda: set_to)
    x: Any = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    assert front._precision(x, "auto") == set_to
    assert [front._precision(x, given) for given in ("ieee", "tf32")] == ["ieee", "tf32"]
    for other in (SimpleNamespace(is_cuda=True, dtype=torch.float64), X):
        assert front._precision(other, "auto") == "ieee"


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
