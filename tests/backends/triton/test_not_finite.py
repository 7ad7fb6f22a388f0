"""Whether weights are not finite is a matter of each call: between others, and over again."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse import fills
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import batch_norm, clamp, conv_transpose, softmax, tanh

from .conftest import Child

PROBLEM = Problem.parse("n2 ci3 co5 i4x3 k3 s2 p1")
CHAINS = {
    "nothing gathered": (conv_transpose(2), tanh()),
    "moments": (conv_transpose(2), batch_norm(training=True)),
    "exponentials": (conv_transpose(2), clamp(-1.0, 1.0), softmax("space")),
}
FINITE, WILD = 0, 1


@pytest.fixture(scope="module")
def captured() -> Iterator[Child]:
    child = Child("", script="captured.py", TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    yield child
    child.close()


def filled(name: str, seed: int, wild: bool) -> Any:
    x, weight, operands = fills.real(Chain(*CHAINS[name]), PROBLEM, seed)
    if wild:
        weight[1, 2, 0, 2] = torch.nan
        weight[2, 0, 1, 1] = torch.inf
    return x, weight, operands


def orders(launches: int) -> list[list[int]]:
    """Two calls in turn, and each of them whole between any two launches of the other."""
    found = [[FINITE, WILD] * launches, [WILD, FINITE] * launches]
    for one, other in ((FINITE, WILD), (WILD, FINITE)):
        for before in range(1, launches):
            after = launches - before
            found.append([one] * before + [other] * launches + [one] * after)
    return found


@pytest.mark.long
@pytest.mark.parametrize(("name", "launches"), [*zip(CHAINS, (3, 5, 5), strict=True)])
def test_calls_between_the_launches_of_others(name: str, launches: int, captured: Child) -> None:
    """As two streams may have it: the other call's weights decide nothing."""
    tensors = [filled(name, 0, wild=False), filled(name, 1, wild=True)]
    found = captured(
        do="interleaved",
        stages=CHAINS[name],
        problem=PROBLEM,
        strips=True,
        tensors=tensors,
        orders=orders(launches),
    )
    assert found == [[True, True]] * len(orders(launches))


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("name", CHAINS)
def test_replays_on_other_weights(name: str, rows: bool, captured: Child) -> None:
    """As a CUDA graph has it: the same launches in the same memory, whatever was there before."""
    weights = [filled(name, seed, wild)[1] for seed, wild in enumerate((True, False, True, False))]
    found = captured(
        do="replayed",
        stages=CHAINS[name],
        problem=PROBLEM,
        strips=rows,
        tensors=filled(name, 9, wild=False),
        weights=weights,
    )
    assert found == [True] * len(weights)


@pytest.mark.parametrize("wild", [False, True])
def test_every_program_that_copies_weights_answers(wild: bool, captured: Child) -> None:
    """Memory is not set to zero before: an answer that nobody gave would be read all the same."""
    summed, zeros, ones, programs = captured(
        do="answers",
        stages=CHAINS["moments"],
        problem=PROBLEM,
        tensors=filled("moments", 0, wild),
    )
    assert summed == wild
    assert (ones > 0) == wild
    assert zeros + ones == programs
