"""The core's stages, alone and in chains, against the oracle; verdicts; layouts.

Every result goes into memory that was NaN before, between two guards, and is judged by the budget
that the oracle derives for the arithmetic the core claims.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from functools import cache, lru_cache
from math import inf, nan
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import transfuse
from transfuse import fills
from transfuse.accuracy import Oracle, longest_sum, terms
from transfuse.backends import cpu
from transfuse.backends.base import prepared
from transfuse.backends.cpu import decided, lower
from transfuse.backends.eager import Eager
from transfuse.chain import Chain
from transfuse.dispatch import choose
from transfuse.elements import ELEMENTS
from transfuse.front import _checked, run
from transfuse.plan import Choice, Plan
from transfuse.problem import DTYPES, Problem
from transfuse.reference import reference
from transfuse.stages import (
    Env,
    Kind,
    Stage,
    add,
    avg_pool,
    batch_norm,
    clamp,
    conv_transpose,
    group_norm,
    max_pool,
    scale,
    sigmoid,
    softmax,
    tanh,
)
from transfuse.stages import sum as channel_sum
from transfuse.stages.reduce import Reduce

BACKEND = cpu.Cpu()
GUARD = 256
SENTINEL = -77.0
Filled = tuple[Tensor, Tensor, dict[str, Tensor]]


def chain_of(problem: Problem, *then: Stage, before: Sequence[Stage] = ()) -> Chain:
    return Chain(*before, conv_transpose(problem.rank), *then)


def computed(chain: Chain, problem: Problem, x: Tensor, w: Tensor, operands: Any) -> Tensor:
    shape = chain.shapes(problem)[-1]
    memory = torch.full((shape.numel + 2 * GUARD,), SENTINEL, dtype=x.dtype)
    out = memory[GUARD : GUARD + shape.numel].view(shape.dims).fill_(torch.nan)
    run(chain, problem, x, w, operands, out, "cpu")
    assert (memory[:GUARD] == SENTINEL).all()
    assert (memory[GUARD + shape.numel :] == SENTINEL).all()
    return out


@lru_cache(maxsize=4096)
def truth(chain: Chain, problem: Problem, fill: Callable[..., Filled]) -> tuple[Filled, Oracle]:
    """Values and their oracle: the same for every plan."""
    filled = fill(chain, problem, 0)
    return filled, oracle(chain, problem, *filled)


def oracle(chain: Chain, problem: Problem, x: Tensor, w: Tensor, operands: Any) -> Oracle:
    # A sum over channels adds all their products. In float64 the oracle itself, which is torch,
    # sums as many terms as a statistic has, one after another.
    summed = any(isinstance(stage, Reduce) for stage in chain.stages)
    length = terms(chain.core(problem)) * (problem.out_channels if summed else 1)
    if problem.dtype == "fp64":
        length = max(length, longest_sum(chain, problem))
    return Oracle(chain, problem, x, w, operands, BACKEND.ulp(problem), length)


def assert_right(
    chain: Chain, problem: Problem, fill: Callable[..., Filled] = fills.real
) -> Tensor:
    filled, exact = truth(chain, problem, fill)
    y = computed(chain, problem, *filled)
    accuracy = exact.judge(y)
    assert accuracy.ok, f"{accuracy.fault}\n  {problem}\n  {chain}"
    return y


def planned(chain: Chain, problem: Problem) -> Plan:
    return BACKEND.plan(chain, problem)


def forget() -> None:
    """Plans and verdicts are kept; a test that changes the machine starts without them."""
    prepared.cache_clear()
    _checked.clear()
    for kept in vars(cpu).values():
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()


# ---- every stage alone -----------------------------------------------------------------------

# Groups in padded slots, depthwise, several tiles, odd sizes; 6 divides the channels of each.
PROBLEMS = [
    "n2 ci3 co6 i11 k3 s2 p1",
    "n2 ci5 co18 i7x9 k3x2 s2x1 p1x0 op1x0",
    "n2 ci6 co36 i5x6 k3 g2",
    "n2 ci6 co6 i9x7 k3 s2 g6",
    "n1 ci3 co66 i37x41 k2",
    "n2 ci3 co18 i5x4x6 k3 s2 p1",
    "n3 ci4 co12 i4x9x5 k2x3x1 s1x2x3 g2",
]
ALONE: list[tuple[Stage, ...]] = [
    (add(1.5),),
    (add("a"),),
    (scale(-2),),
    (scale("a"),),
    (clamp(-0.5, 1),),
    (clamp(0, inf),),
    (clamp(1, -1),),
    (sigmoid(),),
    (scale(60), sigmoid()),
    (tanh(),),
    (scale(0.01), tanh()),
    (softmax("channels"),),
    (scale(90), softmax("channels")),
    (channel_sum("channels", keepdim=True),),
    (max_pool(2),),
    (max_pool(3, 2, 1),),
    (max_pool(2, 1),),
    (max_pool(1, 3),),
    (max_pool(2, 2, 1),),
    (avg_pool(2),),
    (avg_pool(3, 1, 1),),
    (avg_pool(2, 3),),
    (batch_norm(training=True),),
    (batch_norm(weight="w", bias="b", training=True),),
    (batch_norm(weight="w", training=True),),
    (batch_norm(bias="b", training=True),),
    (batch_norm(eps=0.5, training=True),),
    (batch_norm("m", "v"),),
    (batch_norm("m", "v", "w", "b", eps=0.5), max_pool(2)),
    (batch_norm("m", "v", "w", "b", training=True), max_pool(2)),
    (group_norm(1),),
    (group_norm(3, "w", "b"),),
    (group_norm(6, "w"),),
    (group_norm(2, bias="b", eps=0.5),),
    (softmax("space"),),
    (scale(90), softmax("space")),
    (clamp(-1, 2), softmax("space")),
]
BEFORE = [
    max_pool(2),
    max_pool(3, 1, 1),
    max_pool(1, 2),
    avg_pool(2),
    avg_pool(3),
    avg_pool(3, 2, 1),
    avg_pool(2, 1),
    sigmoid(),
    add("b"),
    clamp(0.25, inf),
]


def alone() -> Iterator[Any]:
    """Every stage on every problem; element types take turns."""
    for i, then in enumerate(ALONE):
        for j, line in enumerate(PROBLEMS):
            problem = Problem.parse(f"{line} {DTYPES[(i + j) % 4]}")
            chain = chain_of(problem, *then)
            yield pytest.param(chain, problem, id=f"{problem} | {chain}")


def prologues() -> Iterator[Any]:
    for i, before in enumerate(BEFORE):
        for j, line in enumerate(PROBLEMS):
            problem = Problem.parse(f"{line} {DTYPES[(i + j) % 4]}")
            chain = chain_of(problem, add("a"), before=[before])
            yield pytest.param(chain, problem, id=f"{problem} | {chain}")


@pytest.mark.parametrize(("chain", "problem"), [*alone(), *prologues()])
def test_stage(chain: Chain, problem: Problem) -> None:
    assert_right(chain, problem)


@pytest.mark.parametrize(("chain", "problem"), [*alone(), *prologues()])
def test_stage_with_nan_and_inf(chain: Chain, problem: Problem) -> None:
    assert_right(chain, problem, fills.special)


def narrow() -> Iterator[Any]:
    """Windows before the convolution that reach beyond an input at both ends."""
    pools = [max_pool(3, 2, 1), max_pool(2, 2, 1), max_pool(5, 3, 2), avg_pool(3, 2, 1)]
    for line in ("n2 ci3 co6 i1 k3", "n2 ci3 co6 i5x1 k2 s2", "n1 ci2 co6 i3x3x2 k2"):
        for i, before in enumerate([*pools, avg_pool(5, 2, 2), avg_pool(2, 3, 1)]):
            problem = Problem.parse(f"{line} {DTYPES[i % 4]}")
            chain = chain_of(problem, before=[before])
            if problem.rank < 3 or before.name == "max_pool":
                yield pytest.param(chain, problem, id=f"{problem} | {chain}")


@pytest.mark.parametrize("fill", [fills.real, fills.special])
@pytest.mark.parametrize(("chain", "problem"), list(narrow()))
def test_pools_of_narrow_inputs(chain: Chain, problem: Problem, fill: Any) -> None:
    assert_right(chain, problem, fill)


def bad_operands(chain: Chain, problem: Problem, seed: int) -> Filled:
    """One channel of every operand is NaN, one Inf, one -Inf, one 0; all else is as usual."""
    x, w, operands = fills.real(chain, problem, seed)
    for value in operands.values():
        if value.numel() > 4:
            value[1:5] = torch.tensor([nan, inf, -inf, 0.0])
    return x, w, operands


@pytest.mark.parametrize("line", PROBLEMS)
@pytest.mark.parametrize(
    "then",
    [
        (add("a"), max_pool(2)),
        (scale("a"), max_pool(2)),
        (batch_norm(weight="w", training=True), max_pool(2)),
        (batch_norm(bias="b", training=True), tanh(), max_pool(2)),
        (add("a"), batch_norm(weight="w", bias="b", training=True), sigmoid()),
        (group_norm(3, "w", "b"), max_pool(2), softmax("space")),
        (add("a"), softmax("channels")),
    ],
    ids=lambda then: " -> ".join(map(str, then)),
)
def test_operands_that_are_not_finite(then: tuple[Stage, ...], line: str) -> None:
    """Also where a rewrite would move a stage past another if they were."""
    problem = Problem.parse(line)
    for bias in (None, "bias"):
        chain = Chain(conv_transpose(problem.rank, bias), *then)
        assert_right(chain, problem, bad_operands)


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_finite_is_what_torch_says(dtype: str) -> None:
    core = cpu.library.load()
    assert core is not None
    info = torch.finfo(ELEMENTS[dtype].dtype)
    edges = [info.max, info.min, info.tiny, ELEMENTS[dtype].tiny, -0.0, 1.0]
    values = torch.tensor(edges, dtype=ELEMENTS[dtype].dtype)
    assert values.isfinite().all()
    assert cpu.library.finite(core, values)
    for bad in (nan, inf, -inf):
        for at in range(len(values)):
            spoilt = values.clone()
            spoilt[at] = bad
            assert not cpu.library.finite(core, spoilt)
            assert cpu.library.finite(core, spoilt[at + 1 :])
            every_second = torch.stack([values, spoilt], dim=1)
            assert cpu.library.finite(core, every_second[:, 0])
    long = torch.ones(3000, dtype=ELEMENTS[dtype].dtype)
    assert cpu.library.finite(core, long)
    long[2999] = nan
    assert not cpu.library.finite(core, long)
    assert cpu.library.finite(core, long[:2999])


def test_every_stage_is_here() -> None:
    """Every class of stage that an engine has a kernel for, and all it sees of them."""
    here = {(type(stage), stage.sees(2)) for then in ALONE for stage in then} | {
        (type(s), s.sees(2)) for s in BEFORE
    }
    every = (
        *(batch_norm("m", "v"), batch_norm(training=True), softmax("channels"), softmax("space")),
        *(channel_sum("channels", keepdim=True), max_pool(2), avg_pool(2), tanh()),
    )
    assert here == {(type(stage), stage.sees(2)) for stage in every}


def function_points(dtype: torch.dtype) -> Tensor:
    """From the tiniest numbers to saturation, of both signs, and those that are none."""
    tiny, count = torch.finfo(dtype).tiny, 20_000 if dtype == torch.float64 else 50_000
    sizes = np.concatenate([np.geomspace(tiny, 120, count + 1), np.linspace(0.3, 110, count)])
    x = torch.from_numpy(np.concatenate([-sizes, [0, -np.inf, np.inf, np.nan], sizes]))
    return x.to(dtype)


@cache
def exact_function(stage: Stage, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """At the finite points, as float64 and what float64 leaves out: no machine need have more."""
    x = function_points(dtype).double().numpy()
    x = x[np.isfinite(x)]
    if dtype == torch.float32:
        return np.tanh(x) if stage == tanh() else 1 / (1 + np.exp(-x)), np.zeros_like(x)
    # Near 0 two terms of the series, the next is below 1e-29 of them: x - x^3 / 3, 1/2 + x / 4.
    small = abs(x) < 1e-7
    high = x.copy() if stage == tanh() else 0.5 + x / 4
    low = -(x**3) / 3 if stage == tanh() else x / 4 - (high - 0.5)
    with localcontext(prec=40):
        for i in np.flatnonzero(~small):
            e = (-Decimal(x[i])).exp()
            wide = (1 - e * e) / (1 + e * e) if stage == tanh() else 1 / (1 + e)
            high[i] = wide
            low[i] = wide - Decimal(high[i])
    return high, low


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("stage", [sigmoid(), tanh()], ids=str)
def test_functions_to_two_ulps(stage: Stage, dtype: str) -> None:
    """Relative to each value: what a chain's budget cannot see."""
    element = ELEMENTS[dtype]
    info, x = torch.finfo(element.dtype), function_points(element.dtype)
    problem = Problem.parse(f"n1 ci1 co1 i{x.numel()} k1 {dtype}")
    one = torch.ones(problem.weight, dtype=element.dtype)
    y = computed(chain_of(problem, stage), problem, x.view(1, 1, -1), one, {}).flatten()
    high, low = exact_function(stage, element.dtype)
    errors = np.abs(y[x.isfinite()].double().numpy() - high - low)  # exact: the first two are near
    assert (errors <= 2 * np.maximum(np.abs(high) * info.eps, info.tiny)).all()
    assert y[x.isinf()].tolist() == [0.0 if stage == sigmoid() else -1.0, 1.0]
    assert y.isnan().nonzero().tolist() == x.isnan().nonzero().tolist()


