"""Chain: one convolution among stages; shapes, reach, channels and names along it."""

import pytest
import torch

from transfuse.chain import Chain
from transfuse.operators import operator
from transfuse.problem import Problem, Shape
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
    sum,
    tanh,
)

MAX_MAX_SUM = Chain(conv_transpose(3, "b"), max_pool(2), max_pool(3), sum("channels", keepdim=True))


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((), "exactly one transposed convolution, not 0: nothing"),
        ((sigmoid(), tanh()), "exactly one transposed convolution, not 0: sigmoid -> tanh"),
        (
            (conv_transpose(1), tanh(), conv_transpose(1)),
            "not 2: conv_transpose1d -> tanh -> conv_transpose1d",
        ),
    ],
)
def test_holds_exactly_one_convolution(stages: tuple[Stage, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Chain(*stages)


def test_holds_stages_alone() -> None:
    with pytest.raises(TypeError, match="a chain is made of stages, not str: 'sigmoid'"):
        Chain(conv_transpose(1), "sigmoid")
    with pytest.raises(TypeError, match="a chain is made of stages, not Function: sigmoid makes"):
        Chain(conv_transpose(1), sigmoid)


def test_falls_into_prologue_convolution_epilogue() -> None:
    pool, conv, norm = avg_pool(2), conv_transpose(2, "b"), batch_norm(training=True)
    chain = Chain(pool, conv, norm)
    assert (chain.prologue, chain.conv, chain.epilogue) == ((pool,), conv, (norm,))
    assert chain.at == 1
    assert Chain(conv).prologue == Chain(conv).epilogue == ()


def test_is_equal_and_hashes_by_its_stages() -> None:
    assert {Chain(conv_transpose(1), add("a")): 7}[Chain(conv_transpose(1), add("a"))] == 7
    assert Chain(conv_transpose(1), add("a")) != Chain(conv_transpose(1), add("b"))


def test_shapes_before_and_after_every_stage() -> None:
    chain = Chain(
        avg_pool(2),
        conv_transpose(2),
        max_pool((2, 3)),
        group_norm(3),
        sum("channels", keepdim=True),
        tanh(),
    )
    assert chain.shapes(Problem.parse("n4 ci2 co6 i9x8 k3 s2 p1 op1")) == (
        Shape(4, 2, (9, 8)),
        Shape(4, 2, (4, 4)),
        Shape(4, 6, (8, 8)),
        Shape(4, 6, (4, 2)),
        Shape(4, 6, (4, 2)),
        Shape(4, 1, (4, 2)),
        Shape(4, 1, (4, 2)),
    )


@pytest.mark.parametrize(
    ("line", "chain", "message"),
    [
        (
            "n1 ci2 co2 i4 k1 p3",
            Chain(conv_transpose(1)),
            r"empty output: width \(4-1\)\*1 - 2\*3 .* = -2; padding may be at most 1",
        ),
        (
            "n1 ci2 co2 i4 k1",
            Chain(conv_transpose(1), max_pool(2), max_pool(3)),
            r"input of size \[2\] is smaller than a window of 3",
        ),
        (
            "n1 ci2 co2 i4 k1",
            Chain(avg_pool(5), conv_transpose(1)),
            r"input of size \[4\] is smaller than a window of 5",
        ),
        (
            "n1 ci2 co2 i4 k1",
            Chain(sum("channels", keepdim=True), conv_transpose(1)),
            "weight expects 2 channels, but the stages before it give 1",
        ),
        (
            "n1 ci2 co2 i4 k1",
            Chain(conv_transpose(1), sum("channels", keepdim=True), group_norm(2)),
            "num_groups=2 does not divide the 1 channels",
        ),
    ],
)
def test_shapes_raise_where_a_stage_cannot(line: str, chain: Chain, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        chain.shapes(Problem.parse(line))


def test_core_is_the_problem_after_the_prologue() -> None:
    problem = Problem.parse("n4 ci2 co6 i9x8 k3 s2 p1 op1 bf16")
    pooled = Problem.parse("n4 ci2 co6 i4x2 k3 s2 p1 op1 bf16")
    assert Chain(avg_pool((2, 4)), sigmoid(), conv_transpose(2)).core(problem) == pooled
    assert Chain(conv_transpose(2), max_pool(2)).core(problem) == problem


def test_needed_of_max_max_sum_is_60_of_63() -> None:
    named = operator("conv-transpose3d-max-max-sum")
    problem = named.case("benchmark").problem
    assert named.chain.shapes(problem)[1].spatial == (63, 63, 63)
    assert named.chain.needed(problem) == (60, 60, 60)


# After a convolution of 11 outputs; a statistic needs all that reaches it.
NEEDED = [
    ((), 11),
    ((max_pool(2),), 10),
    ((max_pool(2), tanh(), max_pool(3)), 6),
    ((max_pool(3, 2),), 11),
    ((max_pool(2, 4),), 10),
    ((max_pool(4, padding=2),), 10),
    ((max_pool(2), sum("channels", keepdim=True), add("a")), 10),
    ((batch_norm(training=True), max_pool(2)), 11),
    ((max_pool(2), batch_norm(training=True)), 10),
    ((max_pool(2), softmax("space"), max_pool(3)), 10),
]


@pytest.mark.parametrize(
    ("chain", "needed"),
    [
        pytest.param(chain := Chain(conv_transpose(1), *stages), needed, id=str(chain))
        for stages, needed in NEEDED
    ],
)
def test_needed(chain: Chain, needed: int) -> None:
    assert chain.needed(Problem.parse("n2 ci1 co2 i9 k3")) == (needed,)


def test_channels_of_every_operand() -> None:
    chain = Chain(
        scale("before"),
        conv_transpose(1, "bias"),
        batch_norm(weight="w", bias="b", training=True),
        sum("channels", keepdim=True),
        add("after"),
        clamp(0, 1),
    )
    assert list(chain.dims(Problem.parse("n1 ci2 co6 i5 k3"))) == [
        ("before", (2,)),
        ("bias", (6,)),
        ("w", (6,)),
        ("b", (6,)),
        ("after", (1,)),
    ]


def test_bind_reaches_every_stage() -> None:
    chain = Chain(avg_pool("k"), conv_transpose(1), clamp("k", "high"), scale("scale"))
    assert chain.bind({"k": 2, "high": 3.5, "unused": 1}) == Chain(
        avg_pool(2), conv_transpose(1), clamp(2, 3.5), scale("scale")
    )


def test_lift_names_tensors_by_stage_and_place() -> None:
    bias, weight, again = torch.ones(2), torch.ones(3), torch.ones(3)
    chain, env = Chain(
        conv_transpose(1, bias),
        batch_norm(weight=weight, training=True),
        batch_norm(weight=again, training=True),
    ).lift()
    assert chain == Chain(
        conv_transpose(1, "bias"),
        batch_norm(weight="batch_norm1.weight", training=True),
        batch_norm(weight="batch_norm2.weight", training=True),
    )
    assert env["bias"] is bias
    assert env["batch_norm1.weight"] is weight
    assert env["batch_norm2.weight"] is again
    assert chain.lift() == (chain, {})


def test_swap() -> None:
    chain = Chain(conv_transpose(1, "b"), tanh(), max_pool(2))
    assert chain.swap(1, 2, max_pool(2), tanh()).epilogue == (max_pool(2), tanh())
    assert chain.swap(1, 1).epilogue == (max_pool(2),)
    with pytest.raises(ValueError, match="exactly one"):
        chain.swap(0, 1)


def test_exact_when_every_stage_is() -> None:
    assert MAX_MAX_SUM.exact
    assert not Chain(conv_transpose(1), tanh()).exact


@pytest.mark.parametrize(
    ("chain", "text"),
    [
        (
            MAX_MAX_SUM,
            "conv_transpose3d(+ b) -> max_pool(2) -> max_pool(3) -> sum(channels, keepdim=True)",
        ),
        (
            Chain(avg_pool("k"), conv_transpose(1), clamp(0, "c"), softmax("space"), scale(2)),
            "avg_pool(k) -> conv_transpose1d -> clamp(0, c) -> softmax(space) -> scale(2)",
        ),
        (
            Chain(conv_transpose(2, "b", weight_scale=0.25)),
            "conv_transpose2d(weights * 0.25, + b)",
        ),
    ],
    ids=str,
)
def test_prints_as_arrows(chain: Chain, text: str) -> None:
    assert str(chain) == text


def test_chains_are_equal_where_they_compute_the_same() -> None:
    chain = Chain(conv_transpose(1), scale(0.0), clamp(0.0, 1.0))
    assert chain == Chain(conv_transpose(1), scale(0.0), clamp(0.0, 1.0))
    assert hash(chain) == hash(Chain(conv_transpose(1), scale(0.0), clamp(0.0, 1.0)))
    assert chain != Chain(conv_transpose(1), scale(-0.0), clamp(0.0, 1.0))
    assert chain != Chain(conv_transpose(1), scale(0.0), clamp(-0.0, 1.0))
    assert chain != Chain(conv_transpose(1), scale(0.0))
    assert chain != chain.stages
