"""The digest by which kept weights are known to be unchanged."""

import pytest
import torch

from transfuse.backends.cpu import library
from transfuse.backends.cpu.weights import digest

core = library.load()
assert core is not None
SIZES = [1, 4, 63, 64, 1023, 1024, 1025, 5000, 64 * 1024, 64 * 1024 + 1, 300_000, 4_300_000]
"""Bytes: within a block, around one, and enough for two and three levels of digests."""


def found(data: torch.Tensor, threads: int = 1) -> tuple[int, int]:
    assert core is not None
    return digest(core, data, threads)


def some_bytes(size: int) -> torch.Tensor:
    return torch.randint(
        256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size)
    )


@pytest.mark.parametrize("size", SIZES)
def test_one_bit_is_enough(size: int) -> None:
    data = some_bytes(size)
    before = found(data)
    places = {0, size - 1, size // 2, *torch.randint(size, (20,)).tolist()}
    for place in places:
        for bit in (1, 128):
            data[place] ^= bit
            assert found(data) != before, (place, bit)
            data[place] ^= bit
    assert found(data) == before


@pytest.mark.parametrize("size", SIZES)
def test_the_same_for_any_number_of_threads(size: int) -> None:
    data = some_bytes(size)
    assert len({found(data, threads) for threads in (1, 2, 3, 16)}) == 1


def test_order_matters() -> None:
    """Of words, of pairs of them, of vectors, of blocks."""
    data = some_bytes(8192)
    before = found(data)
    for size in (4, 8, 64, 1024, 4096):
        other = data.clone()
        other[:size], other[size : 2 * size] = data[size : 2 * size], data[:size]
        assert found(other) != before, size


def test_zeros_of_negative_sign_are_others() -> None:
    assert found(torch.zeros(512)) != found(-torch.zeros(512))


def test_few_bits_collide_nowhere() -> None:
    """All blocks of one or two bits set: sums without keys would meet."""
    every = set()
    for i in range(128):
        for j in range(i, 128):
            data = torch.zeros(16, dtype=torch.uint8)
            for bit in {i, j}:
                data[bit // 8] |= 1 << bit % 8
            every.add(found(data))
    assert len(every) == 128 * 129 // 2


def test_unaligned() -> None:
    data = some_bytes(5001)
    assert found(data[1:]) == found(data[1:].clone())