# ---- whole stages, under every plan ----------------------------------------------------------

WHOLE: list[tuple[Stage, ...]] = [
    (batch_norm(weight="w", bias="b", training=True), tanh(), max_pool(2), group_norm(3, "v", "a")),
    (batch_norm(weight="w", bias="b", training=True), group_norm(2)),
    (group_norm(3), softmax("channels")),
    (group_norm(3), scale(3), softmax("space")),
    (max_pool(2), softmax("space")),
    (softmax("space"), scale(40), batch_norm(training=True)),
    (clamp(-1, 1), softmax("space"), scale(40), group_norm(2)),
    # the same statistic twice, and three times
    (batch_norm(weight="w", bias="b", training=True), tanh(), batch_norm(training=True)),
    (group_norm(2), sigmoid(), group_norm(3, "w", "b")),
    (softmax("space"), scale(100), softmax("space")),
    (
        batch_norm(training=True),
        tanh(),
        batch_norm(weight="w", training=True),
        sigmoid(),
        batch_norm(bias="b", training=True),
    ),
    # windows after a statistic drop positions that it must cover
    (batch_norm(weight="w", training=True), max_pool(3)),
    (batch_norm(weight="w", training=True), max_pool(2, 3)),
    (batch_norm(training=True), max_pool(1, 4)),
    (batch_norm(training=True), avg_pool(4)),
    (group_norm(3), max_pool(3)),
    (softmax("space"), max_pool(3)),
    (batch_norm(training=True), tanh(), group_norm(3), max_pool(3)),
    (batch_norm(training=True), tanh(), softmax("space"), avg_pool(3)),
    (batch_norm(training=True), group_norm(2), max_pool(2, 3), softmax("space")),
    # windows that overlap, before and after
    (max_pool(3, 2, 1), batch_norm(weight="w", bias="b", training=True), avg_pool(3, 1, 1)),
    (max_pool(3, 1, 1), group_norm(2), max_pool(2, 1)),
    (avg_pool(2, 1), softmax("space"), scale(50), max_pool(3, 2, 1), batch_norm(training=True)),
    # one channel is left
    (channel_sum("channels", keepdim=True), batch_norm(training=True), softmax("space")),
    (batch_norm(training=True), channel_sum("channels", keepdim=True), group_norm(1), max_pool(2)),
]
# What is done at a cut: in the pass of the convolution, in a later one, there by what a tile holds.
MACHINES = {
    "usual": None,
    "store": (Choice.STORE, Choice.AGAIN, Choice.AGAIN),
    "resident": (Choice.STORE, Choice.AGAIN, Choice.HOLD),
    "recompute": (Choice.AGAIN, Choice.AGAIN, Choice.AGAIN),
}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    wanted = MACHINES[request.param]

    def choices(chain: Chain, problem: Problem) -> dict[int, Choice]:
        assert wanted is not None
        found: dict[int, Choice] = {}
        for i, stage in enumerate(chain.stages):
            if stage.sees(chain.conv.rank) is Kind.WHOLE and stage.applies:
                stored = Choice.STORE in found.values()
                holds = stored and lower._resident(stage, chain.shapes(problem)[i]) is not None
                found[i] = wanted[stored + holds]
        return found

    if wanted is not None:
        monkeypatch.setattr(decided, "choices", choices)
    forget()
    yield request.param
    forget()


