"""Every rewrite alone: where it applies, where it refuses, and that it computes the same."""

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from math import inf, nan
from random import Random

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor

from transfuse import maths
from transfuse.cases import Case
from transfuse.chain import Chain
from transfuse.operators import OPERATORS, operator
from transfuse.problem import Problem
from transfuse.reference import evaluate
from transfuse.rewrite import EXPONENTS, REWRITES, rewrite, rewritten
from transfuse.stages import (
    ConvTranspose,
    Stage,
    add,
    avg_pool,
    batch_norm,
    clamp,
    conv_transpose,
    erf,
    exp,
    group_norm,
    log,
    max_pool,
    pointwise,
    relu,
    scale,
    sigmoid,
    softmax,
    sqrt,
    tanh,
)
from transfuse.stages.batch_halves import BatchApply, BatchStatistics
from transfuse.stages.reduce import Softmax
from transfuse.stages.window import AvgPool, ExtremumPool

Tensors = tuple[Tensor, Tensor, dict[str, Tensor]]

BY_NAME = {each.name: each for each in REWRITES}


def conv(bias: str | None = None, weight_scale: float = 1.0) -> ConvTranspose:
    return conv_transpose(2, bias, weight_scale=weight_scale)


def chain(*stages: Stage) -> Chain:
    """The stages after a plain convolution, or around their own."""
    own = any(isinstance(stage, ConvTranspose) for stage in stages)
    return Chain(*stages) if own else Chain(conv(), *stages)


def swapped(first: Stage, second: Stage) -> tuple[Chain, Chain]:
    return chain(first, second), chain(second, first)


def summed(*window: int | tuple[int, int]) -> AvgPool:
    return AvgPool(*window, divisor_override=1)


softplus_like = pointwise(lambda x: maths.log1p(maths.exp(x)))
HALVES = (BatchStatistics("statistics1"), BatchApply("statistics1", "w", "b"))
BOUNDED = Softmax("space", bounded=True)

# Rewrite -> chains it is meant for, each with what it makes of them.
APPLIES = {
    "merge-max-pools": [
        (chain(max_pool(2), max_pool(3)), chain(max_pool(6))),
        (chain(max_pool(2, 2), max_pool(2)), chain(max_pool(4))),
        (chain(tanh(), max_pool(3), max_pool(2), tanh()), chain(tanh(), max_pool(6), tanh())),
        (chain(max_pool(2), max_pool(2), conv()), chain(max_pool(4), conv())),
    ],
    "pool-before-monotone": [
        swapped(scale(0.3), max_pool(2)),
        swapped(scale(7), max_pool(2)),
        swapped(add(0.1), max_pool(2)),
        swapped(add(-1e38), max_pool(2)),
        swapped(clamp(-1, 2), max_pool(2)),
        swapped(clamp(2, -1), max_pool(2)),
        swapped(clamp(-inf, inf), max_pool(2)),
        swapped(sigmoid(), max_pool(2)),
        swapped(tanh(), max_pool(2)),
        swapped(exp(), max_pool(2)),
        swapped(erf(), max_pool(2)),
        swapped(softplus_like(), max_pool(2)),
        swapped(tanh(), max_pool(3, 1, 1)),
        swapped(scale(0.3), max_pool((3, 2), (2, 1), (1, 0))),
    ],
    "drop-bias-before-batch-norm": [
        (
            chain(conv("a"), batch_norm(weight="w", bias="b", training=True)),
            chain(conv(), batch_norm(weight="w", bias="b", training=True)),
        ),
        (
            chain(tanh(), conv("a"), batch_norm(training=True), tanh()),
            chain(tanh(), conv(), batch_norm(training=True), tanh()),
        ),
    ],
    "pool-before-batch-norm": [
        (
            chain(batch_norm(weight="w", bias="b", training=True), max_pool(2)),
            chain(HALVES[0], ExtremumPool(2, sign="w"), HALVES[1]),
        ),
        (
            chain(batch_norm(weight="w", bias="b", training=True), max_pool(3, 2, 1)),
            chain(HALVES[0], ExtremumPool(3, 2, 1, sign="w"), HALVES[1]),
        ),
        (
            chain(batch_norm(bias="b", eps=0.1, training=True), max_pool(2)),
            chain(HALVES[0], max_pool(2), BatchApply("statistics1", None, "b", 0.1)),
        ),
    ],
    "bias-after-max-pool": [
        (chain(conv("a"), max_pool(2)), chain(conv(), max_pool(2), add("a"))),
        swapped(add("a"), max_pool(3, 1, 1)),
        (chain(add("a"), max_pool(2), conv("b")), chain(max_pool(2), add("a"), conv("b"))),
    ],
    "bounded-softmax": [
        (chain(clamp(-0.5, 1), softmax("space")), chain(clamp(-0.5, 1), BOUNDED)),
        (chain(clamp(-40, 40), softmax("space")), chain(clamp(-40, 40), BOUNDED)),
        (chain(clamp(5, 1), softmax("space")), chain(clamp(5, 1), BOUNDED)),
        (chain(clamp(inf, 1), softmax("space")), chain(clamp(inf, 1), BOUNDED)),
    ],
    "fold-average": [
        (chain(avg_pool(2), conv("a")), chain(summed(2), conv("a", 1 / 4))),
        (chain(avg_pool((1, 2), 1), conv()), chain(summed((1, 2), 1), conv(None, 1 / 2))),
        (chain(avg_pool(4, 2, 1), conv()), chain(summed(4, 2, 1), conv(None, 1 / 16))),
    ],
}

