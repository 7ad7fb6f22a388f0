"""Gradients behind max windows from the winners alone, in Triton's interpreter and as code."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from tests.gradients.autograd import by_autograd
from transfuse import stages as s
from transfuse.chain import Chain
from transfuse.fills import integers, real
from transfuse.problem import Problem
from transfuse.stages import Stage

from .conftest import Child

PROBLEMS = {
    "one axis": "n2 ci3 co2 i20 k5 s2 p1",
    "two axes": "n2 ci17 co4 i7x10 k3 s2 p1 op1",
    "three axes": "n1 ci5 co3 i6x8x5 k3x2x4 s2x1x3 p1x0x1",
    "groups": "n1 ci6 co4 i6x7 k4 s2 p1 g2",
    "dilated": "n1 ci18 co2 i6x7 k3 s1 p2 d2",
    "taps that stride and dilation never meet": "n1 ci3 co4 i7x8 k3 s2 p1 d2",
    "cropped": "n2 ci3 co4 i7x7 k3 s3 p-1 op2",
    "channels last": "n1 ci20 co4 i7x8 k3 s2 p1 channels_last",
}
POOLS: dict[str, tuple[Stage, ...]] = {
    "tiles": (s.max_pool(2), s.max_pool(3)),
    "overlapping": (s.max_pool(3, 2), s.max_pool(3, 2, 1)),
    "between strides": (s.max_pool(3, 3, 1), s.max_pool(2)),
    "dilated": (s.max_pool(2, 2, 0, 2), s.max_pool(2)),
    "ceil": (s.max_pool(3, 3, 0, 1, True), s.max_pool(2)),
    "elements between": (s.max_pool(2), s.relu(), s.scale("t"), s.max_pool(2), s.sum("channels")),
}
TILES = POOLS["tiles"]


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Child]:
    child = Child("interpret", "won.py", TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    yield child
    child.close()


@pytest.fixture(scope="module")
def compiler() -> Iterator[Child]:
    child = Child("compile", "won.py", TRITON_INTERPRET="0")
    yield child
    child.close()


@pytest.fixture(scope="module")
def counter() -> Iterator[Child]:
    child = Child("count", "won.py", TRITON_INTERPRET="0")
    yield child
    child.close()


def right(
    interpreter: Child, pools: tuple[Stage, ...], line: str, exact: bool = True, **options: Any
) -> None:
    """Hold gradients to torch's, in every bit or in half of them, and to those of a second run."""
    problem = Problem.parse(line)
    chain = Chain(s.conv_transpose(problem.rank, "b"), *pools)
    tensors = (integers if exact else real)(chain, problem, 5)
    generator = torch.Generator().manual_seed(0)
    grad = torch.randint(-3, 4, chain.result(problem), generator=generator).to(tensors[0].dtype)
    names = options.pop("wanted", ["input", "weight", *dict(chain.dims(problem))])
    first, second = interpreter(
        stages=chain.stages,
        problem=problem,
        tensors=tensors,
        grad=grad,
        wanted=frozenset(names),
        **options,
    )
    expected = by_autograd(chain, problem, grad, *tensors)
    assert first.keys() == set(names)
    for name, found in first.items():
        assert torch.equal(found, second[name]), name
        if exact:
            assert torch.equal(found.double(), expected[name]), name
        else:
            near = torch.finfo(found.dtype).eps * float(expected[name].abs().max())
            torch.testing.assert_close(found.double(), expected[name], rtol=0, atol=4 * near)


