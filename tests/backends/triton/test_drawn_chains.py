"""Chains drawn by seed, in the interpreter: the GPU's kernels serve every one, and are right."""

import pytest

from tests.backends.triton.conftest import Interpreter
from transfuse import draws
from transfuse.backends.triton import Triton
from transfuse.problem import DTYPES

SIZE = draws.Size((1, 2), (4, 8), {1: (3, 12), 2: (3, 6), 3: (2, 3)}, 3_000)


def right(interpreter: Interpreter, seed: int) -> None:
    chain, problem = draws.drawn(seed, SIZE, dtype=DTYPES[seed % len(DTYPES)], device="cuda:sm90")
    assert not Triton().route(chain, problem).rest, chain
    here, on_cpu = draws.drawn(seed, SIZE, dtype=problem.dtype)
    assert here == chain
    interpreter.right(chain, on_cpu, seed=seed)


@pytest.mark.parametrize("seed", range(8))
def test_drawn_chains(interpreter: Interpreter, seed: int) -> None:
    right(interpreter, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8, 80))
def test_more_drawn_chains(interpreter: Interpreter, seed: int) -> None:
    right(interpreter, seed)
