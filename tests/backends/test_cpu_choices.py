"""Choices by a comparison, which the core makes in one instruction where nothing else reads it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from transfuse.chain import Chain
from transfuse.front import run
from transfuse.maths import where
from transfuse.problem import Problem
from transfuse.stages import conv_transpose, pointwise

CHOICES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda x: where(x < 1, x * 2, 5),
    "numbers": lambda x: where(x <= 0, -1, 1),
    "equal": lambda x: where(x == 1, 7, x),
    "nested": lambda x: where(x <= -1, -1, where(x >= 1, 1, x)),
    "in the comparison": lambda x: where(where(x < 0, -x, x) <= 1, x, 0),
    "of what is computed": lambda x: where(x * 2 < x + 1, x * 2, x + 1),
    "compared again": lambda x: where(x < 1, x, 3) + where(x < 1, 4, x * x),
    "negated": lambda x: where(~(x < 1), x, 3) + where(x < 1, x, 3),
    "both": lambda x: where((x < 1) & (x > -1), x, 9),
    "of another choice": lambda x: where(where(x < 0, x + 1, x) < where(x > 1, x, 1), x, -x),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_the_same_as_torch(isa: str, choice: str) -> None:
    problem = Problem.parse("n1 ci1 co1 i1x37 k1")
    x = torch.arange(-18.0, 19).div(6).reshape(problem.input.dims)
    x[0, 0, 0, 3] = torch.nan
    chain = Chain(conv_transpose(2), pointwise(CHOICES[choice])())
    y = run(chain, problem, x, torch.ones(1, 1, 1, 1), {}, backend="cpu")
    expected = chain.stages[-1].apply(x, {})
    assert torch.equal(y.nan_to_num(77), expected.nan_to_num(77))