@pytest.mark.parametrize("line", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("pools", POOLS.values(), ids=POOLS)
def test_integers_with_ties_are_exact(
    pools: tuple[Stage, ...], line: str, interpreter: Child
) -> None:
    """Small integers have many ties: of equals the first has the gradient."""
    right(interpreter, pools, line)


def test_ties_of_two_axes(interpreter: Child) -> None:
    """Quick: windows that begin anywhere between two inputs, in groups."""
    right(interpreter, POOLS["between strides"], PROBLEMS["groups"])


def test_ties_of_three_axes(interpreter: Child) -> None:
    right(interpreter, TILES, "n1 ci3 co2 i4x4x7 k3 s2 p1")


@pytest.mark.parametrize("dtype", ["fp64", "fp16", "bf16"])
def test_types(dtype: str, interpreter: Child) -> None:
    right(interpreter, TILES, f"n2 ci9 co4 i7x9 k3 s2 p1 {dtype}", exact=dtype == "fp64")


def test_half_precision(interpreter: Child) -> None:
    right(interpreter, TILES, "n1 ci16 co4 i7x9 k3 s2 p1 bf16", exact=False)


@pytest.mark.parametrize("name", ["input", "weight"])
def test_only_what_is_wanted(name: str, interpreter: Child) -> None:
    right(interpreter, TILES, PROBLEMS["one axis"], wanted=[name])


@pytest.mark.parametrize("bias", [1.0, torch.nan])
def test_of_equals_the_first_and_of_nans_the_last(bias: float, interpreter: Child) -> None:
    problem = Problem.parse("n1 ci1 co1 i8x8 k1 s1 fp64")
    chain = Chain(s.conv_transpose(2, "b"), s.max_pool(2), s.max_pool(2))
    tensors = (
        torch.ones(1, 1, 8, 8).double(),
        torch.ones(1, 1, 1, 1).double(),
        {"b": torch.full((1,), bias).double()},
    )
    grad = torch.randn(chain.result(problem)).double()
    names = ["input", "weight"]
    found, _ = interpreter(
        stages=chain.stages, problem=problem, tensors=tensors, grad=grad, wanted=frozenset(names)
    )
    expected = by_autograd(chain, problem, grad, *tensors)
    for name in names:
        torch.testing.assert_close(found[name], expected[name])


@pytest.mark.parametrize("spoilt", ["input", "weight"])
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_zeros_that_meet_what_is_not_finite(spoilt: str, value: float, interpreter: Child) -> None:
    """Dense convolutions multiply the zeros, too: NaNs come out where theirs are."""
    problem = Problem.parse("n1 ci2 co3 i6x7 k3 s1 p1 fp64")
    chain = Chain(s.conv_transpose(2), *TILES)
    x, weight, _ = real(chain, problem, 0)
    {"input": x, "weight": weight}[spoilt].view(-1)[7] = value
    grad = torch.ones(chain.result(problem), dtype=torch.float64)
    names = ["input", "weight"]
    found, expected = interpreter(
        stages=chain.stages,
        problem=problem,
        tensors=(x, weight, {}),
        grad=grad,
        wanted=frozenset(names),
        dense=True,
    )
    assert any(each.isnan().any() for each in expected.values())
    for name in names:
        torch.testing.assert_close(found[name], expected[name], equal_nan=True)


def test_more_gradients_than_there_can_be(interpreter: Child) -> None:
    """An Inf that meets zeros of the gradient makes NaNs of them all: nothing else is lost."""
    problem = Problem.parse("n1 ci2 co3 i7x7 k3 s2 p1 fp64")
    chain = Chain(s.conv_transpose(2), s.max_pool(2), s.scale("t"), s.max_pool(3))
    x, weight, operands = real(chain, problem, 0)
    operands["t"].fill_(torch.inf)
    grad = torch.ones(chain.result(problem), dtype=torch.float64)
    found, _ = interpreter(
        stages=chain.stages,
        problem=problem,
        tensors=(x, weight, operands),
        grad=grad,
        wanted=frozenset(["input", "weight"]),
    )
    assert all(found[name].isnan().all() for name in ("input", "weight"))


BENCHMARK = "n16 ci32 co64 i32x32x32 k5 s2 p2"


@pytest.mark.parametrize("dtype", ["fp32 tf32", "bf16", "fp32", "fp64"])
def test_code(dtype: str, compiler: Child) -> None:
    """Next to nothing is spilled; rows of channels are fetched by 16 bytes for tensor cores."""
    problem = Problem.parse(f"{BENCHMARK} {dtype} cuda:sm90")
    found = {
        each["kernel"]: each for each in compiler(stages=TILES, problem=problem, capability=90)
    }
    assert set(found) == {"turn", "count", "enlist", "find", "by_weight", "by_input"}
    for each in found.values():
        assert each["spilled"] <= 128, each
        assert each["shared"] <= 100_000, each
    if dtype in ("fp32 tf32", "bf16"):
        assert found["find"]["wgmma"] > 0
        for name in ("find", "by_weight", "by_input"):
            assert found[name]["cp_async"] > 0, name
            assert found[name]["wgmma"] + found[name]["mma"] > 0, name


@pytest.mark.parametrize("line", ["ci32 co64 k5 s2 p2 bf16", "ci32 co64 k5 s2 p2 fp32 tf32"])
def test_builds(line: str, counter: Child) -> None:
    """One build for all batches and sizes."""
    draw = random.Random(line)
    problems = []
    for _ in range(100):
        sizes = "x".join(str(draw.randint(4, 60)) for _ in range(3))
        words = line.replace(" k", f" i{sizes} k", 1)
        problems.append(Problem.parse(f"n{draw.randint(1, 64)} {words} cuda:sm90"))
    found = counter(stages=TILES, problems=problems)
    assert found.pop("turn") <= 2  # of weights and input
    assert all(count == 1 for count in found.values()), found
