"""Compiled code that is known to be wrong: nothing runs of it, and the next backend serves."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

import triton

import transfuse
from transfuse import dispatch, front, settings
from transfuse.backends import triton as backend
from transfuse.backends.base import prepared
from transfuse.backends.eager import Eager
from transfuse.backends.triton import Triton, build, calls, machine_code, sequence
from transfuse.errors import UnsupportedError
from transfuse.stages import batch_norm

X, W = torch.randn(2, 3, 4, 4), torch.randn(3, 5, 3, 3)


@dataclass
class Compiler:
    """Triton's: kernels become their names, and the one that is named is wrong.

    A driver that is not there launches what others are compiled to.
    """

    wrong: str = "convolve"
    compiled: list[str] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)

    def compile(self, source: Any, **_: Any) -> Any:
        self.compiled.append(source.fn.__name__)
        return Kernel(source.fn.__name__)

    def spills_over(self, ptx: str) -> bool:
        return ptx == self.wrong

    def entries(self, builds: list[Any]) -> None:
        """Every kernel compiled, in order, then launched."""
        for each in builds:
            assert each.compiled
        self.launched += [each.kernel.name for each in builds]


class Kernel:
    def __init__(self, name: str) -> None:
        self.asm = {"ptx": name}


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """Tensors on the CPU are served by the GPU's backend, then by torch."""
    found = Compiler()
    monkeypatch.delenv("TRANSFUSE_BACKEND", raising=False)
    monkeypatch.setattr(triton, "compile", found.compile)
    monkeypatch.setattr(build, "spills_over", found.spills_over)
    monkeypatch.setattr(machine_code, "entries", found.entries)
    monkeypatch.setattr(settings, "interpreted", lambda: True)
    compiles = SimpleNamespace(interpreted=lambda: False)
    monkeypatch.setattr(sequence, "settings", compiles)
    monkeypatch.setattr(dispatch, "BACKENDS", (Triton(), Eager()))
    monkeypatch.setattr(calls, "_ready", {})
    monkeypatch.setattr(front, "_checked", {})
    monkeypatch.setattr(backend, "_declined", {}, raising=False)
    prepared.cache_clear()
    yield found
    prepared.cache_clear()


def call(x: Tensor = X, **options: Any) -> Tensor:
    return transfuse.conv_transpose2d(x, W, stride=2, **options)


def test_the_next_backend_serves(compiler: Compiler) -> None:
    assert torch.equal(call(), torch.nn.functional.conv_transpose2d(X, W, stride=2))
    assert compiler.compiled[-1] == "convolve"
    assert compiler.launched == []


def test_what_follows_a_wrong_kernel_counts_too(compiler: Compiler) -> None:
    """The statistics' kernel is the fourth: by then the first ones could have written results."""
    compiler.wrong = "merge"
    out = torch.full((2, 5, 9, 9), 7.0)
    right = transfuse.conv_transpose(
        X, W, stride=2, then=[batch_norm(training=True)], backend="eager"
    )
    assert (
        transfuse.conv_transpose(X, W, stride=2, then=[batch_norm(training=True)], out=out) is out
    )
    assert torch.equal(out, right)
    assert compiler.launched == []


def test_later_calls_go_there_at_once(compiler: Compiler) -> None:
    call()
    once = len(compiler.compiled)
    call()
    call(torch.randn_like(X), out=torch.empty(2, 5, 9, 9))
    assert len(compiler.compiled) == once
    call(X[:1])  # another problem has other code
    assert len(compiler.compiled) == 2 * once
    compiler.wrong = ""
    call(X[..., :3])
    assert compiler.launched == compiler.compiled[2 * once :]


@pytest.mark.parametrize("by", ["argument", "setting"])
def test_asked_for_by_name_it_raises(
    by: str, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"backend": "triton"} if by == "argument" else {}
    if by == "setting":
        monkeypatch.setenv("TRANSFUSE_BACKEND", "triton")
    out = torch.full((2, 5, 9, 9), 7.0)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"triton +Triton \S+ makes wrong code of conv"):
            call(out=out, **options)
    assert (out == 7.0).all()
    assert compiler.compiled.count("convolve") == 1


def test_the_verdict_says_why(compiler: Compiler) -> None:
    call()
    (asked,) = backend._declined
    verdict = Triton().verdict(*asked)
    assert not verdict.ok
    assert "convolve" in verdict.reason


class Forgetful(dict[Any, Any]):
    def __setitem__(self, *_: Any) -> None:
        pass


def test_a_backend_that_declines_and_still_says_yes_is_not_asked_for_ever(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_declined", Forgetful())
    with pytest.raises(UnsupportedError, match="makes wrong code"):
        call()
