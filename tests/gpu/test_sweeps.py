"""Sweeps on a GPU: every kind against its definition, and the same bits in every launch."""

import pytest
import torch

from tests.random_sweeps import KINDS, Drawn, drawn, judge
from transfuse.backends.triton.sweeps import prepare

EXACT = ("each", "sum", "max", "min", "slide max", "slide sum", "slide sign")


def swept(given: Drawn, device: torch.device, exact: bool = False) -> None:
    """By Triton's launcher first, then twice by the driver directly."""
    sequence, found = prepare(given.sweep, device), []
    for _ in range(3):
        slots = given.on(device).slots
        sequence(slots)
        found.append([slot.cpu() for slot in slots])
    assert sequence.buffers is not None, "not as expected, and so Triton launches"
    judge(given, found[0], exact)
    for again in found[1:]:
        for a, b in zip(found[0], again, strict=True):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fill", ["integers", "real", "special"])
@pytest.mark.parametrize("seed", range(4))
def test_sweep(kind: str, fill: str, seed: int, cuda: torch.device) -> None:
    swept(drawn(seed, kind, fill), cuda, exact=fill == "integers" and kind in EXACT)
