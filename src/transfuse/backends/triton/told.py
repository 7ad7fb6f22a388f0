"""Integers that a kernel is told when it runs, so that one build of it serves all sizes."""

from collections.abc import Iterable
from typing import NamedTuple


def told(number: int) -> int:
    """An integer as kernels are told it (``told_kernel.plain``).

    Triton compiles a kernel once more for an argument of 1, and for one that 16 divides; this is
    never either, for any number but -1.
    """
    return 2 * number + 3


def all_told(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(map(told, numbers))


class Divisor(NamedTuple):
    """A number to divide by, as told: ``n // number`` is ``n * magic >> 31 + shift``."""

    number: int
    magic: int
    shift: int


def divisor(number: int) -> Divisor:
    """What ``told_kernel.over`` divides by, exactly, for every ``n`` of [0, 2**31).

    ``magic`` is ``2**(31 + shift) / number`` rounded up, by less than 1, and ``2**shift`` is at
    least ``number``: so ``n * magic`` is too large by less than ``2**(31 + shift) / number``, the
    least that could matter.
    """
    shift = (number - 1).bit_length()
    return Divisor(told(number), told(-(-(1 << 31 + shift) // number)), told(shift))


UNDIVIDED = Divisor(told(0), told(1 << 31), told(31))
"""Stands for a number larger than all: ``n`` goes 0 times into it, and is left."""
