# mypy: ignore-errors
"""Stages that take every position of a sample: those of a tile that holds them all, in pieces.

A tile's sizes are powers of two, and built for few of these. Of a tile in pieces those that hold
no position are skipped.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import larger
from transfuse.backends.triton.epilogue.operands import number


@triton.jit
def across(pieces, heres, positions, numbers, S: tl.constexpr):
    """The pieces after ``S``, one op; ``heres`` tell their real elements from padding."""
    if S.ops[0] == "group_norm":  # the tile is one group of one sample
        return group_norm(pieces, heres, positions, numbers, S)
    else:
        tl.static_assert(S.ops[0] == "space_softmax")
        return space_softmax(pieces, heres)


@triton.jit
def group_norm(pieces, heres, positions, numbers, S: tl.constexpr):
    size = positions * S.size[0]
    mean = tl.sum(summed(pieces, heres)) / size
    apart = ()
    squares = ()
    for i in tl.static_range(len(pieces)):
        v = pieces[i] - mean
        apart = apart + (v,)
        squares = squares + (v * v,)
    variance = tl.sum(summed(squares, heres)) / size
    inverse = 1.0 / tl.sqrt(variance + number(numbers, S.at[0], variance))
    found = ()
    for i in tl.static_range(len(pieces)):
        found = found + (apart[i] * inverse,)
    return found


@triton.jit
def space_softmax(pieces, heres):
    top = tl.where(heres[0], pieces[0], float("-inf"))
    for i in tl.static_range(1, len(pieces)):
        top = larger(top, tl.where(heres[i], pieces[i], float("-inf")))
    top = tl.max(top, 1)[:, None]
    powers = ()
    for i in tl.static_range(len(pieces)):
        powers = powers + (tl.exp(tl.where(heres[i], pieces[i], float("-inf")) - top),)
    share = 1.0 / tl.sum(summed(powers, heres), 1)[:, None]
    found = ()
    for i in tl.static_range(len(pieces)):
        found = found + (powers[i] * share,)
    return found


@triton.jit
def summed(pieces, heres):
    """The pieces added up, element by element, padding as zero."""
    total = tl.where(heres[0], pieces[0], 0.0)
    for i in tl.static_range(1, len(pieces)):
        total += tl.where(heres[i], pieces[i], 0.0)
    return total