def wholes() -> Iterator[Any]:
    for i, then in enumerate(WHOLE):
        for j, line in enumerate(PROBLEMS[1:]):
            problem = Problem.parse(f"{line} {DTYPES[(i + j) % 4]}")
            chain = chain_of(problem, *then)
            yield pytest.param(chain, problem, id=f"{problem} | {chain}")


@pytest.mark.parametrize(("chain", "problem"), list(wholes()))
def test_whole_stages(machine: str, chain: Chain, problem: Problem) -> None:
    assert BACKEND.verdict(chain, problem).ok
    assert_right(chain, problem)


def test_the_machines_give_different_plans(machine: str) -> None:
    problem = Problem.parse("n2 ci5 co18 i7x9 k3")
    plan = planned(chain_of(problem, batch_norm(training=True), tanh(), group_norm(3)), problem)
    assert len(plan.passes) == {"usual": 2, "store": 3, "resident": 2, "recompute": 3}[machine]
    assert plan.recomputed == {"store": (3,), "recompute": (1, 3)}.get(machine, ())
    assert plan.resident == ((3,) if machine in ("usual", "resident") else ())


@pytest.mark.parametrize(
    ("line", "resident"),
    [
        ("n2 ci5 co8 i124x124 k3", True),  # 8 * 126 * 126 values: 508,032 bytes
        ("n2 ci5 co8 i125x125 k3", False),  # 8 * 127 * 127 values: 516,128 bytes
        ("n1 ci3 co2 i248x248 k4 fp16", True),
        ("n1 ci3 co2 i251x251 k4 bf16", False),
        ("n1 ci5 co4 i124x124 k3 fp64", True),
        ("n1 ci5 co4 i126x126 k3 fp64", False),
    ],
)
@pytest.mark.parametrize(
    "then",
    [(group_norm(1),), (add(5), group_norm(1), max_pool(3))],
    ids=lambda then: " -> ".join(map(str, then)),
)
def test_group_norm_on_both_sides_of_the_limit(
    then: tuple[Stage, ...], line: str, resident: bool
) -> None:
    problem = Problem.parse(line)
    chain = chain_of(problem, batch_norm(training=True), *then)
    assert bool(planned(chain, problem).resident) == resident
    assert_right(chain, problem)


