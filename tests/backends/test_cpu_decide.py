"""Cuts that a program leaves open: what the core decides, says and does is one thing."""

import ctypes
from typing import Any

import pytest
import torch

from transfuse import fills
from transfuse.backends.cpu import Cpu, decided, library, lower, programs
from transfuse.chain import Chain
from transfuse.plan import Choice, machine
from transfuse.problem import DTYPES, Problem
from transfuse.rewrite import rewritten
from transfuse.stages import batch_norm, clamp, conv_transpose, group_norm, max_pool, softmax, tanh

core: Any = library.load()
pytestmark = pytest.mark.skipif(core is None, reason="the compiled core is not installed")

STORE, AGAIN, HOLD = Choice.STORE, Choice.AGAIN, Choice.HOLD
NORMS = Chain(conv_transpose(2), batch_norm(training=True), tanh(), group_norm(2))
SOFTMAX = Chain(conv_transpose(2), clamp(-1, 1), softmax("space"))


def choices(chain: Chain, line: str) -> list[Choice]:
    """Those of the cuts behind the convolution."""
    better = rewritten(chain)
    found = decided.choices(better, Problem.parse(line)).items()
    return [choice for at, choice in found if at > better.at]


@pytest.mark.parametrize(
    ("chain", "line", "found"),
    [
        (NORMS, "n2 ci64 co8 i20x20 k3", [STORE, HOLD]),
        (NORMS, "n2 ci64 co8 i300x300 k3", [STORE, AGAIN]),  # no tile holds a group
        (NORMS, "n2 ci1 co8 i20x20 k2 s2", [AGAIN, AGAIN]),  # a product is cheaper than memory
        (SOFTMAX, "n2 ci64 co8 i20x20 k3", [STORE]),
        (SOFTMAX, "n2 ci1 co8 i20x20 k2 s2", [AGAIN]),
    ],
)
def test_choices(chain: Chain, line: str, found: list[Choice]) -> None:
    assert choices(chain, line) == found
    # The plan, which is what explain prints, says the same.
    plan = decided.fused(chain, Problem.parse(line))
    assert len(plan.recomputed) == found.count(AGAIN)
    assert len(plan.resident) == found.count(HOLD)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_point_where_storing_takes_over(dtype: str) -> None:
    """By the rates of plan.py: the flops of a kernel of 1 against two ways through memory."""
    rates, size = machine("cpu"), 8 if dtype == "fp64" else 4
    positions, outputs = 2 * 30 * 30, 32
    turned = []
    for inputs in range(1, 200):
        flops = (2 * inputs + rates.per_value) * positions * outputs
        again = flops / rates.flops[dtype] + (positions + outputs) * inputs * size / rates.bandwidth
        expected = AGAIN if again < 2 * positions * outputs * size / rates.bandwidth else STORE
        assert choices(SOFTMAX, f"n2 ci{inputs} co32 i30x30 k1 {dtype}") == [expected], inputs
        turned.append(expected)
    assert set(turned) == {AGAIN, STORE}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("line", ["n2 ci64 co8 i20x20 k3", "n2 ci1 co8 i20x20 k2 s2"])
@pytest.mark.parametrize("chain", [NORMS, SOFTMAX], ids=str)
def test_an_open_program_gives_the_same_bits(chain: Chain, line: str, dtype: str) -> None:
    problem = Problem.parse(f"{line} {dtype}")
    x, weight, _ = fills.real(chain, problem, 0)
    wanted = Cpu().run(chain, problem, x, weight, {})
    got = torch.full_like(wanted, torch.nan)
    assert run(chain, problem, x, weight, got) == 0
    assert torch.equal(got, wanted)


def opened(chain: Chain, problem: Problem) -> Any:
    """The program of a chain, every cut left open."""
    better = rewritten(chain)
    steps = [each.step(lambda name: 0) for _, each in lower.steps(better, better.shapes(problem))]
    program = programs.convolution(problem, better.conv.weight_scale)
    program.steps, program.steps_count = (library.Step * len(steps))(*steps), len(steps)
    return program


def run(chain: Chain, problem: Problem, x: Any, weight: Any, out: Any) -> int:
    """The steps of a chain without tensors, every cut left open."""
    from transfuse.backends.cpu.weights import pack

    program = opened(chain, problem)
    program.input, program.input_strides = x.data_ptr(), programs.strides(x.stride())
    program.output, program.output_strides = out.data_ptr(), programs.strides(out.stride())
    kept = pack(core, program, weight, 1)
    program.weights = kept.data_ptr()
    return int(core.transfuse_run(program, 2))


def test_what_is_out_of_range_is_refused() -> None:
    program = opened(SOFTMAX, Problem.parse("n1 ci1 co1 i4x4 k1"))
    cuts = (ctypes.c_int32 * program.steps_count)()
    assert core.transfuse_decide(program, cuts) == 0
    assert core.transfuse_decide(program, None) == 1
    assert core.transfuse_message() == b"cuts is a null pointer"
    for wrong in (-1, library.CUTS.index("hold"), 4):
        program.steps[2].i0 = wrong
        assert core.transfuse_decide(program, cuts) == 1
        assert f"must be 0 to 2, but got {wrong}" in core.transfuse_message().decode()


def test_a_pool_in_between_is_no_part_of_a_statistic() -> None:
    """What crosses the cut is what the pool leaves."""
    chain = Chain(conv_transpose(2), batch_norm(training=True), tanh(), max_pool(2), group_norm(2))
    assert choices(chain, "n2 ci64 co8 i400x400 k3") == [STORE, AGAIN]
    assert choices(chain, "n2 ci64 co8 i200x200 k3") == [STORE, HOLD]
