"""Every stage on the GPU, alone and in chains, in Triton's interpreter, against the oracle.

Plans are those for a GPU, and those that a GPU of other rates would get: values stored between
passes, computed again, or held by one program. Scratch memory was NaN before, between guards.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from transfuse import fills
from transfuse.backends.triton import Triton
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.operators import OPERATORS
from transfuse.problem import DTYPES, Problem
from transfuse.stages import (
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

# A program costs the interpreter milliseconds, whatever it holds: few of them, and never just one.
TILES: list[tuple[Any, ...]] = [
    ("rows", (1, 1, 1, 32), 8),
    ("box", (1, 2, 4, 4), 8),
    ("batch", (2, 2, 4, 2), 8),
    ("box", (1, 2, 2, 8), 8, 8),
]
PROBLEMS = [
    "n2 ci3 co6 i7 k3 s2 p1",
    "n2 ci3 co6 i3x4 k3x2 s2x1 p1x0 op1x0",
    "n1 ci4 co12 i3x4 k3x1 p1x0 g2",
    "n2 ci6 co6 i3x4 k2 s2 g6",
    "n2 ci3 co6 i2x3x3 k1x2x1 s1x2x1",
]
ALONE: list[tuple[Stage, ...]] = [
    (add(1.5),),
    (add("a"),),
    (scale(-2),),
    (scale("a"),),
    (clamp(-0.5, 1),),
    (clamp(0, inf),),
    (clamp(1, -1),),
    (clamp(nan, 1),),
    (sigmoid(),),
    (scale(60), sigmoid()),
    (tanh(),),
    (scale(0.01), tanh()),
    (softmax("channels"),),
    (scale(90), softmax("channels")),
    (channel_sum("channels", keepdim=True),),
    (softmax("channels"), channel_sum("channels", keepdim=True), add(1)),
    (max_pool(2),),
    (max_pool(3, 2, 1),),
    (max_pool(2, 1),),
    (max_pool(1, 3),),
    (max_pool(2, 2, 1),),
    (avg_pool(2),),
    (avg_pool(3, 1, 1),),
    (avg_pool(2, 3),),
    (tanh(), avg_pool(2), sigmoid()),
    (softmax("channels"), max_pool(2), add("a")),
    (batch_norm(training=True),),
    (batch_norm(weight="w", bias="b", training=True),),
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
    (softmax("channels"), scale(-3), add("a"), sigmoid()),
    (softmax("channels"), add("a"), scale(2.5), add("b")),
]
BEFORE: list[tuple[Stage, ...]] = [
    (max_pool(2),),
    (max_pool(3, 1, 1),),
    (max_pool(1, 2),),
    (avg_pool(2),),
    (avg_pool(3, 2, 1),),
    (avg_pool(2, 1),),
    (tanh(), scale("v"), avg_pool(2), add("u"), clamp(-1, 1)),
    (sigmoid(), max_pool(2), scale(-3)),
    (add("u"),),
    (batch_norm("u", "v"), max_pool(2), batch_norm("m", "q", "w", "b")),
]


def case(line: str, i: int, *then: Stage, before: tuple[Stage, ...] = ()) -> Any:
    problem = Problem.parse(f"{line} {DTYPES[i % 4]}")
    chain = Chain(*before, conv_transpose(problem.rank, "bias" if i % 3 else None), *then)
    return pytest.param(chain, problem, TILES[i % len(TILES)], id=f"{problem} | {chain} | {i}")


def alone() -> Iterator[Any]:
    """Types, tiles and problems take turns."""
    for i, then in enumerate(ALONE):
        yield case(PROBLEMS[i % len(PROBLEMS)], i, *then)
    for i, before in enumerate(BEFORE):
        line = (
            PROBLEMS[i % len(PROBLEMS)]
            .replace("i3x4", "i5x6")
            .replace("i2x3x3", "i4x3x4")
            .replace("i7", "i9")
        )
        yield case(line, i, add("a"), before=before)


@pytest.mark.parametrize(("chain", "problem", "tiles"), list(alone()))
def test_stage(chain: Chain, problem: Problem, tiles: Any, interpreter: Any) -> None:
    interpreter.right(chain, problem, tiles=tiles)


@pytest.mark.long
@pytest.mark.parametrize(("chain", "problem", "tiles"), list(alone())[::3])
def test_stage_with_nan_and_inf(
    chain: Chain, problem: Problem, tiles: Any, interpreter: Any
) -> None:
    interpreter.right(chain, problem, fills.special, tiles=tiles)


def test_every_stage_is_here() -> None:
    """Every class of stage that an engine has a kernel for, and all it sees of them."""
    here = {(type(stage), stage.sees(2)) for then in [*ALONE, *BEFORE] for stage in then}
    every = (
        *(batch_norm("m", "v"), batch_norm(training=True), softmax("channels"), softmax("space")),
        *(channel_sum("channels", keepdim=True), max_pool(2), avg_pool(2), tanh()),
    )
    assert here == {(type(stage), stage.sees(2)) for stage in every}


def bad_operands(
    chain: Chain, problem: Problem, seed: int
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """One channel of every operand is NaN, one Inf, one -Inf, one 0; all else is as usual."""
    x, w, operands = fills.real(chain, problem, seed)
    for value in operands.values():
        value[1:5] = torch.tensor([nan, inf, -inf, 0.0])
    return x, w, operands


@pytest.mark.parametrize(
    "then",
    [
        (add("a"), max_pool(2)),
        (scale("a"), max_pool(2)),
        (batch_norm(weight="w", training=True), max_pool(2)),
        (batch_norm(weight="w", bias="b", training=True), tanh(), max_pool(2)),
        (group_norm(3, "w", "b"), softmax("space")),
        (add("a"), softmax("channels")),
    ],
    ids=lambda then: " -> ".join(map(str, then)),
)
def test_operands_that_are_not_finite(then: tuple[Stage, ...], interpreter: Any) -> None:
    """Also where a rewrite would move a stage past another if they were."""
    problem = Problem.parse(PROBLEMS[1])
    chain = Chain(conv_transpose(problem.rank, "bias"), *then)
    interpreter.right(chain, problem, bad_operands, tiles=TILES[1])


def test_operands_that_are_views(interpreter: Any) -> None:
    """Views that torch negates when it reads them, or that lie apart: as torch reads them."""

    def views(chain: Chain, problem: Problem, seed: int) -> Any:
        x, weight, operands = fills.real(chain, problem, seed)
        lying = [lambda t: torch._neg_view(-t), lambda t: torch.stack((t, t), 1)[:, 0]]
        made = zip(operands.items(), lying, strict=True)
        return x, weight, {name: view(tensor) for (name, tensor), view in made}

    problem = Problem.parse("n2 ci3 co4 i5 k3 s2")
    for names in (("a", "b"), ("b", "a")):
        chain = Chain(conv_transpose(1, names[0]), add(names[1]))
        interpreter.right(chain, problem, views)


# ---- whole stages, under every plan ----------------------------------------------------------

WHOLE: list[tuple[Stage, ...]] = [
    (batch_norm(weight="w", bias="b", training=True), tanh(), max_pool(2), group_norm(3, "v", "a")),
    (batch_norm(weight="w", bias="b", training=True), group_norm(2)),
    (group_norm(3), softmax("channels")),
    (group_norm(3), scale(3), softmax("space")),
    (max_pool(2), softmax("space")),
    (softmax("space"), scale(40), batch_norm(training=True)),
    (clamp(-1, 1), softmax("space"), scale(40), group_norm(2)),
    (
        batch_norm(training=True),
        tanh(),
        batch_norm(weight="w", training=True),
        sigmoid(),
        batch_norm(bias="b", training=True),
    ),
    # windows after a statistic drop positions that it must cover
    (batch_norm(weight="w", training=True), max_pool(3)),
    (batch_norm(training=True), max_pool(2)),
    # windows that overlap, before one
    (max_pool(3, 2, 1), batch_norm(weight="w", bias="b", training=True), tanh()),
    (avg_pool(2, 1), softmax("space"), scale(50), batch_norm(training=True)),
    # one channel is left
    (channel_sum("channels", keepdim=True), batch_norm(training=True), softmax("space")),
    (batch_norm(training=True), channel_sum("channels", keepdim=True), group_norm(1)),
]


def wholes() -> Iterator[Any]:
    for i, then in enumerate(WHOLE):
        for j, machine in enumerate(("usual", "store", "resident", "recompute")):
            if i % 3 == j % 3:
                line = (*PROBLEMS[1:3], PROBLEMS[4])[(i + j) % 3]
                problem = Problem.parse(f"{line} {DTYPES[(i + j) % 4]}")
                chain = Chain(conv_transpose(problem.rank, "bias"), *then)
                yield pytest.param(
                    chain,
                    problem,
                    machine,
                    TILES[(2 * i + j) % len(TILES)],
                    id=f"{problem} | {chain} | {machine}",
                )


@pytest.mark.parametrize(("chain", "problem", "machine", "tiles"), list(wholes()))
def test_whole_stages(
    chain: Chain, problem: Problem, machine: str, tiles: Any, interpreter: Any
) -> None:
    interpreter.right(chain, problem, machine=machine, tiles=tiles)


@pytest.mark.parametrize(
    ("machine", "kernels"),
    [
        ("store", "pack convolve convolve_carefully merge finish merge finish"),
        ("resident", "pack convolve convolve_carefully merge finish"),
        (
            "recompute",
            "pack convolve convolve_carefully" + 2 * " merge convolve convolve_carefully",
        ),
    ],
)
def test_plans_differ_in_their_launches(machine: str, kernels: str, interpreter: Any) -> None:
    problem = Problem.parse("n2 ci3 co6 i4x4 k3 p1")
    chain = Chain(conv_transpose(2), batch_norm(training=True), tanh(), group_norm(3))
    launches = interpreter.right(chain, problem, machine=machine, tiles=TILES[1], times=2)
    assert " ".join(each["kernel"] for each in launches) == kernels


@pytest.mark.parametrize(
    "then",
    [
        (softmax("space"),),
        (clamp(-1, 2), softmax("space")),
        (group_norm(2),),
        (batch_norm(training=True),),
    ],
    ids=lambda then: " -> ".join(map(str, then)),
)
@pytest.mark.parametrize("tiles", TILES[:2], ids=str)
def test_width_classes_of_different_sizes_are_gathered(
    then: tuple[Stage, ...], tiles: Any, interpreter: Any
) -> None:
    """A pass that only gathers takes one class after the other; of eleven results six and five."""
    problem = Problem.parse("n2 ci3 co4 i5x5 k3 s2")
    interpreter.right(Chain(conv_transpose(2), *then), problem, tiles=tiles)


def test_softmax_over_space_where_whole_tiles_are_minus_inf(interpreter: Any) -> None:
    """A tile that holds only -Inf adds nothing; a channel that holds only -Inf is NaN."""
    problem = Problem.parse("n1 ci2 co4 i6x4 k1")
    chain = Chain(conv_transpose(2), softmax("space"))

    def fill(chain: Chain, problem: Problem, seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        x, w, operands = fills.real(chain, problem, seed)
        w.abs_()
        x[:, :, :4] = -inf
        w[:, 3] = 0
        return x, w, operands

    interpreter.right(chain, problem, fill, tiles=TILES[0])


@pytest.mark.parametrize("norm", [batch_norm(training=True), group_norm(2)], ids=str)
def test_norm_of_values_far_from_zero(norm: Stage, interpreter: Any) -> None:
    problem = Problem.parse("n2 ci3 co4 i4x4 k2")
    chain = Chain(conv_transpose(2), add(1000.0), norm)
    interpreter.right(chain, problem, tiles=TILES[0], machine="store")


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("stage", [sigmoid(), tanh()], ids=str)
def test_functions_near_their_value(stage: Stage, dtype: str, interpreter: Any) -> None:
    """Relative to each value, from the tiniest to saturation: what a chain's budget cannot see.

    A sigmoid takes its exponent times log2(e), rounded: what is far below 1 is off by as many ulps
    as its logarithm.
    """
    element = ELEMENTS[dtype]
    info = torch.finfo(element.dtype)
    sizes = torch.cat([torch.logspace(-30, 2, 400).double(), torch.linspace(0.3, 80, 400).double()])
    x = torch.cat([-sizes, torch.tensor([0, -inf, inf, nan], dtype=torch.float64), sizes])
    x = x.to(element.dtype)
    problem = Problem.parse(f"n1 ci1 co1 i{x.numel()} k1 {dtype}")
    chain, one = Chain(conv_transpose(1), stage), torch.ones(problem.weight, dtype=element.dtype)
    tiles = ("rows", (1, 1, 1, 1024), 8)
    answer = interpreter(chain, problem, x.view(1, 1, -1), one, {}, tiles=tiles)
    y, wide = answer["results"][0].flatten().double(), x.double()
    exact = wide.tanh() if stage == tanh() else wide.sigmoid()
    ulps = (y - exact).abs() / (exact.abs() * info.eps).clamp_min(info.tiny)
    allowed = 4 + 2 * wide.abs().clamp_max(100) * (stage == sigmoid())
    assert (ulps <= allowed)[~exact.isnan()].all()
    assert y.isnan().equal(exact.isnan())


# ---- operators and random chains -------------------------------------------------------------


@pytest.mark.parametrize(
    "slug",
    [pytest.param(s, marks=pytest.mark.long) if "max-max" in s else s for s in OPERATORS],
)
def test_operator(slug: str, interpreter: Any) -> None:
    """With the tiles a GPU would get."""
    operator = OPERATORS[slug]
    one = operator.case("ragged" if "max-max" in slug else "small")
    interpreter.right(operator.bound(one), one.problem)


def random_chains(count: int) -> Iterator[Any]:
    random = Random(5)
    while count:
        rank = random.choice((1, 2, 3))

        def axes(low: int, high: int, rank: int = rank) -> tuple[int, ...]:
            return tuple(random.randint(low, high) for _ in range(rank))

        groups = random.choice((1, 1, 2))
        problem = Problem(
            batch=random.randint(1, 3),
            in_channels=groups * random.randint(1, 5),
            out_channels=6,
            spatial=axes(1, (9, 4, 3)[rank - 1]),
            kernel=axes(1, 3),
            stride=axes(1, 3 if rank < 3 else 2),
            padding=axes(0, 1),
            dilation=axes(1, 2),
            output_padding=(0,) * rank,
            groups=groups,
            dtype=random.choice(DTYPES),
        )
        pools = [then for then in ALONE if "pool" in str(then[0])]
        rest = [then for then in ALONE if then not in pools]
        then = [*random.choice(rest), *random.choice([*pools, ()]), *random.choice(rest)]
        names = iter("abcdefgh")
        then = [
            stage.function(next(names)) if stage in (add("a"), scale("a")) else stage
            for stage in then
        ]
        chain = Chain(conv_transpose(rank, random.choice([None, "bias"])), *then)
        try:
            shapes = chain.shapes(problem)
        except (RuntimeError, ValueError):
            continue
        small = max(shape.numel for shape in shapes) < 400
        if small and Triton().verdict(chain, replace(problem, device="cuda:sm90")).ok:
            count -= 1
            yield pytest.param(
                chain, problem, random.choice(TILES), id=f"{problem} | {chain} | {count}"
            )


@pytest.mark.long
@pytest.mark.parametrize(("chain", "problem", "tiles"), list(random_chains(12)))
def test_random_chain(chain: Chain, problem: Problem, tiles: Any, interpreter: Any) -> None:
    interpreter.right(chain, problem, tiles=tiles)
