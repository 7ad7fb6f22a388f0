"""Engines: the first that takes a segment serves it, and those before it say why they do not."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.triton import Triton, installed
from transfuse.backends.triton.engines import ordered
from transfuse.backends.triton.engines.contract import Task, Unsuited
from transfuse.backends.triton.engines.portable.convolve_launch import Portable
from transfuse.chain import Chain
from transfuse.explanation import explain
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.stages import conv_transpose, group_norm, max_pool

from .test_launch_plan import kernels, planned

PLAIN, SOFTMAX, POOL, NORM, MAX = OPERATORS
STRIP, WINDOW = "hopper_strip", "hopper_window"


@pytest.fixture(autouse=True)
def _any_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled here, so every Triton will do."""
    monkeypatch.setattr(installed, "any_row", lambda: True)


def served(slug: str, arithmetic: str, capability: int = 90) -> Any:
    case = OPERATORS[slug].case("benchmark").on(arithmetic, "cuda")
    return planned(OPERATORS[slug].bound(case), case.problem, capability, real=True).served


def test_names_are_their_own() -> None:
    names = [engine.name for engine in ordered.ENGINES]
    assert len({*names}) == len(names)
    assert isinstance(ordered.ENGINES[-1], Portable), "the last one serves whatever is left"


@pytest.mark.parametrize(
    ("slug", "engines"),
    [
        (PLAIN, [STRIP]),
        (SOFTMAX, [STRIP]),
        (POOL, ["portable", "portable"]),
        (NORM, ["portable"]),
        (MAX, [WINDOW]),
    ],
)
def test_who_serves_the_operators(slug: str, engines: list[str]) -> None:
    assert [each.engine for each in served(slug, "fp16")] == engines


@pytest.mark.parametrize(
    ("arithmetic", "capability", "reason"),
    [
        ("fp16", 80, "it is written for sm_90, not for sm_80"),
        ("fp16", 100, "it is written for sm_90, not for sm_100"),
        ("fp32", 90, "it multiplies tf32, fp16 and bf16, not fp32"),
        ("fp64", 90, "it multiplies tf32, fp16 and bf16, not fp64"),
    ],
)
def test_why_no_engine_of_hopper_serves(arithmetic: str, capability: int, reason: str) -> None:
    (found,) = served(PLAIN, arithmetic, capability)
    assert found.engine == "portable"
    passed_over = dict(found.passed_over)
    assert passed_over[WINDOW] == passed_over[STRIP] == reason


@pytest.mark.parametrize(
    ("line", "stages", "reasons"),
    [
        (
            "n2 ci64 co64 i9x9 k3 s1 g2 fp16 cuda",
            (),
            {WINDOW: "it takes one group and", STRIP: "2 groups; it takes one"},
        ),
        (
            "n2 ci64 co256 i9x9 k3 s1 fp16 cuda",
            (max_pool(2),),
            {WINDOW: "256 output channels; one tile holds 128", STRIP: "a window follows"},
        ),
        ("n2 ci64 co64 i9x9 k3 s3 fp16 cuda", (), {STRIP: "3 width classes; it joins at most 2"}),
        (
            "n1 ci512 co64 i3x3 k3 s1 fp16 cuda",
            (),
            {STRIP: "1 tiles of long sums leave most of 132"},
        ),
        (
            "n2 ci8 co64 i64x64 k3 s1 fp16 cuda",
            (group_norm(8, "w", "b"),),
            {
                WINDOW: "it takes no statistic of a sample",
                STRIP: "sums are short before a statistic",
            },
        ),
    ],
)
def test_reasons_have_their_numbers(
    line: str, stages: tuple[Any, ...], reasons: dict[str, str]
) -> None:
    chain = Chain(conv_transpose(2), *stages)
    found = planned(chain, Problem.parse(line), real=True).served[0]
    assert found.engine == "portable"
    for engine, reason in reasons.items():
        assert dict(found.passed_over)[engine].startswith(reason)


@dataclass
class Another:
    """An engine of a room of its own: it counts what it is asked, and launches as portable does."""

    refuses: str = ""
    none_fits: str = ""
    asked: list[str] = field(default_factory=list)
    name: str = "another"

    def verdict(self, task: Task) -> str:
        self.asked.append("verdict")
        return self.refuses

    def configs(self, task: Task) -> Iterator[Any]:
        self.asked.append("configs")
        if self.none_fits:
            raise Unsuited(self.none_fits)
        yield from Portable().configs(task)

    def share(self, tiles: Any) -> float:
        return 0.5

    def emit(self, task: Task, tiles: Any) -> None:
        self.asked.append("emit")
        Portable().emit(task, tiles)


@pytest.mark.parametrize(
    ("another", "asked", "engine"),
    [
        (Another(), ["verdict", "configs", "emit"], "another"),
        (Another(refuses="not today"), ["verdict"], STRIP),
        (Another(none_fits="none fits"), ["verdict", "configs"], STRIP),
    ],
)
def test_a_new_engine_is_a_line_in_the_list(
    monkeypatch: pytest.MonkeyPatch, another: Another, asked: list[str], engine: str
) -> None:
    monkeypatch.setattr(ordered, "ENGINES", (another, *ordered.ENGINES))
    problem = Problem.parse("n2 ci64 co64 i9x9 k3 s1 fp16 cuda")
    found = planned(Chain(conv_transpose(2)), problem, real=True)
    assert another.asked == asked
    assert found.served[0].engine == engine
    reason = another.refuses or another.none_fits
    assert dict(found.served[0].passed_over).get("another", "") == reason
    kernel = "convolve" if engine == "another" else "convolve_strip"
    assert kernels(found) == f"pack {kernel} convolve_carefully"


def test_explain_says_who_serves_and_why_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transfuse.dispatch.BACKENDS", (Triton(),))
    x, w = torch.empty(2, 64, 9, 9, device="meta"), torch.empty(64, 64, 3, 3, device="meta")
    found = explain(
        Chain(conv_transpose(2)), x.half(), w.half(), {}, device="cuda:sm90", backend="triton"
    )
    (row,) = found.tiles
    assert row.engine.startswith("hopper_strip: strip 2x")
    assert row.passed_over == {
        WINDOW: "it takes one group and a maximum or sum right after the convolution",
        "few": "it takes at most 4 output channels, and there are 64",
        "gemm": "stride 1 has one phase, and kernel 3 more taps",
    }
    text = " ".join(str(found).split())
    assert "not hopper_window: it takes one group and a maximum or sum right after" in text
    assert found.as_dict()["tiles"][0]["passed over"] == row.passed_over
