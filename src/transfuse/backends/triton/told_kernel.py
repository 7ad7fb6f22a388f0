# mypy: ignore-errors
"""Integers as ``told.py`` tells them to kernels."""

import triton
import triton.language as tl


@triton.jit
def plain(number):
    """What ``told.told`` made of an integer."""
    return (number - 3) >> 1


@triton.jit
def all_plain(numbers):
    found = ()
    for i in tl.static_range(len(numbers)):
        found = found + (plain(numbers[i]),)
    return found


@triton.jit
def over(n, divisor):
    """``n // divisor`` for ``n`` of [0, 2**31), by a product."""
    _, magic, shift = divisor
    magic = plain(magic).to(tl.uint32)
    found = tl.umulhi(tl.cast(n + n, tl.uint32), magic) >> plain(shift).to(tl.uint32)
    return found.to(tl.int32)


@triton.jit
def parted(n, divisor):
    """``n // divisor`` and ``n % divisor``."""
    found = over(n, divisor)
    return found, n - found * plain(divisor[0])
