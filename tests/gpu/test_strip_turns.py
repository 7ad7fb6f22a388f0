"""Hopper's strips with consumers that take turns: on a GPU, whatever would be chosen there.

On another GPU the same calls go to portable kernels, and must be as right.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from transfuse import fills
from transfuse.accuracy import Oracle
from transfuse.backends.triton import Triton, calls
from transfuse.backends.triton.engines import ordered
from transfuse.backends.triton.engines.hopper_strip import strip_layout, strip_turns
from transfuse.backends.triton.engines.hopper_strip.strip_layout import StripTiling
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import (
    add,
    batch_norm,
    conv_transpose,
    group_norm,
    scale,
    sigmoid,
    softmax,
    tanh,
)

SOFTMAX = (softmax("channels"), add("shift"), scale(2.0), sigmoid())
CHAINS: list[tuple[str, tuple[Any, ...]]] = [
    ("n1 ci64 co128 i5x5 k4 s2 p1 op1 fp32", SOFTMAX),
    ("n13 ci64 co128 i64x64 k4 s2 p1 op1 fp32", SOFTMAX),
    ("n13 ci64 co128 i64x64 k4 s2 p1 op1 fp16", SOFTMAX),
    ("n9 ci48 co100 i21x19 k4 s2 p1 op1 bf16", SOFTMAX),
    ("n2 ci64 co64 i256x256 k4 s2 p1 op1 fp16", (tanh(),)),
    ("n3 ci40 co50 i33x47 k4 s2 p1 op1 fp32", (tanh(),)),
    ("n5 ci64 co64 i41x37 k4 s2 p1 op1 fp32", (batch_norm(training=True),)),
    ("n5 ci64 co64 i41x37 k4 s2 p1 op1 fp16", (group_norm(4),)),
]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    usual = strip_layout.choose

    def choose(*of: Any) -> StripTiling | None:
        return next(strip_turns.configs(*of), usual(*of))

    monkeypatch.setattr(strip_layout, "choose", choose)
    monkeypatch.setattr(strip_turns, "LEAST", 0.0)
    others = tuple(each for each in ordered.ENGINES if each.name != "gemm")
    monkeypatch.setattr(ordered, "ENGINES", others)
    calls.forget()
    yield
    calls.forget()


@pytest.mark.usefixtures("turns")
@pytest.mark.parametrize("fill", [fills.real, fills.special])
@pytest.mark.parametrize(("line", "then"), CHAINS, ids=[line for line, _ in CHAINS])
def test_turns(line: str, then: tuple[Any, ...], fill: Any) -> None:
    problem = Problem.parse(f"{line} cuda tf32" if "fp32" in line else f"{line} cuda")
    chain = Chain(conv_transpose(problem.rank, "bias"), *then)
    x, w, operands = fill(chain, problem, 0)
    shape = chain.shapes(problem)[-1].dims
    outs = [torch.full(shape, torch.nan, dtype=x.dtype, device=x.device) for _ in range(2)]
    for out in outs:
        Triton().run(chain, problem, x, w, operands, out)
    assert torch.equal(*(out.view(torch.uint8) for out in outs))
    accuracy = Oracle(chain, problem, x, w, operands, Triton().ulp(problem)).judge(outs[0])
    assert accuracy.ok, accuracy.fault
