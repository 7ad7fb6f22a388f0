"""Floors: special functions counted, passes added up, and nothing put too high."""

from dataclasses import replace
from functools import partial

import pytest

from transfuse.backends.triton import Triton
from transfuse.chain import Chain
from transfuse.floors import floor, floor_of_definition
from transfuse.maths.expr import parse
from transfuse.maths.primitives import PRIMITIVES, specials
from transfuse.operators import OPERATORS
from transfuse.plan import Pass, fused, machine, staged
from transfuse.problem import Problem
from transfuse.route import Route
from transfuse.stages import (
    add,
    batch_norm,
    clamp,
    conv_transpose,
    gelu,
    group_norm,
    hardswish,
    log_softmax,
    max_pool,
    mish,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    softsign,
    tanh,
)
from transfuse.sweeping import taken

LINE = "n2 ci4 co8 i6x6 k4 s2 p1 fp32"
OUTPUTS = 2 * 8 * 12 * 12


@pytest.mark.parametrize(
    ("text", "gpu", "cpu"),
    [
        ("x + 1.0", 0, 0),
        ("exp(x)", 1, 1),
        ("exp(x) + exp(x) * 2.0", 1, 1),  # one part, computed once
        ("exp(x) + sin(x)", 2, 2),
        ("1.0 / x", 1, 0),  # a CPU divides by an instruction of its own
        ("x / 6.0", 0, 0),  # which multiplies
        ("x / exp(a)", 0, 0),  # an argument's exponential is one for many values
        ("a / exp(x)", 1, 1),
        ("sqrt(x) + rsqrt(x)", 2, 0),
        ("tanh(log1p(exp(x)))", 1, 1),  # they fold into one
    ],
)
def test_special_functions_of_an_expression(text: str, gpu: int, cpu: int) -> None:
    assert specials(parse(text), cpu=False) == gpu
    assert specials(parse(text), cpu=True) == cpu


def test_what_is_exact_takes_no_special_function() -> None:
    assert not any(row.special for row in PRIMITIVES.values() if row.exact)
    assert all(row.special for name, row in PRIMITIVES.items() if not row.exact), "all others do"


@pytest.mark.parametrize(
    ("stage", "each"),
    [
        (relu(), 0),
        (clamp(0, 1), 0),
        (hardswish(), 0),
        (add("b"), 0),
        (max_pool(2), 0),
        (group_norm(2), 0),
        (softsign(), 1),
        (sigmoid(), 1),
        (silu(), 1),
        (tanh(), 1),
        (gelu(), 1),
        (mish(), 1),
        (softplus(), 1),
        (softmax("channels"), 1),
        (softmax("space"), 1),
        (log_softmax("channels"), 1),
    ],
)
def test_special_functions_of_a_stage(stage, each: int) -> None:
    assert taken(stage, (2, 8, 12, 12), cpu=False) == each * OUTPUTS


def test_passes_count_those_of_their_stages() -> None:
    problem = Problem.parse(f"{LINE} cuda:sm90")
    chain = Chain(conv_transpose(2), sigmoid(), softmax("channels"), tanh())
    assert [each.special for each in fused(chain, problem).passes] == [3 * OUTPUTS]
    assert [each.special for each in staged(chain, problem, 4).passes] == [0, *[OUTPUTS] * 3]


def test_a_softmax_over_space_takes_its_exponentials_where_it_gathers() -> None:
    line = "n2 ci4 co8 i600x600 k4 s2 p1 fp32 cuda:sm90"
    chain = Chain(conv_transpose(2), softmax("space"), sigmoid())
    outputs = 2 * 8 * 1200 * 1200
    found = {}
    for more in ("ci4", "ci1024"):  # where products are few they are computed again
        plan = fused(chain, Problem.parse(line.replace("ci4", more)))
        found[bool(plan.recomputed)] = [each.special for each in plan.passes]
    assert found == {True: [outputs, 2 * outputs], False: [outputs, outputs]}


def test_sweeps_count_theirs() -> None:
    problem = Problem.parse(f"{LINE} cpu")
    tail = (softmax("channels"), sigmoid())
    chain = Chain(conv_transpose(2), *tail)
    route = Route(chain, problem, (), Chain(conv_transpose(2)), tail, (), "for a test")
    plan = route.plan(fused(route.core, problem), 4)
    # Once for the sum, and again, with the sigmoid's, where they are divided by it: outermost.
    assert [each.special for each in plan.passes] == [0, OUTPUTS, OUTPUTS]
    rest = replace(route, tail=(), rest=tail).plan(fused(route.core, problem), 4)
    assert [each.special for each in rest.passes] == [0, OUTPUTS, OUTPUTS]


def by_decree(flops: float, traffic: float, special: float, each: Pass) -> float:
    return max(each.flops * flops, each.bytes * traffic, each.special * special)


