# mypy: ignore-errors
"""Numbers and tensors of a launch, as a tile meets them."""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.places_kernel import channel_offsets, offsets


@triton.jit
def number(numbers, at, like):
    """A number of the chain, exact in the tile's type: three float32 add up to a float64."""
    if like.dtype == tl.float64:
        wide = tl.cast(numbers[at], tl.float64) + tl.cast(numbers[at + 1], tl.float64)
        return wide + tl.cast(numbers[at + 2], tl.float64)
    else:
        return numbers[at]


@triton.jit
def times(values, numbers, at):
    """Values times an op's factor, if it has one."""
    if at < 0:
        return values
    else:
        return values * number(numbers, at, values)


@triton.jit
def spread(values, AXIS: tl.constexpr):
    """One value per channel, to meet a tile."""
    return tl.expand_dims(values, 1 - AXIS)


@triton.jit
def operand(tensors, at, channel, live, like, AXIS: tl.constexpr):
    """A per-channel tensor, to meet a tile; of one channel alone, a number."""
    if like.shape[AXIS] == 1:
        return tl.load(tensors[at]).to(like.dtype)
    else:
        return spread(tl.load(tensors[at] + channel, mask=live, other=0.0).to(like.dtype), AXIS)


@triton.jit
def placed(tensor, channels, valid, at, like, strides, SPREAD: tl.constexpr, AXIS: tl.constexpr):
    """A tensor with more than a value per channel, at the positions of a tile."""
    channel, live = channels
    INNER: tl.constexpr = SPREAD.inner
    UNIT: tl.constexpr = SPREAD.unit
    to = tensor + tl.expand_dims(offsets(at, strides, INNER, True, UNIT), AXIS)
    here = tl.expand_dims(valid, AXIS)
    if like.shape[AXIS] > 1:
        to += spread(channel_offsets(channel, strides, INNER, True, UNIT), AXIS)
        here = here & spread(live, AXIS)
    if UNIT > 1:
        ALONG: tl.constexpr = AXIS if INNER == 1 else 1 - AXIS
        here = tl.max_constancy(here, [UNIT, 1] if ALONG == 0 else [1, UNIT])
    return tl.load(to, mask=here, other=0.0).to(like.dtype)
