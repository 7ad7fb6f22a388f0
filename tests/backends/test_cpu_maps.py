"""Pointwise expressions in the core: every function, everywhere a stage can stand."""

from inspect import Parameter
from typing import Any

import pytest
import torch

import transfuse
from transfuse import fills
from transfuse.accuracy import Oracle, longest_sum, terms
from transfuse.backends.cpu import Cpu
from transfuse.backends.cpu.bytecode import REGISTERS, TooLong, assemble
from transfuse.chain import Chain
from transfuse.front import run
from transfuse.maths import sin
from transfuse.maths.expr import Expr, X, name
from transfuse.problem import DTYPES, Problem
from transfuse.stages import (
    Function,
    Map,
    Stage,
    add,
    avg_pool,
    batch_norm,
    clamp,
    conv_transpose,
    elu,
    exp,
    gelu,
    group_norm,
    leaky_relu,
    max_pool,
    mish,
    pointwise,
    pow,
    prelu,
    relu,
    silu,
    softmax,
)
from transfuse.stages import sum as channel_sum
from transfuse.stages.reduce import Reduce
from transfuse.stages.text import KNOWN

gated = pointwise(lambda x, skip, least: skip * x * x + skip + (x - least))
of_itself = pointwise(lambda x: x)
constant = pointwise(lambda x: 2.5)
per_channel = pointwise(lambda x, a: a * 2)


def by_name(function: Function) -> Map:
    """A stage with an operand for each argument that has no default."""
    wanted = [each for each, default in function.parameters.items() if default is Parameter.empty]
    return function(*wanted)


EVERY = [by_name(each) for each in KNOWN.values() if isinstance(each, Function)]
EVERY += [gelu(), gelu("tanh"), pow(3), pow(-2), gated("a", 0.5), gated("a", "b")]
EVERY += [of_itself(), constant(), per_channel("a"), clamp("a", 1.0), leaky_relu("a")]
POSITIVE = ("sqrt", "rsqrt", "log", "reciprocal", "div", "pow(-2)")
"""Those that small or negative values would make NaN or huge: they follow an exponential."""


def right(chain: Chain, problem: Problem, fill: Any = fills.real) -> None:
    x, weight, operands = fill(chain, problem, 0)
    if "divisor" in operands:
        operands["divisor"].abs_().add_(1)
    y = run(chain, problem, x, weight, operands, backend="cpu")
    length = terms(chain.core(problem))
    if any(isinstance(stage, Reduce) for stage in chain.stages):
        length *= problem.out_channels
    if problem.dtype == "fp64":
        length = max(length, longest_sum(chain, problem))
    accuracy = Oracle(chain, problem, x, weight, operands, Cpu().ulp(problem), length).judge(y)
    assert accuracy.ok, accuracy.fault


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stage", EVERY, ids=str)
def test_every_function(stage: Map, dtype: str) -> None:
    first = [exp()] if stage.name in POSITIVE else []
    problem = Problem.parse(f"n2 ci3 co5 i7x9 k3 s2 p1 {dtype}")
    right(Chain(conv_transpose(2, "bias"), *first, stage), problem)


PLACES: dict[str, tuple[Stage, ...]] = {
    "between pools": (max_pool(2), gelu(), avg_pool(2), prelu("a")),
    "before a pool": (silu(), max_pool(2)),
    "after a group norm": (group_norm(3, "w", "b"), silu()),
    "after a batch norm": (batch_norm(weight="w", bias="b", training=True), prelu("a"), mish()),
    "after running statistics": (batch_norm("m", "v", "w", "b"), leaky_relu(0.2)),
    "around a norm": (elu(0.5), group_norm(2), gelu("tanh"), add("a"), relu()),
    "around a softmax over space": (relu(), softmax("space"), gated("a", 0.1)),
    "after a softmax over channels": (softmax("channels"), gelu()),
    "before a sum over channels": (silu(), channel_sum("channels", keepdim=True), relu()),
    "several in a row": (relu(), prelu("a"), gelu(), gated("a", "b"), elu(), silu()),
}
SIZES = [
    "n2 ci3 co6 i37 k3 s2 p1",
    "n1 ci4 co6 i9x8 k3x2 s2x1 p1x0",
    "n2 ci4 co12 i5x6 k3 p1 g2",
    "n2 ci6 co6 i5x6 k2 s2 g6",
    "n2 ci3 co6 i4x5x6 k2x3x3 s2",
    "n1 ci5 co42 i9x7 k3 s2",
]


@pytest.mark.parametrize("line", SIZES)
@pytest.mark.parametrize("place", PLACES)
def test_every_place(place: str, line: str) -> None:
    dtype = DTYPES[(len(place) + len(line)) % 4]
    problem = Problem.parse(f"{line} {dtype}")
    right(Chain(conv_transpose(problem.rank, "bias"), *PLACES[place]), problem)


@pytest.mark.parametrize("channels", [1, 15, 16, 17, 31, 511, 513, 1030])
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_operands_meet_their_channels(channels: int, dtype: str) -> None:
    """Also where the channels of a position are more than a strip."""
    problem = Problem.parse(f"n2 ci2 co{channels} i5x3 k2 {dtype}")
    stages = (gated("a", "b"), group_norm(1), prelu("c"), add("d"))
    right(Chain(conv_transpose(2), *stages), problem)


@pytest.mark.parametrize("stage", [relu(), silu(), elu(), prelu("a"), clamp("a", 1.0)], ids=str)
def test_nan_and_inf(stage: Map) -> None:
    problem = Problem.parse("n2 ci3 co5 i7x9 k3 s2 p1")
    right(Chain(conv_transpose(2), stage), problem, fills.special)


def sum_of_many(x: Expr) -> Expr:
    """More values than the core has registers, all of them needed until the end."""
    parts = [sin(x * float(i)) for i in range(1, REGISTERS + 3)]
    total = parts[0]
    for each in parts[1:]:
        total = total * each
    for each in parts:
        total = total + each
    return total


def test_what_is_too_long_is_served_by_torch_and_said_so() -> None:
    much = pointwise(sum_of_many)
    x, w = torch.randn(1, 2, 9).double(), torch.randn(2, 3, 3).double()
    told = transfuse.explain(transfuse.conv_transpose, x, w, then=[much()]).plan
    assert [each.does for each in told.passes] == ["conv_transpose1d", "sum_of_many · in torch"]
    assert "sum_of_many: it has 515 values held" in told.note
    found = transfuse.conv_transpose(x, w, then=[much()], backend="cpu")
    expected = much().apply(torch.nn.functional.conv_transpose1d(x, w), {})
    torch.testing.assert_close(found, expected)


def test_many_numbers() -> None:
    def total(x: Expr) -> Expr:
        for i in range(1, 300):
            x = x + float(i)
        return x

    right(Chain(conv_transpose(1), pointwise(total)()), Problem.parse("n1 ci2 co3 i40 k2 fp64"))


def test_too_many_operands_are_refused() -> None:
    total: Expr = X
    for i in range(300):
        total = total + name(f"a{i}")
    with pytest.raises(TooLong, match="it has 300 operands; 255 is the most"):
        assemble(total, {}, {f"a{i}": f"a{i}" for i in range(300)})


def test_a_part_that_occurs_twice_is_computed_once() -> None:
    code = assemble(sin(X) * sin(X) + sin(X), {}, {})
    assert len(code.instructions) == 3