# Rewrite -> what keeps it from applying, one condition each.
REFUSES = {
    "merge-max-pools": {
        "the first overlaps": chain(max_pool(3, 2), max_pool(2)),
        "the second overlaps": chain(max_pool(2), max_pool(3, 2)),
        "the first has gaps": chain(max_pool(2, 3), max_pool(2)),
        "the first is padded": chain(max_pool(2, padding=1), max_pool(3)),
        "the second is padded": chain(max_pool(2), max_pool(3, padding=1)),
        "a size is not known yet": chain(max_pool(2), max_pool("k")),
        "a stage lies between": chain(max_pool(2), tanh(), max_pool(3)),
        "one of them averages": chain(avg_pool(2), max_pool(3)),
    },
    "pool-before-monotone": {
        "falling": chain(scale(-1), max_pool(2)),
        "zero times Inf": chain(scale(0), max_pool(2)),
        "NaN of a number": chain(sqrt(), max_pool(2)),
        "NaN of another number": chain(log(), max_pool(2)),
        "Inf times zero": chain(scale(inf), max_pool(2)),
        "NaN factor": chain(scale(nan), max_pool(2)),
        "factor not known yet": chain(scale("factor"), max_pool(2)),
        "Inf minus Inf": chain(add(inf), max_pool(2)),
        "factor zero in float32": chain(scale(1e-300), max_pool(2)),
        "factor Inf in float32": chain(scale(1e300), max_pool(2)),
        "term Inf in float32": chain(add(1e300), max_pool(2)),
        "term -Inf in float32": chain(add(-1e300), max_pool(2)),
        "NaN term": chain(add(nan), max_pool(2)),
        "term per channel": chain(add("term"), max_pool(2)),
        "not pointwise": chain(softmax("channels"), max_pool(2)),
        "an average": chain(tanh(), avg_pool(2)),
        "pool already first": chain(max_pool(2), tanh()),
    },
    "drop-bias-before-batch-norm": {
        "no bias": chain(conv(), batch_norm(training=True)),
        "a stage lies between": chain(conv("a"), tanh(), batch_norm(training=True)),
        "groups mix channels": chain(conv("a"), group_norm(2)),
        "the norm comes first": chain(batch_norm(training=True), conv("a")),
    },
    "pool-before-batch-norm": {
        "an average": chain(batch_norm(weight="w", training=True), avg_pool(2)),
        "a stage lies between": chain(batch_norm(weight="w", training=True), tanh(), max_pool(2)),
        "another norm": chain(group_norm(2), max_pool(2)),
    },
    "bias-after-max-pool": {
        "no bias": chain(conv(), max_pool(2)),
        "a factor may be negative": chain(scale("w"), max_pool(2)),
        "an average": chain(conv("a"), avg_pool(2)),
        "a stage lies between": chain(conv("a"), tanh(), max_pool(2)),
    },
    "bounded-softmax": {
        "too low": chain(clamp(-40.5, 1), softmax("space")),
        "too high": chain(clamp(0, 40.5), softmax("space")),
        "too high throughout": chain(clamp(50, 41), softmax("space")),
        "no lower bound": chain(clamp(-inf, 1), softmax("space")),
        "no upper bound": chain(clamp(0, inf), softmax("space")),
        "both ends infinite": chain(clamp(inf, inf), softmax("space")),
        "all at -Inf": chain(clamp(0, -inf), softmax("space")),
        "lower end NaN": chain(clamp(nan, 1), softmax("space")),
        "upper end NaN": chain(clamp(0, nan), softmax("space")),
        "lower end not known yet": chain(clamp("low", 1), softmax("space")),
        "upper end not known yet": chain(clamp(0, "high"), softmax("space")),
        "over channels": chain(clamp(0, 1), softmax("channels")),
        "already bounded": chain(clamp(0, 1), BOUNDED),
        "no bounds": chain(relu(), softmax("space")),
    },
    "fold-average": {
        "nine elements": chain(avg_pool(3), conv()),
        "six elements": chain(avg_pool((2, 3)), conv()),
        "no element": chain(avg_pool(0), conv()),
        "a size is not known yet": chain(avg_pool("k"), conv()),
        "a stage lies between": chain(avg_pool(2), tanh(), conv()),
        "already folded": chain(summed(2), conv()),
        "divided by one": chain(tanh(), avg_pool(1), conv()),
        "a maximum": chain(max_pool(2), conv()),
        "after the convolution": chain(conv(), avg_pool(2)),
    },
}

