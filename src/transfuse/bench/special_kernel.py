# mypy: ignore-errors
"""A kernel that does nothing but exponentials, in registers."""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import power_of_two


@triton.jit
def exponentials(out, rounds, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr):
    """Each value ``rounds * AT_ONCE`` times the power of two of itself; stored, or none would be.

    What a value is does not matter to the units that compute it.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = at.to(tl.float32)
    for _ in range(rounds):
        for _ in tl.static_range(AT_ONCE):
            x = power_of_two(x)
    tl.store(out + at, x)
