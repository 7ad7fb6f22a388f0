"""Rewrites leave alone pools whose windows may be empty, cut short, or divided unevenly."""

import pytest
import torch

from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.reference import reference
from transfuse.rewrite import rewrite, rewritten
from transfuse.stages import (
    Stage,
    add,
    avg_pool,
    batch_norm,
    conv_transpose,
    max_pool,
    scale,
    sigmoid,
)
from transfuse.stages.window import ExtremumPool

EMPTY = max_pool(2, 1, 1, 3)
"""Of two inputs, its only window reads what lies at -1 and at 2: none of them."""
ALONE: dict[str, list[Stage]] = {
    "an empty window after a map": [sigmoid(), EMPTY],
    "an empty window after a norm": [batch_norm(weight="w", training=True), EMPTY],
    "an empty window after terms": [add("b"), EMPTY],
    "pools in ceil_mode": [max_pool(2, ceil_mode=True), max_pool(2)],
    "pools with gaps": [max_pool(2, dilation=2), max_pool(2)],
}


@pytest.mark.parametrize("name", ALONE)
def test_left_alone(name: str) -> None:
    assert rewrite(Chain(conv_transpose(1), *ALONE[name])) == ()


def test_a_window_may_be_empty() -> None:
    x, one = torch.zeros(1, 1, 2), torch.ones(1, 1, 1)
    chain = Chain(conv_transpose(1), sigmoid(), EMPTY)
    y = reference(chain, Problem.parse("n1 ci1 co1 i2 k1"), x, one, {})
    assert y.tolist() == [[[-torch.inf]]], "and not the sigmoid of that, which is 0"


@pytest.mark.parametrize(
    "pool",
    [max_pool(3, 2, ceil_mode=True), max_pool(2, 1, dilation=2), max_pool((2,), 3, 1)],
    ids=str,
)
def test_others_move_with_all_their_options(pool: Stage) -> None:
    moved = rewritten(Chain(conv_transpose(1), sigmoid(), pool))
    assert moved.epilogue == (pool, sigmoid())
    norm = rewritten(Chain(conv_transpose(1), batch_norm(weight="w", training=True), pool))
    assert norm.epilogue[1] == ExtremumPool(**vars(pool), sign="w")


@pytest.mark.parametrize(
    ("pool", "factor"),
    [
        (avg_pool(2), 1 / 4),
        (avg_pool(3, divisor_override=8), 1 / 8),
        (avg_pool(2, padding=1), 1 / 4),
        (avg_pool(2, padding=1, count_include_pad=False), 1),
        (avg_pool(2, ceil_mode=True), 1),
        (avg_pool(3), 1),
        (avg_pool(2, divisor_override=-4), 1),
    ],
    ids=str,
)
def test_what_is_divided_alike_goes_into_the_weights(pool: Stage, factor: float) -> None:
    chain = Chain(pool, conv_transpose(2), scale(3.0))
    assert rewritten(chain).conv.weight_scale == factor
    problem = Problem.parse("n2 ci2 co2 i5x7 k3")
    generator = torch.Generator().manual_seed(1)
    x, w = (torch.randn(dims, generator=generator) for dims in ((2, 2, 5, 7), (2, 2, 3, 3)))
    expected = reference(chain, problem, x, w, {})
    found = reference(rewritten(chain), problem, x, w, {})
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
