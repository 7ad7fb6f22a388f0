# mypy: ignore-errors
"""Tile ops on a stored tensor, where a cut lies between it and the convolution.

``F`` is a ``StoredEpilogue``: all that is known when the kernel is compiled.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import larger, narrow, negative
from transfuse.backends.triton.epilogue.records import Channels, Coordinates, Operands
from transfuse.backends.triton.epilogue.statistics_kernel import gather, put
from transfuse.backends.triton.epilogue.tile_ops import apply_ops


@triton.jit
def place(p, STRIDES: tl.constexpr, LINEAR: tl.constexpr, F: tl.constexpr):
    """Where position ``p`` of a channel lies."""
    if F.wide:
        p = p.to(tl.int64)
    if LINEAR:
        return p * STRIDES[4]
    else:
        at = p // (F.sizes[1] * F.sizes[2]) * STRIDES[2]
        return at + p // F.sizes[2] % F.sizes[1] * STRIDES[3] + p % F.sizes[2] * STRIDES[4]


@triton.jit
def finish(
    source, out, batch, tensors, numbers, partials, plane, F: tl.constexpr, ACC: tl.constexpr
):
    """Program (sample, channels, positions): a tile of a group of channels."""
    OPS: tl.constexpr = F.ops
    LATE: tl.constexpr = F.late
    PARTS: tl.constexpr = F.parts
    LINEAR_FROM: tl.constexpr = F.source_linear
    LINEAR_TO: tl.constexpr = F.linear
    POSITIONS: tl.constexpr = F.positions
    FROM: tl.constexpr = F.source_strides
    TO: tl.constexpr = F.strides
    program = tl.program_id(0)
    tile = program % F.tiles
    program = program // F.tiles
    inner = tl.arange(0, F.block_c)
    channel = program % F.groups * F.group + inner
    live = (inner < F.group) & (channel < F.channels)
    n = program // F.groups
    p = tile * F.block_p + tl.arange(0, F.block_p)
    there = p < F.positions
    here = live[:, None] & there[None, :]
    at = place(p, FROM, LINEAR_FROM, F)
    base = n.to(tl.int64) * F.source_strides[0] + channel.to(tl.int64) * F.source_strides[1]
    v = tl.load(source + base[:, None] + at[None, :], mask=here, other=0.0).to(ACC)
    if F.parts > 1:
        if F.window == "sign":
            sign = tl.load(tensors[F.sign] + channel, mask=live, other=0.0)
            flip = tl.where(negative(sign), -1.0, 1.0).to(ACC)[:, None]
            v = v * flip
        for part in tl.static_range(1, PARTS):
            more = source + part * F.part + base[:, None] + at[None, :]
            more = tl.load(more, mask=here, other=0.0).to(ACC)
            if F.window == "sum":
                v += more
            elif F.window == "sign":
                v = larger(v, more * flip)
            else:
                v = larger(v, more)
        if F.window == "sign":
            v = v * flip
    channels = Channels(channel, live)
    w = p % F.sizes[2]
    h = p // F.sizes[2] % F.sizes[1]
    spot = Coordinates(n, p // (F.sizes[1] * F.sizes[2]), h, w)
    operands = Operands(tensors, numbers)
    v = apply_ops(v, channels, there, n, operands, POSITIONS, OPS, 0, at=spot)
    if F.summed:
        channel = tl.arange(0, 1)
        live = channel == 0
    if F.late != "":
        if F.over_batch:
            row = channel * batch + n
        else:
            row = n * F.counted + channel
        to = partials + row.to(tl.int64) * F.tiles + tile
        put(to, plane, gather(v, there, LATE), live)
    if F.stored:
        at = place(p, TO, LINEAR_TO, F)
        base = out + n.to(tl.int64) * F.strides[0] + channel.to(tl.int64) * F.strides[1]
        here = live[:, None] & there[None, :]
        tl.store(base[:, None] + at[None, :], narrow(v, out.dtype.element_ty), mask=here)