each_application = pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        pytest.param(name, *pair, id=f"{name}: {pair[0]}")
        for name, pairs in APPLIES.items()
        for pair in pairs
    ],
)


def tensors(chain: Chain, problem: Problem, kind: str, seed: int = 0) -> Tensors:
    """Input, weights and operands in float64.

    ``real`` numbers, small ``integers``, or ``special``: integers, and in the first input channel
    a NaN, an Inf and a -Inf, so that other groups and samples stay finite.
    """
    generator = torch.Generator().manual_seed(seed)

    def filled(*dims: int) -> Tensor:
        if kind == "real":
            return torch.randn(dims, generator=generator, dtype=torch.float64)
        return torch.randint(-4, 5, dims, generator=generator).double()

    x, weight = filled(*problem.input.dims), filled(*problem.weight)
    if kind == "special":
        for sample, value in enumerate((nan, inf, -inf)):
            x[sample, 0].view(-1)[3 * sample] = value
    return x, weight, {name: filled(*dims) for name, dims in chain.dims(problem)}


def difference(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value; NaN must be in the same places."""
    assert torch.equal(got.isnan(), expected.isnan())
    largest = expected.nan_to_num(0.0).abs().amax().item() or 1.0
    return (got - expected).nan_to_num(0.0).abs().amax().item() / largest


# Odd sizes, so that pooling drops the last row and column. 4 samples of 4 channels make every size
# a multiple of 16: torch's loops have no tail, where its sigmoid is an ulp off the vector one.
PROBLEM = Problem.parse("n4 ci4 co4 i7x9 k3x2 s2x1 p1x0 op0 g2 fp64")

KINDS = ("integers", "special", "real")

# Where a rewrite holds in rounded arithmetic too; the others are identities of real numbers.
EXACT = {
    "merge-max-pools": KINDS,
    "pool-before-monotone": KINDS,
    "fold-average": KINDS,
    "bias-after-max-pool": ("integers", "special"),  # torch adds a bias before the sum is complete
}


def test_every_rewrite_is_listed() -> None:
    assert list(BY_NAME) == [each.name for each in REWRITES]
    assert APPLIES.keys() == REFUSES.keys() == BY_NAME.keys()
    assert all(each.says for each in REWRITES)


@each_application
def test_applies(name: str, before: Chain, after: Chain) -> None:
    assert BY_NAME[name].apply(before) == after


@pytest.mark.parametrize(
    ("name", "why"), [(name, why) for name, conditions in REFUSES.items() for why in conditions]
)
def test_refuses(name: str, why: str) -> None:
    assert BY_NAME[name].apply(REFUSES[name][why]) is None


@each_application
@pytest.mark.parametrize("kind", KINDS)
def test_computes_the_same(name: str, before: Chain, after: Chain, kind: str) -> None:
    x, weight, operands = tensors(before, PROBLEM, kind)
    expected = evaluate(before, PROBLEM, x, weight, operands)
    got = evaluate(after, PROBLEM, x, weight, operands)
    if kind in EXACT.get(name, ()):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    else:
        assert difference(got, expected) < 1e-12


def test_the_cases_above_are_not_empty_of_special_values() -> None:
    x, weight, _ = tensors(chain(), PROBLEM, "special")
    y = evaluate(chain(), PROBLEM, x, weight, {})
    assert all(test(y).any() for test in (torch.isnan, torch.isposinf, torch.isneginf))
    assert y[3].isfinite().all()
    assert y[:, 2:].isfinite().all()


@pytest.mark.parametrize(
    "weight", [(1, 2, 3, 4), (-1, -2, -3, -4), (0, 0, 0, 0), (2, -1, 0, -3)], ids=str
)
def test_pool_before_batch_norm_whatever_the_sign(weight: tuple[float, ...]) -> None:
    for before, after in APPLIES["pool-before-batch-norm"]:
        x, kernel, operands = tensors(before, PROBLEM, "real")
        operands["w"] = torch.tensor(weight, dtype=torch.float64)
        expected = evaluate(before, PROBLEM, x, kernel, operands)
        assert difference(evaluate(after, PROBLEM, x, kernel, operands), expected) < 1e-12


def test_statistics_cover_what_pooling_truncates() -> None:
    """1x1 kernel of one: outputs are inputs, and the last of 5 is in no window of 2."""
    problem = Problem.parse("n1 ci1 co1 i5 k1 fp64")
    before = Chain(conv_transpose(1), batch_norm(weight="w", bias="b", training=True), max_pool(2))
    one = torch.ones(1, dtype=torch.float64)
    results = []
    for last in (0.0, 100.0):
        x = torch.tensor([[[1.0, 2.0, 3.0, 4.0, last]]], dtype=torch.float64)
        both = [
            evaluate(each, problem, x, one.reshape(1, 1, 1), {"w": one, "b": one})
            for each in (before, rewritten(before))
        ]
        assert difference(*both) < 1e-12
        results.append(both[1])
    assert not torch.allclose(*results)
    assert rewritten(before).needed(problem) == (5,)


# What would go wrong without a condition: a chain, and what the rewrite would make of it.
WRONG = {
    "overlap": (chain(max_pool(3, 2), max_pool(2)), chain(max_pool(6))),
    "gaps": (chain(max_pool(1, 2), max_pool(2)), chain(max_pool(2))),
    "padding": (chain(max_pool(2, padding=1), max_pool(2)), chain(max_pool(4))),
    "falling": swapped(scale(-1), max_pool(2)),
    "zero times Inf": swapped(scale(0), max_pool(2)),
    "Inf times zero": swapped(scale(inf), max_pool(2)),
    "Inf minus Inf": swapped(add(inf), max_pool(2)),
    "sign per channel": swapped(scale("w"), max_pool(2)),
    "bias of a group": (chain(conv("a"), group_norm(2)), chain(conv(), group_norm(2))),
    "no upper bound": (chain(clamp(0, inf), softmax("space")), chain(BOUNDED)),
}


@pytest.mark.parametrize("why", WRONG)
def test_conditions_are_needed(why: str) -> None:
    before, after = WRONG[why]
    for kind in ("integers", "special"):
        x, weight, operands = tensors(before, PROBLEM, kind)
        expected = evaluate(before, PROBLEM, x, weight, operands)
        got = evaluate(after, PROBLEM, x, weight, operands)
        if got.shape != expected.shape or not torch.allclose(got, expected, equal_nan=True):
            return
    pytest.fail(f"{before} and {after} agree")


@pytest.mark.parametrize("end", [-EXPONENTS, EXPONENTS])
def test_float32_has_room_for_unshifted_exponents(end: float) -> None:
    values = torch.full((1, 1, 1000), end)
    uniform = torch.full_like(values, 1 / 1000)
    torch.testing.assert_close(BOUNDED.apply(values, {}), uniform)
    assert BOUNDED.apply(3 * values, {}).isnan().all()


# Operator -> the rewrites its chain goes through, in order.
STEPS = {
    "conv-transpose-2d-square-input-asym-kernel": [],
    "conv-transpose2d-softmax-biasadd-scaling-sigmoid": [],
    "conv-transpose3d-avgpool-clamp-softmax-multiply": ["bounded-softmax", "fold-average"],
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm": [
        "pool-before-monotone",
        "pool-before-batch-norm",
    ],
    "conv-transpose3d-max-max-sum": ["merge-max-pools", "bias-after-max-pool"],
}


@pytest.mark.parametrize("slug", OPERATORS)
@pytest.mark.parametrize("case", ["benchmark", "cpu", "small"])
def test_steps_of_an_operator(slug: str, case: str) -> None:
    named = operator(slug)
    steps = rewrite(named.bound(named.case(case)))
    assert [step.rewrite.name for step in steps] == STEPS[slug]
    for step, following in pairwise(steps):
        assert following.rewrite.apply(step.chain) == following.chain


def test_an_average_of_27_stays() -> None:
    named = operator("conv-transpose3d-avgpool-clamp-softmax-multiply")
    steps = rewrite(named.bound(named.case("ragged")))
    assert [step.rewrite.name for step in steps] == ["bounded-softmax"]


def variations(slug: str, count: int) -> list[Case]:
    """The operator's small cases at random sizes, most of which its pools do not divide."""
    named, random = operator(slug), Random(slug)
    found: dict[str, Case] = {}
    while len(found) < count:
        case = named.case(random.choice(["small", "ragged"]))
        spatial = tuple(random.randint(2, 13 - 3 * named.rank // 2) for _ in case.problem.spatial)
        case = replace(case, problem=replace(case.problem, spatial=spatial, dtype="fp64"))
        with suppress(RuntimeError):
            named.bound(case).shapes(case.problem)
            found[str(case)] = case
    return list(found.values())


@pytest.mark.parametrize(
    ("slug", "case"),
    [
        pytest.param(slug, case, id=f"{slug} {case}")
        for slug, steps in STEPS.items()
        if steps
        for case in variations(slug, 20)
    ],
)
def test_a_rewritten_operator_computes_the_same(slug: str, case: Case) -> None:
    before, problem = operator(slug).bound(case), case.problem
    after = rewritten(before)
    assert after != before
    for kind in ("integers", "real"):
        x, weight, operands = tensors(before, problem, kind)
        expected = evaluate(before, problem, x, weight, operands)
        got = evaluate(after, problem, x, weight, operands)
        if kind == "integers" and before.exact:
            assert torch.equal(got, expected)
        else:
            assert difference(got, expected) < 1e-12


POOLS = [max_pool(1), max_pool(2), max_pool(3), max_pool(2, 1), max_pool(3, 2, 1)]
POINTWISE = [
    tanh(), sigmoid(), clamp(-1, 1), clamp(1, 0),
    scale(0.5), scale(-2), scale("s"), add(1), add("a"),
]  # fmt: skip
# eps = 1, so that the norm of a channel that is constant does not magnify rounding.
NORMS = [
    batch_norm(weight="s", bias="a", training=True, eps=1.0),
    batch_norm(eps=1.0, training=True),
    group_norm(2, "s", eps=1.0),
]
SOFTMAXES = [softmax("space"), softmax("channels")]
PROLOGUES = [
    (),
    (avg_pool(2),),
    (avg_pool(3, 1, 1),),
    (max_pool(2), max_pool(2)),
    (scale(2), add("p"), max_pool(2), avg_pool(2)),
]


@given(
    prologue=st.sampled_from(PROLOGUES),
    bias=st.sampled_from([None, "c"]),
    epilogue=st.lists(
        st.one_of(*map(st.sampled_from, (POOLS, POINTWISE, NORMS, SOFTMAXES))), max_size=6
    ),
    spatial=st.tuples(st.integers(4, 11), st.integers(4, 11)),
)
@settings(max_examples=300)
def test_any_chain_computes_the_same(
    prologue: tuple[Stage, ...], bias: str | None, epilogue: list[Stage], spatial: tuple[int, int]
) -> None:
    before, problem = Chain(*prologue, conv(bias), *epilogue), replace(PROBLEM, spatial=spatial)
    try:
        result = before.shapes(problem)[-1]
    except RuntimeError:  # nothing is left to pool
        reject()
    x, weight, operands = tensors(before, problem, "real")
    expected = evaluate(before, problem, x, weight, operands)
    for step in rewrite(before):
        assert step.chain.shapes(problem)[-1] == result, step.rewrite.name
        got = evaluate(step.chain, problem, x, weight, operands)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13, msg=step.rewrite.name)
    assert all(each.apply(rewritten(before)) is None for each in REWRITES)
