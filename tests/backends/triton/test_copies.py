"""What a plan says of copies: those that the launches make, and no others."""

from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.triton import Triton
from transfuse.chain import Chain
from transfuse.plan import Plan
from transfuse.problem import Problem
from transfuse.stages import Stage, avg_pool, conv_transpose

WHERE = "in the order of the tiles"


def planned(line: str, layout: str = "contiguous", before: tuple[Stage, ...] = ()) -> Plan:
    problem = replace(Problem.parse(f"{line} cuda:sm90"), layout=layout)
    return Triton().plan(Chain(*before, conv_transpose(2)), problem)


def test_a_product_on_tensors_where_they_lie_copies_nothing() -> None:
    (only,) = planned("n8 ci64 co64 i64x64 k2 s2 fp16").passes
    assert WHERE not in only.does


def test_weights_alone() -> None:
    """Rounded to tf32; the input is rounded on its way."""
    plan = planned("n8 ci64 co16 i64x64 k2 s2 fp32 tf32", "channels_last")
    copy = plan.passes[0]
    assert copy.does == f"copy weights {WHERE}"
    assert copy.reads == copy.writes == 4 * 64 * 16 * 4
    assert plan.scratch == copy.writes


def test_input_and_weights() -> None:
    copy = planned("n8 ci64 co64 i64x64 k3 s1 fp16").passes[0]
    assert copy.does == f"copy input and weights {WHERE}"
    assert copy.reads == copy.writes == 2 * (8 * 64 * 64 * 64 + 64 * 64 * 9)


def test_a_prologue_stores_its_own_results_so() -> None:
    copy = planned("n8 ci64 co64 i64x64 k3 s1 fp16", before=(avg_pool(2),)).passes[0]
    assert copy.does == f"copy weights {WHERE}"
