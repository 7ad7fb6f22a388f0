"""Strips that another Triton compiled, where this one compiles none: what serves if it has to."""

import logging
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse import log
from transfuse.backends.triton import calls, installed
from transfuse.backends.triton.gpu import Gpu
from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.launch_plan import LaunchPlan
from transfuse.backends.triton.sequence import Sequence
from transfuse.backends.triton.store import shelves
from transfuse.chain import Chain
from transfuse.plan import fused
from transfuse.problem import Problem
from transfuse.stages import conv_transpose

PROBLEM = Problem.parse("n4 ci64 co64 i64x64 k3 fp16 cuda:sm90")
CHAIN = Chain(conv_transpose(2, "bias"))
STRIPS = "pack convolve_strip convolve_carefully"
PORTABLE = "pack convolve convolve_carefully"


def meta(dims: tuple[int, ...], aligned: bool = True) -> torch.Tensor:
    """A tensor of no memory; its address is a multiple of 16, or not."""
    whole = torch.empty(int(torch.tensor(dims).prod()) + 1, dtype=torch.float16, device="meta")
    return whole[int(not aligned) :][: whole.numel() - 1].view(dims)


def planned(unaligned: str = "") -> LaunchPlan:
    x, weight = meta(PROBLEM.input.dims, unaligned != "x"), meta(PROBLEM.weight)
    out = meta(CHAIN.shapes(PROBLEM)[-1].dims, unaligned != "out")
    operands = {name: meta(dims, unaligned != name) for name, dims in CHAIN.dims(PROBLEM)}
    plan = fused(CHAIN, PROBLEM)
    return calls.prepare(CHAIN, plan, x, weight, operands, out, gpu=Gpu(90, 132)).launch_plan


def kernels(plan: LaunchPlan) -> str:
    return " ".join(each.kernel.name for each in plan.launches)


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has the strips for aligned tensors, and nothing else."""
    monkeypatch.setattr(installed, "any_row", lambda: True)
    plan = planned()
    assert kernels(plan) == STRIPS
    kinds = [torch.float16] * 4 + [dtype for _, _, dtype in plan.scratch]
    memory = [torch.empty(1, dtype=kind, device="meta") for kind in kinds]
    (key,) = (each.key for each in plan.build(memory, 90) if each.kernel.name == "convolve_strip")
    monkeypatch.setattr(installed, "any_row", lambda: False)
    monkeypatch.setattr(shelves, "find", lambda asked: "an entry" if asked == key else None)
    monkeypatch.setattr(log, "_said", {})


def test_stored_strips_serve() -> None:
    assert kernels(planned()) == STRIPS


@pytest.mark.parametrize("unaligned", ["out", "bias"])
def test_other_addresses_are_served_by_portable_kernels(
    unaligned: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Those are other kernels to the compiler, and nobody has compiled them."""
    with caplog.at_level(logging.WARNING, logger="transfuse"):
        assert kernels(planned(unaligned)) == PORTABLE
        assert kernels(planned(unaligned)) == PORTABLE
    (line,) = caplog.messages
    assert line.startswith("Triton ")
    assert line.endswith("does not compile convolve_strip; nor is one stored")


def test_where_triton_has_to_launch_portable_kernels_serve(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A profiler is told of launches by Triton alone, which cannot make one of stored code."""
    plan = planned()
    launched: list[str] = []

    def run(sequence: Sequence, tensors: Any) -> None:  # as on a GPU that is watched
        sequence.by_triton(tensors, [0] * 16, 0)

    def by_triton(launch: Launch) -> Any:
        return lambda memory, stream: launched.append(launch.kernel.name)

    monkeypatch.setattr(Sequence, "__call__", run)
    monkeypatch.setattr(Launch, "by_triton", by_triton)
    with caplog.at_level(logging.WARNING, logger="transfuse"):
        plan([])
        first = plan.compiled_here
        plan([])
    assert " ".join(launched) == f"{PORTABLE} {PORTABLE}"
    assert plan.compiled_here is first
    (line,) = caplog.messages
    assert line.startswith("Triton is to launch, and other kernels serve: Triton ")
    assert kernels(plan) == STRIPS, "what is not watched goes on as it did"


def test_where_all_can_be_compiled_nothing_else_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "any_row", lambda: True)
    plan = planned()
    launched: list[str] = []
    note = lambda launch: lambda memory, stream: launched.append(launch.kernel.name)  # noqa: E731
    monkeypatch.setattr(Launch, "by_triton", note)
    plan.by_triton([], [], 0)
    assert " ".join(launched) == STRIPS
