"""200 models drawn from the vocabulary: fused they compute what they did."""

import pytest
import torch

from tests.examples.comparing import compare
from tests.examples.random_models import draw

QUICK = 24
SEEDS = [pytest.param(n, marks=() if n < QUICK else pytest.mark.long) for n in range(200)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_model_fused(seed):
    make, shape = draw(seed)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    # Every other one is told its inputs only when it is called.
    for training in (True, False):
        compare(make, [x], training, given=seed % 2 == 0)


def test_draws_repeat_and_differ():
    assert [str(draw(n)[0]()) for n in range(12)] == [str(draw(n)[0]()) for n in range(12)]
    assert len({str(draw(n)[0]()) for n in range(60)}) == 60