@pytest.mark.parametrize("then", [(), (batch_norm(training=True),)], ids=["conv", "after a store"])
@pytest.mark.parametrize("clamped", [True, False], ids=["clamped", "unclamped"])
def test_softmax_over_many_positions(then: tuple[Stage, ...], clamped: bool) -> None:
    """122,500 terms: added one after another in float32 they would be off by 20 budgets."""
    problem = Problem.parse("n1 ci40 co3 i350x350 k1")
    stages = (*then, *([clamp(0, 1)] if clamped else []), softmax("space"))
    assert_right(chain_of(problem, *stages), problem)


def test_softmax_over_space_where_whole_tiles_are_minus_inf(machine: str) -> None:
    """A tile that holds only -Inf adds nothing; a channel that holds only -Inf is NaN."""
    problem = Problem.parse("n1 ci2 co6 i64x64 k1")
    chain = chain_of(problem, softmax("space"))
    x, w, operands = fills.real(chain, problem, 0)
    w.abs_()
    x[:, :, :40] = -inf
    w[:, 3] = 0
    y = computed(chain, problem, x, w, operands)
    right = oracle(chain, problem, x, w, operands)
    assert right.exact.isnan().any((0, 2, 3)).tolist() == [False] * 3 + [True] + [False] * 2
    assert right.judge(y).ok


