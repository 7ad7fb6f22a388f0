"""Layers drawn by seed: the same each time, of every kind, none larger than its bounds."""

from math import prod

import pytest

from transfuse.drawn_layers import LARGE, SMALL, Bounds, drawn_layer

DRAWS = [drawn_layer(seed) for seed in range(600)]


def test_a_seed_is_one_layer() -> None:
    assert [drawn_layer(seed) for seed in range(50)] == DRAWS[:50]
    assert len({problem for problem, _ in DRAWS}) > 590


@pytest.mark.parametrize("bounds", [SMALL, LARGE])
def test_no_layer_is_larger_than_its_bounds(bounds: Bounds) -> None:
    for seed in range(200):
        problem, _ = drawn_layer(seed, bounds)
        sizes = (problem.input.numel, problem.output().numel, prod(problem.weight))
        assert max(sizes) <= bounds.elements
        assert problem.flops() <= bounds.flops
        assert problem.in_torch


def test_they_are_of_every_kind_that_people_build() -> None:
    problems = [problem for problem, _ in DRAWS]
    axes = [axis for problem in problems for axis in problem.axes]
    assert {problem.rank for problem in problems} == {1, 2, 3}
    assert {axis.k for axis in axes} >= {1, 2, 3, 4, 5, 7, 8, 16}
    assert {axis.stride for axis in axes} == set(range(1, 9))
    assert {axis.dilation for axis in axes} == {1, 2, 3, 4}
    channels = {each for p in problems for each in (p.in_channels, p.out_channels)}
    assert channels >= {2**power for power in range(11)}
    assert any(each & (each - 1) for each in channels)
    assert {problem.batch for problem in problems} >= {1, 128}
    assert max(problem.batch for problem in problems) == 128
    assert {bias for _, bias in DRAWS} == {False, True}
    assert any(len(set(problem.kernel)) > 1 for problem in problems)
    sizes = sorted(problem.output().numel for problem in problems)
    assert sizes[0] < 2**16
    assert sizes[-1] > 2**25


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        (lambda p: p.groups == 1, 0.6, 0.9),
        (lambda p: 1 < p.groups == p.in_channels == p.out_channels, 0.03, 0.2),
        (lambda p: 1 < p.groups < p.in_channels, 0.05, 0.25),
        (lambda p: all(s <= k for s, k in zip(p.stride, p.kernel, strict=True)), 0.9, 1.0),
        (lambda p: max(p.stride) > 1, 0.4, 0.8),
        (lambda p: max(p.dilation) > 1, 0.1, 0.4),
    ],
    ids=["one group", "depthwise", "groups", "no gaps", "strided", "dilated"],
)
def test_shares_are_those_of_models(kind, least, most) -> None:
    share = sum(map(kind, (problem for problem, _ in DRAWS))) / len(DRAWS)
    assert least < share < most
