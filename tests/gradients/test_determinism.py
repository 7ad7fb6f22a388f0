"""Gradients of every tensor are the same bits from call to call, and for any number of threads."""

import pytest
import torch
from torch import Tensor

from tests.gradients.autograd import wanted
from transfuse import stages as s
from transfuse.chain import Chain
from transfuse.fills import real
from transfuse.gradients import gradients
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.stages import Stage

STRIDED = "n2 ci16 co24 i15x17 k4 s2 p1"
UNIT = "n2 ci16 co24 i15x17 k3 s1 p1"


def found(chain: Chain, problem: Problem) -> dict[str, Tensor]:
    tensors = real(chain, problem, 3)
    grad = torch.randn(chain.result(problem), generator=torch.Generator().manual_seed(2))
    return gradients(chain, problem, grad, *tensors, wanted(chain, tensors[2]))


@pytest.mark.parametrize("slug", OPERATORS)
@pytest.mark.parametrize("case", ["small", "ragged"])
def test_two_runs(slug: str, case: str) -> None:
    given = OPERATORS[slug].case(case)
    chain = OPERATORS[slug].chain.bind(given.scalars)
    one, other = found(chain, given.problem), found(chain, given.problem)
    for name, each in one.items():
        assert torch.equal(each, other[name]), name


@pytest.mark.parametrize("line", [STRIDED, UNIT])
@pytest.mark.parametrize(
    "stages",
    [
        (s.tanh(),),
        (s.batch_norm(weight="w", bias="v", training=True), s.max_pool(2), s.group_norm(4)),
        (s.max_pool(2), s.max_pool(3), s.sum("channels")),
    ],
    ids=["elements", "norms", "windows"],
)
def test_two_runs_of_larger_sizes(line: str, stages: tuple[Stage, ...]) -> None:
    problem = Problem.parse(line)
    chain = Chain(s.conv_transpose(2, "b"), *stages)
    one, other = found(chain, problem), found(chain, problem)
    for name, each in one.items():
        assert torch.equal(each, other[name]), name


def test_by_the_input_for_any_number_of_threads() -> None:
    """At stride 1 the gradient by the input is the core's own, which promises it."""
    problem, before, every = Problem.parse(UNIT), torch.get_num_threads(), []
    chain = Chain(s.conv_transpose(2, "b"), s.softmax("channels"))
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        every.append(found(chain, problem))
    torch.set_num_threads(before)
    for each in every[1:]:
        for name in ("input", "b"):
            assert torch.equal(each[name], every[0][name]), name
