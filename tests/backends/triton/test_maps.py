"""Pointwise expressions in kernels: in the interpreter against the oracle, and as machine code."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
import torch

from transfuse import maths
from transfuse.backends.triton.lower import Refused, lowered
from transfuse.chain import Chain
from transfuse.maths import where
from transfuse.maths.expr import ARITY, Expr, call
from transfuse.plan import fused
from transfuse.problem import DTYPES, Problem
from transfuse.stages import (
    Function,
    Stage,
    add,
    avg_pool,
    batch_norm,
    clamp,
    conv_transpose,
    div,
    elu,
    gelu,
    group_norm,
    hardswish,
    leaky_relu,
    logsigmoid,
    max_pool,
    mish,
    pointwise,
    pow,
    prelu,
    relu,
    scale,
    sigmoid,
    silu,
    sin,
    softmax,
    softplus,
    tanh,
)
from transfuse.stages import sum as channel_sum

gated = pointwise(lambda x, skip, least: where(x < least, skip * x, x * x + skip))
constant = pointwise(lambda x: 2.5)
per_channel = pointwise(lambda x, a: a * 2)

CHAINS: list[tuple[Stage, ...]] = [
    (relu(),),
    (leaky_relu(0.2),),
    (leaky_relu("a"),),
    (prelu("a"),),
    (gelu(),),
    (gelu("tanh"),),
    (silu(),),
    (mish(),),
    (elu(0.5),),
    (softplus(2.0),),
    (hardswish(),),
    (logsigmoid(),),
    (pow(3),),
    (sin(),),
    (gated("a", 0.1),),
    (gated("a", "b"),),
    (constant(), add("a")),
    (per_channel("a"),),
    (clamp("a", 1.0),),
    (div("a"),),
    (softmax("channels"), silu()),
    (relu(), softmax("channels"), scale(3), gelu(), scale(2), sigmoid()),
    (gelu(), channel_sum("channels", keepdim=True), relu()),
    (silu(), max_pool(2)),
    (max_pool(2), mish()),
    (leaky_relu("a"), avg_pool(2), elu(), tanh()),
    (group_norm(3, "w", "b"), silu()),
    (relu(), group_norm(2), gelu()),
    (batch_norm("m", "v", "w", "b"), leaky_relu(0.2)),
    (batch_norm(training=True), relu(), scale("a")),
    (silu(), softmax("space"), logsigmoid()),
]
PROBLEMS = [
    "n2 ci3 co6 i7 k3 s2 p1",
    "n2 ci3 co6 i3x4 k3x2 s2x1 p1x0 op1x0",
    "n1 ci4 co12 i3x4 k3x1 p1x0 g2",
    "n2 ci6 co6 i3x4 k2 s2 g6",
    "n2 ci3 co6 i2x3x3 k1x2x1 s1x2x1",
]
BEFORE: list[tuple[Stage, ...]] = [
    (relu(),),
    (prelu("u"), max_pool(2), silu()),
    (gated("u", 0.0), avg_pool(2), leaky_relu("v")),
]


def cases() -> Iterator[Any]:
    """Every chain in each of the four element types; problems take turns."""
    for i, then in enumerate(CHAINS):
        for k, dtype in enumerate(DTYPES):
            problem = Problem.parse(f"{PROBLEMS[(i + k) % len(PROBLEMS)]} {dtype}")
            chain = Chain(conv_transpose(problem.rank, "bias" if i % 2 else None), *then)
            turn = () if k == i % 4 else pytest.mark.long
            yield pytest.param(chain, problem, id=f"{problem} | {chain}", marks=turn)


@pytest.mark.parametrize(("chain", "problem"), list(cases()))
def test_map(chain: Chain, problem: Problem, interpreter: Any) -> None:
    interpreter.right(chain, problem, tiles=("box", (1, 2, 4, 4), 8))


@pytest.mark.parametrize("before", BEFORE, ids=lambda before: " -> ".join(map(str, before)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_before_the_convolution(before: tuple[Stage, ...], dtype: str, interpreter: Any) -> None:
    problem = Problem.parse(f"n2 ci3 co6 i6x7 k3x2 s2x1 p1x0 {dtype}")
    interpreter.right(Chain(*before, conv_transpose(2, "bias"), relu()), problem)


@pytest.mark.parametrize("stage", [relu(), gelu(), silu(), elu(), clamp("a", 1.0)], ids=str)
def test_nan_and_inf_come_through_as_torch_lets_them(stage: Stage, interpreter: Any) -> None:
    x = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 3e38]).reshape(1, 1, -1)
    operands = {"a": torch.zeros(1)}
    chain, problem = Chain(conv_transpose(1), stage), Problem.parse("n1 ci1 co1 i8 k1")
    found = interpreter(chain, problem, x, torch.ones(1, 1, 1), operands)["results"][0]
    # In float64: torch's gelu makes NaN of Inf in float32 on some CPUs.
    expected = stage.apply(x.double(), {"a": torch.zeros(1).double()}).float()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


def with_primitive(primitive: str) -> Function:
    """A number from one primitive, on values from 0.5 on."""

    def body(x: Expr) -> Expr:
        x = maths.maximum(x, 0.5)
        given = [x, x * 0.5, x + 1]
        if primitive in ("both", "either", "no"):
            given = [x < 1, x > 0.75]
        elif primitive == "where":
            given = [x < 1, x, -x]
        found = call(primitive, *given[: ARITY[primitive]])
        return maths.where(found, x, -x) if found.logical else found

    return Function(body, name=primitive)


@pytest.mark.parametrize("primitive", ARITY)
def test_every_primitive_has_a_kernel(primitive: str, interpreter: Any) -> None:
    stage = with_primitive(primitive)()
    interpreter.right(Chain(conv_transpose(1), stage), Problem.parse("n1 ci3 co4 i9 k3"))


def steps(*then: Stage) -> tuple[tuple[str, float], ...]:
    chain, problem = Chain(conv_transpose(1), *then), Problem.parse("n1 ci2 co4 i9 k3")
    (found,) = lowered(chain, fused(chain, replace(problem, device="cuda:sm90"))).segments
    return tuple((step.op, step.factor) for step in found.after)


def test_numbers_fold_into_neighbours_but_not_through_a_map() -> None:
    assert steps(softmax("channels"), scale(3)) == (("softmax", 3.0),)
    assert steps(softmax("channels"), relu(), scale(3)) == (
        ("softmax", 1.0),
        ("map", 1.0),
        ("scale_number", 1.0),
    )
    assert steps(softmax("channels"), scale(3), relu()) == (("softmax", 3.0), ("map", 1.0))


def test_an_expression_too_long_to_unfold_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"pow\(4096\) unfolds to 8191 parts; 256 is the most"):
        steps(pow(4096))


@pytest.mark.parametrize("capability", [80, 90])
def test_machine_code(capability: int, compiler: Any) -> None:
    """The portable kernel and, for Hopper, its own loop: maps between pools and over channels."""
    problem = Problem.parse("n8 ci64 co64 i64x64 k4 s2 p1 fp16")
    then = (gelu(), softmax("channels"), prelu("a"), gated("a", 0.5))
    for chain in (Chain(conv_transpose(2, "bias"), *then), Chain(conv_transpose(2), silu())):
        launches = compiler(stages=chain.stages, problem=problem, capability=capability)
        assert any(each["kernel"].startswith(("convolve", "multiply")) for each in launches)
