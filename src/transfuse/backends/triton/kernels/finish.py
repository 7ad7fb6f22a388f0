"""Steps on a stored tensor, where a cut lies between it and the convolution."""

import triton
import triton.language as tl

from transfuse.backends.triton.kernels.numbers import narrow
from transfuse.backends.triton.kernels.statistics import gather, put
from transfuse.backends.triton.kernels.steps import steps


@triton.jit
def place(p, SIZES: tl.constexpr, STRIDES: tl.constexpr, LINEAR: tl.constexpr, WIDE: tl.constexpr):
    """Where position ``p`` of a channel lies."""
    if WIDE:
        p = p.to(tl.int64)
    if LINEAR:
        return p * STRIDES[4]
    else:
        at = p // (SIZES[1] * SIZES[2]) * STRIDES[2]
        return at + p // SIZES[2] % SIZES[1] * STRIDES[3] + p % SIZES[2] * STRIDES[4]


@triton.jit
def finish(
    source, out, batch, tensors, numbers, partials, plane,
    SIZES: tl.constexpr, CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,  # channels of one tile
    SOURCE_STRIDES: tl.constexpr, SOURCE_LINEAR: tl.constexpr,
    STRIDES: tl.constexpr, LINEAR: tl.constexpr, WIDE: tl.constexpr,
    OPS: tl.constexpr, AT: tl.constexpr, SIZE: tl.constexpr, COUNT: tl.constexpr,
    LATE: tl.constexpr, OVER_BATCH: tl.constexpr, SUMMED: tl.constexpr, STORED: tl.constexpr, ACC: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Program (sample, channels, positions): a tile of at most GROUP channels and BLOCK_P."""
    POSITIONS: tl.constexpr = SIZES[0] * SIZES[1] * SIZES[2]
    TILES: tl.constexpr = (POSITIONS + BLOCK_P - 1) // BLOCK_P
    GROUPS: tl.constexpr = (CHANNELS + GROUP - 1) // GROUP
    program = tl.program_id(0)
    tile = program % TILES
    program = program // TILES
    inner = tl.arange(0, BLOCK_C)
    channel = program % GROUPS * GROUP + inner
    live = (inner < GROUP) & (channel < CHANNELS)
    n = program // GROUPS
    p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    there = p < POSITIONS
    here = live[:, None] & there[None, :]
    at = place(p, SIZES, SOURCE_STRIDES, SOURCE_LINEAR, WIDE)
    base = n.to(tl.int64) * SOURCE_STRIDES[0] + channel.to(tl.int64) * SOURCE_STRIDES[1]
    v = tl.load(source + base[:, None] + at[None, :], mask=here, other=0.0).to(ACC)
    v = steps(
        v, channel, live, there, n, tensors, numbers, POSITIONS, OPS, AT, SIZE, COUNT, 0
    )
    if SUMMED:
        channel = tl.arange(0, 1)
        live = channel == 0
    if LATE != "":
        if OVER_BATCH:
            row = channel * batch + n
        else:
            row = n * (1 if SUMMED else CHANNELS) + channel
        to = partials + row.to(tl.int64) * TILES + tile
        put(to, plane, gather(v, there, LATE), live)
    if STORED:
        at = place(p, SIZES, STRIDES, LINEAR, WIDE)
        base = out + n.to(tl.int64) * STRIDES[0] + channel.to(tl.int64) * STRIDES[1]
        here = live[:, None] & there[None, :]
        tl.store(base[:, None] + at[None, :], narrow(v, out.dtype.element_ty), mask=here)