def test_a_pass_takes_as_long_as_what_it_has_most_of() -> None:
    problem = Problem.parse(f"{LINE} cpu")
    chain = Chain(conv_transpose(2), sigmoid())
    plan = fused(chain, problem)
    assert floor(chain, problem, partial(by_decree, 1, 0, 0)) == plan.work
    assert floor(chain, problem, partial(by_decree, 0, 1, 0)) == plan.least
    assert floor(chain, problem, partial(by_decree, 0, 0, 1)) == OUTPUTS
    assert floor_of_definition(chain, problem, partial(by_decree, 0, 0, 1)) == 0
    assert floor_of_definition(chain, problem, partial(by_decree, 1, 0, 0)) == plan.work


def test_passes_are_added_up() -> None:
    """Products of one pass do not hide the bytes of another."""
    problem = Problem.parse("n8 ci4 co8 i64x64 k4 s2 p1 fp32 cpu")
    chain = Chain(conv_transpose(2), batch_norm(weight="w", bias="b", training=True), sigmoid())
    values, conv = 8 * 8 * 128 * 128 * 4, fused(chain, problem)
    rates = partial(by_decree, 1e3, 1, 1e-9)  # products cost most: they are not computed again
    reads = 2 * 8 * 4  # weight and bias of the norm
    assert floor(chain, problem, rates) == 1e3 * conv.work + 2 * values + reads
    assert floor_of_definition(chain, problem, rates) == 1e3 * conv.work


def test_the_quickest_way_counts() -> None:
    """To store, to compute again, or neither where a program holds what a statistic covers."""
    chain = Chain(conv_transpose(2), softmax("space"))
    large, small = (
        Problem.parse(f"n2 ci4 co8 {size} k4 s2 p1 fp16 cpu") for size in ("i400x400", "i6x6")
    )
    work, least = fused(chain, large).work, fused(chain, large).least
    values = 2 * 8 * 800 * 800 * 2  # stored in 16 bits: nobody need store more
    again = floor(chain, large, partial(by_decree, 1e-9, 1, 0))
    stored = floor(chain, large, partial(by_decree, 1e9, 1, 0))
    assert again == 2 * least - values
    assert stored == 1e9 * work + 2 * values
    held = fused(chain, small)
    assert len(held.passes) == 2
    assert floor(chain, small, partial(by_decree, 1, 0, 0)) == held.work


def test_a_statistic_of_the_batch_is_held_by_no_program() -> None:
    """Nor is the half of it that stands behind a window, and needs what was gathered before."""
    problem = Problem.parse("n8 ci4 co8 i64x64 k4 s2 p1 fp32 cuda:sm90")
    norm = batch_norm(weight="w", bias="b", training=True)
    chain = Chain(conv_transpose(2), norm, max_pool(2))
    plan = fused(chain, problem)
    assert "batch_apply" in str(plan.chain)
    stored = 8 * 8 * 64 * 64 * 4
    least = floor(chain, problem, partial(by_decree, 1e3, 1, 0))
    assert least >= 1e3 * plan.work + 2 * stored


def test_the_input_is_copied_where_it_must_be() -> None:
    chain = Chain(conv_transpose(2), relu())
    line = "n8 ci64 co64 i64x64 k3x7 s1 fp16 cuda:sm90"
    traffic = partial(by_decree, 0, 1, 0)

    def copied(line: str) -> int:
        problem = Problem.parse(line)
        extra = floor(chain, problem, traffic) - floor_of_definition(chain, problem, traffic)
        return round(extra)

    assert copied(line) == 2 * (8 * 64 * 64 * 64 * 2), "read once, written once"
    assert copied(line.replace("k3x7 s1", "k2 s2")) == 0, "it is read where it lies"
    assert copied(line.replace("fp16", "fp16 channels_last")) == 0
    assert copied(line.replace("cuda:sm90", "cpu")) == 0


def test_a_pool_before_stores_in_the_order_of_the_tiles() -> None:
    op = OPERATORS["conv-transpose3d-avgpool-clamp-softmax-multiply"]
    case = op.case("benchmark")
    problem = replace(case.problem, device="cuda:sm90")
    assert Triton().repack(op.bound(case), problem) is None


@pytest.mark.parametrize("slug", OPERATORS)
@pytest.mark.parametrize("device", ["cpu", "cuda:sm90"])
def test_never_below_the_definition_nor_above_our_own_plan(slug: str, device: str) -> None:
    op = OPERATORS[slug]
    case = op.case("benchmark")
    chain, problem = op.bound(case), replace(case.problem, device=device)
    seconds = partial(machine(device).least, problem.arithmetic)
    least = floor(chain, problem, seconds)
    assert floor_of_definition(chain, problem, seconds) <= least
    ours = fused(chain, problem).passes
    copy = Triton().repack(chain, problem)
    assert least <= sum(map(seconds, [*ours, *([copy] if copy else [])]))
