"""Integers that kernels are told: never specialised on, and divided by exactly."""

import random

import pytest

from transfuse.backends.triton.told import UNDIVIDED, divisor, told

EDGES = [1, 2, 3, 5, 7, 16, 641, 2**16 - 1, 2**16 + 1, 2**30, 2**31 - 2, 2**31 - 1]


def plain(number: int) -> int:
    return (number - 3) >> 1


def over(n: int, by: tuple[int, int, int]) -> int:
    """As ``told_kernel.over`` does it, in 32-bit registers."""
    _, magic, shift = map(plain, by)
    assert 0 <= magic < 2**32
    assert 0 <= 2 * n < 2**32
    return (2 * n * magic >> 32) >> shift


@pytest.mark.parametrize("number", [*range(70), 2**29, 2**30 - 2])
def test_triton_does_not_specialise_on_it(number: int) -> None:
    """It does on 1 and on multiples of 16."""
    assert told(number) != 1
    assert told(number) % 16
    assert plain(told(number)) == number


@pytest.mark.parametrize("number", EDGES)
def test_division_is_exact(number: int) -> None:
    draw = random.Random(number)
    by = divisor(number)
    near = [k * number + off for k in (1, 2, 3, (2**31 - 1) // number) for off in (-1, 0, 1)]
    for n in (*EDGES, *near, *(draw.randrange(2**31) for _ in range(2000))):
        if 0 <= n < 2**31:
            assert over(n, by) == n // number, (n, number)


def test_magics_are_of_one_type() -> None:
    """Triton takes an integer beyond 32 bits for one of 64: all of them are, or none."""
    for number in (*EDGES, 4, 1024):
        assert divisor(number).magic >= 2**31
        assert divisor(number).shift < 2**31
    assert UNDIVIDED.magic >= 2**31


def test_undivided() -> None:
    for n in (0, *EDGES):
        assert over(n, UNDIVIDED) == 0
