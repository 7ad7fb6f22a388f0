"""Gradients of the convolution: every option, layout and type, and what is computed again."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from tests.gradients.autograd import by_autograd, compare, wanted
from transfuse import gradients as subject
from transfuse import stages as s
from transfuse.backends.cpu import _Kernels
from transfuse.chain import Chain
from transfuse.fills import integers, real
from transfuse.gradients import gradients
from transfuse.operators import OPERATORS
from transfuse.problem import Problem

PROBLEMS = [
    "n2 ci4 co6 i5x6 k3 s2 p1 g2",
    "n1 ci3 co5 i7 k5 s3 p2 op2",
    "n2 ci2 co4 i4x5x3 k3x2x3 s2x1x2 p1x0x1 d1x2x1",
    "n2 ci3 co4 i5x4 k3x7 s1 p0",
    "n2 ci3 co4 i5x4 k4 s2 p-1",
    "n2 ci3 co4 i5x4 k3 s2 p2x1 op3x-2",
    "n2 ci3 co4 i5x4 k3 s1 p1 d3 op2",
    "n2 ci3 co4 i5x4 k2 s5 p0 op-2",
    "n2 ci4 co6 i6x7 k3x2 s1 p1x0 g2",
    "n2 ci3 co4 i7x6 k3 s1 p2x-1 d2 op-1x1",
    "n1 ci4 co4 i1x1 k4 s4 p0",
    "n3 ci4 co8 i6x5 k4 s2 p1 channels_last",
    "n3 ci4 co8 i3x6x5 k4 s2 p1 channels_last",
]


@pytest.mark.parametrize("line", PROBLEMS)
def test_problems(line: str) -> None:
    problem = Problem.parse(line + " fp64")
    for chain in (
        Chain(s.conv_transpose(problem.rank, "b"), s.sigmoid(), s.sum("channels")),
        Chain(s.avg_pool(1), s.conv_transpose(problem.rank, "b"), s.leaky_relu(0.5)),
    ):
        compare(chain, problem, real(chain, problem, 3))


@pytest.mark.parametrize("line", PROBLEMS)
def test_integers_are_exact(line: str) -> None:
    problem = Problem.parse(line)
    chain = Chain(s.conv_transpose(problem.rank, "b"), s.relu(), s.scale(2.0))
    x, weight, operands = integers(chain, problem, 5)
    grad = torch.randint(-3, 4, chain.result(problem), dtype=torch.float32)
    got = gradients(chain, problem, grad, x, weight, operands, wanted(chain, operands))
    for name, each in by_autograd(chain, problem, grad, x, weight, operands).items():
        assert torch.equal(got[name].double(), each), name


@pytest.fixture(params=[0, 2**60], ids=["flipped", "in torch"])
def turns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The gradient by the input one way and the other, whatever weights meet."""
    caches = (subject.keeping, subject._told, subject._backward)
    for each in caches:
        each.cache_clear()
    monkeypatch.setattr(_Kernels, "turns", request.param)
    yield
    for each in caches:
        each.cache_clear()


@pytest.mark.parametrize("line", [line for line in PROBLEMS if " s1 " in line])
@pytest.mark.usefixtures("turns")
def test_flipped_or_not(line: str) -> None:
    test_integers_are_exact(line)
    test_problems(line)


def test_weights_that_meet_few_values_are_not_flipped() -> None:
    """They would be packed in every step for that."""
    chain = Chain(s.conv_transpose(2), s.tanh())
    few, many = (Problem.parse(f"n{n} ci4 co6 i8x8 k3 s1 p1") for n in (2, 32))
    assert "gradient by input · in torch" in str(subject.plan_backward(chain, few))
    assert "gradient by input · taps flipped" in str(subject.plan_backward(chain, many))


