"""The time a small repeated call takes before it returns, beside the torch calls it replaces."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import pytest
import torch

from tests.small_calls import Small, chains, five, plain

ROUNDS = 150


def micros(call: Callable[[], object]) -> float:
    """Until it returns; the GPU has nothing else to do."""
    torch.cuda.synchronize()
    start = perf_counter()
    call()
    return 1e6 * (perf_counter() - start)


def ratio(each: Small) -> tuple[float, float, float]:
    for _ in range(20):
        each.ours()
        each.theirs()
    pairs = [(micros(each.ours), micros(each.theirs)) for _ in range(ROUNDS)]
    ours, theirs = (median(side) for side in zip(*pairs, strict=True))
    return ours, theirs, median(a / b for a, b in pairs)


@pytest.mark.parametrize("kind", ["plain", "chains", "five"])
def test_at_most_twice_what_torch_takes(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The convolution beside torch's, a chain beside the torch calls it replaces."""
    half = torch.float16
    calls = {
        "plain": plain("cuda", half),
        "chains": chains("cuda", half),
        "five": five("cuda", "fp16"),
    }
    found = {each.name: ratio(each) for each in calls[kind]}
    lines = [f"{n}: {a:.1f} us, torch {b:.1f} us, {r:.2f}" for n, (a, b, r) in found.items()]
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert all(times <= 2 for *_, times in found.values()), "\n".join(lines)
