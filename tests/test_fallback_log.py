"""Falling back is never invisible: one line for each reason, in the logger ``transfuse``."""

import logging
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transfuse
from transfuse import dispatch, front, log
from transfuse.backends import BACKENDS, Verdict
from transfuse.stages import sigmoid, tanh

X, W, B = torch.ones(1, 2, 6, 6), torch.ones(2, 3, 3, 3), torch.ones(3)
CPU, EAGER = BACKENDS[0], BACKENDS[-1]
Lines = Callable[[], list[tuple[int, str]]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Lines:
    """Level and text of every line logged; nothing has been said, and no call is remembered."""
    monkeypatch.delenv("TRANSFUSE_BACKEND", raising=False)
    monkeypatch.setattr(log, "_said", {})
    monkeypatch.setattr(front, "_checked", {})
    caplog.set_level(logging.INFO, "transfuse")
    return lambda: [(r.levelno, r.getMessage()) for r in caplog.records if r.name == "transfuse"]


@dataclass(frozen=True)
class Fake:
    """A backend whose every result is zero, or which refuses or yields."""

    name: str
    device: str = "cpu"
    reason: str = ""
    yields: str = ""

    def verdict(self, *_: Any) -> Verdict:
        return Verdict(self.reason, self.yields)

    def prepare(self, chain: Any, problem: Any) -> Any:
        return lambda *tensors: torch.zeros(chain.shapes(problem)[-1].dims)


def test_a_backend_that_refuses_is_a_warning_once(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "BACKENDS", (Fake("cpu", reason="needs 256 channels"), EAGER))
    for _ in range(3):
        transfuse.conv_transpose(X, W, B, stride=2, then=[sigmoid()])
    expected = (
        "cpu does not run conv_transpose2d(+ bias) -> sigmoid "
        "(n1 ci2 co3 i6x6 k3 s2 p0 fp32 cpu): needs 256 channels; eager runs it"
    )
    assert lines() == [(logging.WARNING, expected)]
    transfuse.conv_transpose(X, W, B, then=[tanh()])
    assert len(lines()) == 1, "another chain, but the same reason"


def test_gradients_are_no_reason_to_fall_back(lines: Lines) -> None:
    x = X.clone().requires_grad_()
    transfuse.conv_transpose(x, W, B, stride=2, then=[sigmoid()]).sum().backward()
    assert lines() == []


def test_a_backend_that_yields_is_information(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "BACKENDS", (Fake("cpu", yields="torch is faster"), EAGER))
    transfuse.conv_transpose2d(X[..., :2, :2], W)
    [(level, line)] = lines()
    assert level == logging.INFO
    assert line.startswith("cpu yields conv_transpose2d (n1 ci2 co3 i2x2 k3 s1 p0 fp32 strided cpu")
    assert line.endswith(": torch is faster; eager runs it")


def test_a_backend_for_another_device_is_no_news(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfuse.conv_transpose2d(X, W, stride=2)
    assert lines() == []
    away = Fake("away", "cuda", reason="tensors are on cpu")
    picky, slow = Fake("picky", reason="needs 256 channels"), Fake("slow")
    monkeypatch.setattr(dispatch, "BACKENDS", (away, picky, slow, EAGER))
    transfuse.conv_transpose2d(X, W)
    [(level, line)] = lines()
    assert level == logging.WARNING
    assert line.startswith("picky does not run conv_transpose2d (n1 ")
    assert line.endswith(": needs 256 channels; slow runs it")


def test_each_backend_and_reason_has_a_line_of_its_own(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reason in ("one", "two", "one"):
        for name in ("a", "b"):
            monkeypatch.setattr(dispatch, "BACKENDS", (Fake(name, reason=reason), Fake("slow")))
            transfuse.conv_transpose2d(X, W)
    assert [line.split()[0] + line.split(": ")[1][:3] for _, line in lines()] == [
        "aone",
        "bone",
        "atwo",
        "btwo",
    ]


def test_a_device_without_a_fused_backend_is_named(lines: Lines) -> None:
    for _ in range(2):
        transfuse.conv_transpose2d(X.to("meta"), W.to("meta"))
    expected = (
        "no fused backend is for tensors on meta: "
        "eager runs conv_transpose2d (n1 ci2 co3 i6x6 k3 s1 p0 fp32 meta)"
    )
    assert lines() == [(logging.WARNING, expected)]


def test_a_backend_asked_for_by_name_is_no_fallback(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfuse.conv_transpose2d(X, W, backend="eager")
    monkeypatch.setenv("TRANSFUSE_BACKEND", "eager")
    transfuse.conv_transpose2d(X, W)
    assert lines() == []


def test_a_remembered_call_does_not_come_to_the_logger(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = X.to("meta"), W.to("meta")
    transfuse.conv_transpose2d(x, w)
    said: list[Any] = []
    monkeypatch.setattr(log, "once", lambda *given: said.append(given))
    transfuse.conv_transpose2d(x, w)
    assert said == []
    transfuse.conv_transpose2d(x, w, stride=2)
    assert len(said) == 1, "the fixture works"


def test_what_nobody_was_shown_is_said_later(
    lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "transfuse")
    assert not log.once(logging.INFO, "it", "a line")
    caplog.set_level(logging.INFO, "transfuse")
    assert log.once(logging.INFO, "it", "a line")
    assert not log.once(logging.INFO, "it", "a line")
    assert lines() == [(logging.INFO, "a line")]


def test_memory_of_what_was_said_is_bounded(lines: Lines) -> None:
    for number in range(3 * log.MOST):
        log.once(logging.INFO, number, "line %s", number)
    assert len(log._said) <= log.MOST
    assert len(lines()) == 3 * log.MOST


def test_of_many_threads_one_logs(lines: Lines) -> None:
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda _: log.once(logging.INFO, "it", "a line"), range(64)))
    assert sum(said) == len(lines()) == 1


def test_a_compiled_function_may_log(lines: Lines) -> None:
    def say(x: Tensor) -> Tensor:
        log.once(logging.INFO, ("it", "again"), "a line")
        return x + 1

    compiled = torch.compile(say, fullgraph=True, backend="eager")
    assert compiled(torch.zeros(1)).item() == 1
    assert lines() == [(logging.INFO, "a line")]


def test_a_program_that_sets_up_no_logging_sees_nothing_and_one_that_does_a_line() -> None:
    sources = str(Path(transfuse.__file__).parents[1])
    code = (
        f"import sys; sys.path.insert(0, {sources!r})\n"
        "import logging, torch, transfuse\n"
        "if len(sys.argv) > 1: logging.basicConfig()\n"
        "x = torch.ones(1, 1, 2, 2, device='meta')\n"
        "for _ in range(3): transfuse.conv_transpose2d(x, x)\n"
    )
    printed = []
    for words in ([], ["show"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
        printed.append(done.stderr)
    assert printed[0] == ""
    assert printed[1].startswith("WARNING:transfuse:no fused backend is for tensors on meta: eager")
    assert printed[1].count("\n") == 1
