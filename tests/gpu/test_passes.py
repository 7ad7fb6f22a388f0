"""Passes timed on a GPU: every one of them, by the kernels launched for it."""

import pytest
import torch

from transfuse.bench.ceilings import Ceilings
from transfuse.bench.clock import clock
from transfuse.bench.passes import measured
from transfuse.chain import Chain
from transfuse.explanation import explained
from transfuse.machine import place
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.stages import conv_transpose, group_norm, lp_pool, sigmoid


@pytest.mark.parametrize("slug", OPERATORS)
@pytest.mark.parametrize("arithmetic", ["tf32", "fp16"])
def test_every_operator(slug: str, arithmetic: str) -> None:
    case = OPERATORS[slug].case("benchmark").on(arithmetic, place("cuda"))
    found = measured(explained(OPERATORS[slug].bound(case), case.problem, "triton"))
    assert found.timings is not None
    timed = found.timings.passes
    assert [each.does for each in timed] == [each.does for each in found.plan.passes]
    # The weights are copied by the kernel that pools.
    pooled = bool(found.plan.chain.prologue)
    assert [each.measured is None for each in timed] == [pooled, *[False] * (len(timed) - 1)]
    assert all(each.kernels for each in timed if each.measured is not None)
    assert all(seconds > 0 for each in timed for _, seconds in each.kernels)


def test_sweeps_around_the_convolution_and_a_chain_of_torchs() -> None:
    problem = Problem.parse(f"n4 ci32 co32 i64x64 k4 s2 p1 fp16 {place('cuda')}")
    chain = Chain(conv_transpose(2), group_norm(4), lp_pool(2, 2), sigmoid())
    for backend in ("triton", "eager"):
        found = measured(explained(chain, problem, backend))
        assert found.timings is not None
        assert all(each.measured for each in found.timings.passes)
        assert len(found.timings.passes) == len(found.plan.passes)


def test_special_functions_have_a_ceiling() -> None:
    """16 a clock in each multiprocessor is what the units do, and clocks are of some GHz."""
    ceilings = Ceilings("cuda", clock("cuda"), "fp16")
    many = 16 * torch.cuda.get_device_properties(0).multi_processor_count
    assert 0.5e9 * many < ceilings.special["fp32"] < 2.5e9 * many