@pytest.mark.parametrize("mean", [30.0, 1000.0])
@pytest.mark.parametrize("norm", [batch_norm(training=True), group_norm(6), group_norm(2)], ids=str)
def test_norm_of_values_far_from_zero(norm: Stage, mean: float, machine: str) -> None:
    problem = Problem.parse("n2 ci3 co6 i23x31 k3")
    assert_right(chain_of(problem, add(mean), norm), problem)
    assert_right(chain_of(problem, batch_norm(training=True), add(mean), norm), problem)


# ---- sizes that strain tiles -----------------------------------------------------------------

# Windows whose inputs at one position come near the size of a tile: edge windows have fewer
# inputs than those inside, or more, where a statistic covers what the last ones drop.
WINDOWS: list[tuple[Stage, ...]] = [
    (max_pool(2, 2, 1),),
    (max_pool(3, 1, 1), avg_pool(3, 1, 1)),
    (batch_norm(training=True), max_pool(4)),
    (batch_norm(training=True), max_pool(2, 5)),
    (avg_pool(5, 4, 2), group_norm(1), max_pool(3)),
]
CROWDED: list[tuple[str, tuple[Stage, ...]]] = [
    *(
        (f"n1 ci1 co{co} i15x14 k2", w)
        for co in (40, 64, 90, 192, 200, 450, 1000, 2000)
        for w in WINDOWS
    ),
    *((f"n1 ci1 co{co} i8x7x6 k2", w) for co in (20, 60, 150, 400, 900) for w in WINDOWS[:3]),
    ("n1 ci2 co192 i16x16x16 k2", (batch_norm(training=True), max_pool(6))),
    ("n1 ci1 co90 i40x40 k1", (max_pool(15, 15, 7), batch_norm(training=True))),
    ("n1 ci1 co90 i40x40 k1", (avg_pool(40),)),
    # more channels than a tile holds at one position
    ("n1 ci1 co41000 i2x2 k1", (softmax("channels"),)),
    ("n2 ci1 co41000 i3 k2", (channel_sum("channels", keepdim=True),)),
    ("n1 ci1 co41000 i2x3 k1", (batch_norm(training=True), max_pool(2))),
    ("n1 ci2 co4099 i3x4 k2 s2 fp64", (group_norm(1), softmax("space"))),
    # many input channels for few outputs, and weights beyond any cache
    ("n1 ci2050 co2 i9x8 k3", (sigmoid(),)),
    ("n1 ci300 co320 i6x5 k4 s2 p1", (batch_norm(training=True), max_pool(2))),
    # long and thin
    ("n1 ci1 co1 i100003 k3 s2", (softmax("space"),)),
    ("n1 ci1 co2 i1x20011 k1x3", (max_pool((1, 7)), batch_norm(training=True))),
    ("n1 ci1 co2 i20011x1 k3x1", (max_pool((7, 1)), group_norm(1))),
    ("n301 ci1 co2 i2x2 k1", (batch_norm(training=True),)),
]


