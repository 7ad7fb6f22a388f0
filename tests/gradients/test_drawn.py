"""Gradients of drawn chains against torch's autograd in float64."""

import pytest

from tests.gradients.autograd import compare
from transfuse.draws import drawn
from transfuse.fills import real

QUICK, ALL = 20, 300


@pytest.mark.parametrize(
    "seed", [*range(QUICK), *(pytest.param(i, marks=pytest.mark.long) for i in range(QUICK, ALL))]
)
def test_drawn_chains(seed: int) -> None:
    chain, problem = drawn(seed, dtype="fp64")
    compare(chain, problem, real(chain, problem, seed))
