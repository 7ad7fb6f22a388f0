"""Gradients of gradients of drawn chains, against differences of the first."""

import pytest
import torch
from torch import Tensor

from tests.gradients.autograd import wanted
from transfuse import front
from transfuse.draws import Size, drawn
from transfuse.fills import real

QUICK, ALL = 6, 300
TINY = Size((1, 2), (2, 4), {1: (2, 5), 2: (2, 3), 3: (1, 2)}, 600)


@pytest.mark.parametrize(
    "seed", [*range(QUICK), *(pytest.param(i, marks=pytest.mark.long) for i in range(QUICK, ALL))]
)
def test_drawn_chains(seed: int) -> None:
    chain, problem = drawn(seed, TINY, dtype="fp64")
    x, weight, operands = real(chain, problem, seed)
    learnt = wanted(chain, operands)[2:]

    def call(x: Tensor, weight: Tensor, *given: Tensor) -> Tensor:
        moved = {name: each.clone() for name, each in operands.items() if name not in learnt}
        named = dict(zip(learnt, given, strict=True))
        return front.run(chain, problem, x, weight, {**operands, **moved, **named})

    tensors = [each.requires_grad_() for each in (x, weight, *(operands[k] for k in learnt))]
    generator = torch.Generator().manual_seed(seed)
    grad = torch.randn(chain.result(problem), generator=generator, dtype=torch.float64)
    if any(stage.name == "hardsigmoid" for stage in chain.stages):  # torch has none of it either
        with pytest.raises(RuntimeError, match="hardsigmoid_backward is not implemented"):
            torch.autograd.gradgradcheck(call, tensors, [grad.requires_grad_()], fast_mode=True)
        return
    assert torch.autograd.gradgradcheck(call, tensors, [grad.requires_grad_()], fast_mode=True)