@pytest.mark.parametrize("slug", OPERATORS)
@pytest.mark.parametrize("case", ["small", "ragged"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_the_operators(slug: str, case: str, layout: str) -> None:
    found = OPERATORS[slug].case(f"{case} fp64 {layout}")
    chain = OPERATORS[slug].chain.bind(found.scalars)
    compare(chain, found.problem, real(chain, found.problem, 2))


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("slug", OPERATORS)
def test_types(slug: str, dtype: str) -> None:
    """Sums are float32 and results rounded once: an error of an ulp or so, whatever the type."""
    found = OPERATORS[slug].case(f"small {dtype}")
    chain = OPERATORS[slug].chain.bind(found.scalars)
    tensors = real(chain, found.problem, 4)
    unit = torch.finfo(tensors[0].dtype).eps
    compare(chain, found.problem, tensors, relative=max(unit, 1e-5))


def test_only_what_is_wanted_is_computed() -> None:
    problem = Problem.parse("n2 ci4 co6 i5x6 k3 s2 p1")
    chain = Chain(s.conv_transpose(2, "b"), s.scale("t"), s.tanh())
    tensors = real(chain, problem, 0)
    grad = torch.ones(chain.result(problem))
    every = gradients(chain, problem, grad, *tensors, ["input", "weight", "b", "t"])
    for name, each in every.items():
        alone = gradients(chain, problem, grad, *tensors, [name])
        assert list(alone) == [name]
        torch.testing.assert_close(alone[name], each, rtol=1e-6, atol=1e-6)


def test_linear_chains_do_not_convolve_again() -> None:
    problem = Problem.parse("n2 ci4 co6 i5x6 k3 s2 p1")
    linear = Chain(s.conv_transpose(2, "b"), s.add("t"), s.avg_pool(2), s.sum("channels"))
    other = Chain(s.conv_transpose(2, "b"), s.add("t"), s.tanh())
    for chain, flops in ((linear, 0), (other, problem.flops())):
        backward = subject._backward(chain, problem, frozenset(["input", "t", "b"]), None)
        assert backward is not None
        assert sum(getattr(step, "flops", 0) for step in backward.after.steps) == flops


def test_the_same_bits_for_any_number_of_threads() -> None:
    problem = Problem.parse("n2 ci8 co16 i17x19 k3 s2 p1")
    chain = Chain(
        s.conv_transpose(2, "b"),
        s.batch_norm(weight="w", bias="v", training=True),
        s.max_pool(3, 2),
        s.group_norm(4, "w", "v"),
        s.softmax("channels"),
    )
    tensors = real(chain, problem, 0)
    names = wanted(chain, tensors[2])
    grad = torch.randn(chain.result(problem), generator=torch.Generator().manual_seed(0))
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(gradients(chain, problem, grad, *tensors, names))
    torch.set_num_threads(before)
    for one, other in pairwise(found):
        for name in ("b", "w", "v"):  # input and weight are torch's convolutions
            assert torch.equal(one[name], other[name]), name


def test_running_statistics_do_not_move() -> None:
    problem = Problem.parse("n2 ci4 co6 i5x6 k3 s2 p1 fp64")
    chain = Chain(s.conv_transpose(2), s.batch_norm("m", "v", "w", "b", training=True), s.tanh())
    tensors = real(chain, problem, 0)
    before = {name: each.clone() for name, each in tensors[2].items()}
    compare(chain, problem, tensors)
    for name, each in before.items():
        assert torch.equal(tensors[2][name], each)


def test_gradients_that_lie_in_any_way() -> None:
    problem = Problem.parse("n2 ci4 co6 i5x6 k3 s2 p1 fp64")
    chain = Chain(s.conv_transpose(2, "b"), s.tanh(), s.flatten())
    tensors = real(chain, problem, 0)
    sizes = chain.result(problem)
    for grad in (
        torch.ones((), dtype=torch.float64).expand(sizes),
        torch.randn(sizes[::-1], dtype=torch.float64).t(),
        torch.randn(sizes[0], sizes[1] * 2, dtype=torch.float64)[:, ::2],
    ):
        compare(chain, problem, tensors, grad=grad)


def test_norms_with_weights_wider_than_the_values() -> None:
    problem = Problem.parse("n2 ci4 co6 i5x6 k3 s2 p1 bf16")
    chain = Chain(s.conv_transpose(2), s.group_norm(2, "w", "b"), s.tanh())
    x, weight, operands = real(chain, problem, 0)
    wide = {name: each.float() for name, each in operands.items()}
    compare(chain, problem, (x, weight, wide), relative=2.0**-7)


def test_no_samples_and_nothing_wanted() -> None:
    chain = Chain(s.conv_transpose(2, "b"), s.tanh())
    for line in ("n0 ci4 co6 i5x6 k3", "n1 ci4 co6 i5x6 k3"):
        problem = Problem.parse(line)
        tensors = real(chain, problem, 0)
        grad = torch.ones(chain.result(problem))
        assert gradients(chain, problem, grad, *tensors, []) == {}
        found = gradients(chain, problem, grad, *tensors, ["input", "b"])
        assert found["input"].shape == tensors[0].shape
        assert bool(found["b"].any()) == bool(problem.batch)


@pytest.mark.parametrize(
    "line", ["n1 ci2 co6 i6x7 k3 s2 g2", "n1 ci2 co4 i3x1 k1x2 s1x2", "n1 ci4 co4 i3x6x4 k2 s1 g2"]
)
@pytest.mark.parametrize("apart", [1, 2, 1000])
def test_axes_of_one_have_any_stride(line: str, apart: int) -> None:
    """As after ``reshape``. Gradients do not depend on it, though torch's convolution reads it."""
    problem = Problem.parse(line + " fp64 channels_last")
    chain = Chain(s.conv_transpose(problem.rank))
    x, weight, _ = integers(chain, problem, 1)
    grad = torch.randint(-3, 4, chain.result(problem)).double()
    exact = by_autograd(chain, problem, grad, x.contiguous(), weight, {})
    last = [channels_last(each, apart) for each in (grad, x, weight)]
    got = gradients(chain, problem, *last, {}, ["input", "weight"])
    for name, each in exact.items():
        assert torch.equal(got[name], each), name


def channels_last(tensor: torch.Tensor, apart: int) -> torch.Tensor:
    """The tensor with channels innermost, and a stride of ``apart`` along axes of one."""
    found = tensor.movedim(1, -1).contiguous().movedim(-1, 1)
    strides = zip(tensor.shape, found.stride(), strict=True)
    return found.as_strided(tensor.shape, [apart if n == 1 else stride for n, stride in strides])