@pytest.mark.parametrize(
    ("line", "then"), CROWDED, ids=[f"{line} | {' -> '.join(map(str, t))}" for line, t in CROWDED]
)
def test_crowded(line: str, then: tuple[Stage, ...]) -> None:
    problem = Problem.parse(line)
    assert_right(chain_of(problem, *then), problem)


# ---- random chains ---------------------------------------------------------------------------


def random_stage(random: Random, rank: int, i: int) -> Stage:
    def window(pool: Callable[..., Stage]) -> Stage:
        kernel = tuple(random.randint(1, 3) for _ in range(rank))
        stride = random.choice([None, None, tuple(random.randint(1, 3) for _ in range(rank))])
        padding = tuple(random.choice([0, 0, k // 2]) for k in kernel)
        return pool(kernel, stride, padding)

    def name(key: str) -> str | None:
        return random.choice([None, f"{key}{i}"])

    makers: list[Callable[[], Stage]] = [
        lambda: add(random.choice([0.5, -3, f"a{i}"])),
        lambda: scale(random.choice([2.0, -0.25, f"a{i}"])),
        lambda: clamp(random.choice([-inf, -1, 0]), random.choice([0.5, 2, inf])),
        sigmoid,
        tanh,
        lambda: softmax("channels"),
        lambda: channel_sum("channels", keepdim=True),
        lambda: window(max_pool),
        lambda: window(max_pool),
        lambda: window(avg_pool),
        lambda: batch_norm(weight=name("w"), bias=name("b"), training=True),
        lambda: batch_norm(f"m{i}", f"v{i}", name("w"), name("b"), random.random() < 0.5),
        lambda: group_norm(random.choice([1, 2, 3]), name("w"), name("b")),
        lambda: softmax("space"),
    ]
    return random.choice(makers)()


def random_chain(random: Random) -> tuple[Chain, Problem]:
    rank = random.choice((1, 2, 3))

    def axes(low: int, high: int) -> tuple[int, ...]:
        return tuple(random.randint(low, high) for _ in range(rank))

    groups = random.choice((1, 1, 2, 6))
    problem = Problem(
        batch=random.randint(1, 3),
        in_channels=groups * random.randint(1, 5),
        out_channels=6 * random.choice((1, 1, 2, 3, 6)),
        spatial=axes(2, (40, 12, 6)[rank - 1]),
        kernel=axes(1, 4),
        stride=axes(1, 3),
        padding=axes(0, 1),
        dilation=axes(1, 2),
        output_padding=(0,) * rank,
        groups=groups,
        dtype=random.choice(DTYPES),
    )
    before = random.choice([(), (), (random.choice(BEFORE),)])
    then = [random_stage(random, rank, i) for i in range(random.randint(1, 5))]
    bias = random.choice([None, "bias"])
    return Chain(*before, conv_transpose(rank, bias), *then), problem


def random_chains(count: int) -> Iterator[tuple[Chain, Problem]]:
    random = Random(3)
    while count:
        chain, problem = random_chain(random)
        try:
            shapes = chain.shapes(problem)
        except (RuntimeError, ValueError):
            continue  # too small for a window, groups that do not divide: draw again
        if max(shape.numel for shape in shapes) < 2e5:
            count -= 1
            yield chain, problem


RANDOM = [pytest.param(c, p, id=f"{p} | {c}") for c, p in random_chains(160)]


@pytest.mark.parametrize(("chain", "problem"), RANDOM)
def test_random_chain(chain: Chain, problem: Problem) -> None:
    verdict = BACKEND.verdict(chain, problem)
    if verdict.ok:
        assert_right(chain, problem)
    else:
        assert_refused(chain, problem, verdict.reason)


# ---- refusals --------------------------------------------------------------------------------


def assert_refused(chain: Chain, problem: Problem, reason: str) -> None:
    """Named, the backend raises with its reason; otherwise eager's bits come back."""
    filled = fills.real(chain, problem, 0)
    with pytest.raises(transfuse.UnsupportedError) as refused:
        run(chain, problem, *filled, backend="cpu")
    assert f"cpu      {reason}" in str(refused.value)
    assert 'try      backend="eager"' in str(refused.value)
    assert run(chain, problem, *filled).equal(Eager().run(chain, problem, *filled))


def test_random_chains_are_served_and_most_in_one_kernel() -> None:
    drawn = [param.values for param in RANDOM]
    assert all(BACKEND.verdict(chain, problem).ok for chain, problem in drawn)
    held = [not cpu._refuses(chain, problem) for chain, problem in drawn]
    assert 0.85 * len(drawn) < sum(held) < len(drawn)


@dataclass(frozen=True)
class Halve(Stage):
    """A stage that somebody declared elsewhere."""

    kind: ClassVar[Kind] = Kind.POINTWISE
    name: ClassVar[str] = "halve"

    def apply(self, x: Tensor, env: Env) -> Tensor:
        return x / 2


LINE = "n2 ci3 co4 i9x8 k3"
OVERLAP = "windows of {} overlap where a statistic is gathered before them"
REFUSED = [
    ([group_norm(1)], [], "it does maps and one pool, not group_norm(1)"),
    ([avg_pool(2), max_pool(2)], [], "it does maps and one pool, not max_pool(2)"),
    ([], [Halve()], "it has no step for halve"),
    ([], [tanh(), Halve(), group_norm(2)], "it has no step for halve"),
    ([], [batch_norm(training=True), max_pool(3, 1)], OVERLAP.format("max_pool(3, stride 1)")),
    (
        [],
        [batch_norm(training=True), max_pool(2, 2, 1)],
        OVERLAP.format("max_pool(2, stride 2, padding 1)"),
    ),
]


@pytest.mark.parametrize(
    ("before", "then", "reason"),
    REFUSED,
    ids=[str(Chain(*b, conv_transpose(2), *t)) for b, t, _ in REFUSED],
)
def test_what_its_kernel_refuses_it_serves_all_the_same(
    before: list[Stage], then: list[Stage], reason: str
) -> None:
    problem = Problem.parse(LINE)
    chain = chain_of(problem, *then, before=before)
    assert cpu._refuses(chain, problem).endswith(reason)
    x, weight, operands = filled = fills.real(chain, problem, 0)
    y = run(chain, problem, *filled, backend="cpu")
    oracle = Oracle(chain, problem, x, weight, operands, BACKEND.ulp(problem))
    assert oracle.judge(y).ok


@pytest.mark.parametrize("line", ["n64 ci100 co32 i2x2 k4", "n64 ci100 co32 i1x1 k4"])
def test_a_plain_convolution_of_few_positions_is_not_left_to_torch(line: str) -> None:
    problem = Problem.parse(line)
    assert choose(chain_of(problem), problem).name == "cpu"


def test_other_devices_are_refused() -> None:
    problem = Problem.parse(f"{LINE} cuda:sm90")
    assert BACKEND.verdict(chain_of(problem), problem).reason == "tensors are on cuda:sm90"


def test_without_the_core_eager_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu.library, "load", lambda: None)
    forget()
    problem = Problem.parse(LINE)
    assert_refused(chain_of(problem, tanh()), problem, "the compiled core is not installed")
    monkeypatch.undo()
    forget()
    assert BACKEND.verdict(chain_of(problem, tanh()), problem).ok


# ---- layouts ---------------------------------------------------------------------------------


def in_buffer(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A view of this shape, every second element of a buffer of sentinels along each axis."""
    buffer = torch.full([2 * size + 3 for size in shape], SENTINEL, dtype=dtype)
    return buffer[tuple(slice(2, 2 * size + 2, 2) for size in shape)]


def stepped(t: Tensor) -> Tensor:
    return in_buffer(t.shape, t.dtype).copy_(t)


def offset(t: Tensor) -> Tensor:
    """Not aligned to anything but its elements."""
    memory = torch.full([t.numel() + 9], SENTINEL, dtype=t.dtype)
    return memory[7:-2].view(t.shape).copy_(t)


def transposed(t: Tensor) -> Tensor:
    return t.transpose(0, -1).contiguous().transpose(0, -1)


def channels_last(t: Tensor) -> Tensor:
    return t.movedim(1, -1).contiguous().movedim(-1, 1) if t.dim() > 1 else stepped(t)


def rows_apart(t: Tensor) -> Tensor:
    """Rows as in a wider image: the last axis is dense, the others are not."""
    wide = torch.full([*t.shape[:-1], t.shape[-1] + 5], SENTINEL, dtype=t.dtype)
    return wide[..., 2:-3].copy_(t)


def negated(t: Tensor) -> Tensor:
    return torch._neg_view(-t)


def expanded(t: Tensor) -> Tensor:
    """The first of the last axis, everywhere: stride 0."""
    return t[..., :1].expand(t.shape)


def constant(t: Tensor) -> Tensor:
    """One element in memory."""
    return torch.tensor(2.0, dtype=t.dtype).expand(t.shape)


IN = [stepped, offset, transposed, channels_last, rows_apart, negated, expanded, constant]
OUT = [stepped, offset, transposed, channels_last, rows_apart, negated]
# One line for each rank, groups, and depthwise.
LAID_OUT = [
    "n2 ci4 co5 i9 k3 s2 p1 op1 fp32",
    "n2 ci4 co17 i5x4 k3x2 s2 p1 op1 fp32",
    "n2 ci4 co6 i5x4 k3x2 s2x1 g2 fp16",
    "n2 ci4 co4 i5x14 k3 s1x2 g4 bf16",
    "n2 ci4 co3 i5x4x6 k3x2x3 s2 p1 fp64",
]


def each(name: str, values: Sequence[object]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(name, values, ids=lambda v: getattr(v, "__name__", str(v)))


@each("layout", IN)
@each("which", ["x", "weight", "operands", "all"])
@each("line", LAID_OUT)
def test_any_layout_of_the_inputs(
    line: str, which: str, layout: Callable[[Tensor], Tensor]
) -> None:
    """Integers and exact stages: the bits of contiguous copies, and nothing given is changed."""
    problem = Problem.parse(line)
    chain = chain_of(problem, add("a"), clamp(-20, 30), max_pool(2), scale("f"))
    x, w, operands = fills.integers(chain, problem, 0)
    x = layout(x) if which in ("x", "all") else x
    w = layout(w) if which in ("weight", "all") else w
    if which in ("operands", "all"):
        operands = {name: layout(value) for name, value in operands.items()}
    copies = [t.resolve_neg().clone(memory_format=torch.contiguous_format) for t in (x, w)]
    plain = {name: value.resolve_neg().clone() for name, value in operands.items()}
    expected = computed(chain, problem, *copies, plain)
    assert computed(chain, problem, x, w, operands).equal(expected)
    assert torch.equal(expected, reference(chain, problem, *copies, plain).to(x.dtype))
    assert x.equal(copies[0])
    assert w.equal(copies[1])


WRITTEN: list[tuple[Stage, ...]] = [
    (add("a"),),
    (
        batch_norm(weight="w", bias="b", training=True),
        tanh(),
    ),  # values wait in the output between the passes
    (clamp(-1, 1), softmax("space"), scale(7)),
    (group_norm(1), max_pool(2)),
    (softmax("channels"),),
    (channel_sum("channels", keepdim=True),),
]


@each("layout", OUT)
@pytest.mark.parametrize("then", WRITTEN, ids=lambda then: " -> ".join(map(str, then)))
@each("line", LAID_OUT)
def test_any_layout_of_the_output(
    machine: str, line: str, then: tuple[Stage, ...], layout: Callable[[Tensor], Tensor]
) -> None:
    """The result in its place, in its own strides, and no other byte of that memory changes."""
    problem = Problem.parse(line)
    chain = chain_of(problem, *then)
    filled, exact = truth(chain, problem, fills.real)
    out = layout(torch.full(chain.shapes(problem)[-1].dims, torch.nan, dtype=filled[0].dtype))
    memory = out.as_strided([out.untyped_storage().size() // out.itemsize], [1], 0).resolve_neg()
    outside = memory.isnan().logical_not_()
    before, strides = memory[outside].clone(), out.stride()
    assert run(chain, problem, *filled, out, "cpu") is out
    assert out.stride() == strides
    assert exact.judge(out.resolve_neg()).ok
    after = out.as_strided([out.untyped_storage().size() // out.itemsize], [1], 0).resolve_neg()
    assert after[outside].equal(before)


@each("line", LAID_OUT)
def test_unbatched_is_a_batch_of_one(line: str) -> None:
    problem = Problem.parse(line)
    x, w, _ = fills.real(chain_of(problem), problem, 0)
    names = ("stride", "padding", "output_padding", "dilation", "groups")
    options = {name: getattr(problem, name) for name in names}
    for then in ([tanh(), max_pool(2)], [softmax("space"), group_norm(1)]):
        batched = transfuse.conv_transpose(x[:1], w, **options, then=then, backend="cpu")
        single = transfuse.conv_transpose(x[0], w, **options, then=then, backend="cpu")
        assert single.equal(batched[0])
        out = torch.full_like(single, torch.nan)
        transfuse.conv_transpose(x[0], w, **options, then=then, out=out, backend="cpu")
        assert out.equal(single)


@each("line", LAID_OUT)
@pytest.mark.parametrize("then", WRITTEN, ids=lambda then: " -> ".join(map(str, then)))
def test_no_samples(then: tuple[Stage, ...], line: str) -> None:
    problem = replace(Problem.parse(line), batch=0)
    chain = chain_of(problem, *then)
    filled = fills.real(chain, problem, 0)
    y = run(chain, problem, *filled, backend="cpu")
    assert y.shape == chain.shapes(problem)[-1].dims
    assert y.dtype == filled[0].dtype


@pytest.mark.parametrize("bounds", [(nan, 1.0), (-1.0, nan)], ids=str)
def test_a_bound_that_is_nan_makes_nan(bounds: tuple[float, float]) -> None:
    problem = Problem.parse(LINE)
    assert_right(chain_of(problem, clamp(*bounds)), problem)
