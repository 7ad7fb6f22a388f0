# mypy: ignore-errors
"""Tile ops on a stored tensor, where a cut lies between it and the convolution.

``F`` is a ``StoredEpilogue``: all that is known when the kernel is compiled.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import larger, negative
from transfuse.backends.triton.epilogue.places_kernel import channel_offsets, kept, offsets, write
from transfuse.backends.triton.epilogue.records import Channels, Coordinates, Operands
from transfuse.backends.triton.epilogue.statistics_kernel import gather, put
from transfuse.backends.triton.epilogue.tile_ops import apply_ops
from transfuse.backends.triton.told_kernel import parted, plain


@triton.jit
def finish_tile(
    source, out, partials, operands, sizes, to, gathered,
    F: tl.constexpr, ACC: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """A tile of a group of channels; ``UNIT`` neighbours are one aligned piece."""
    OPS: tl.constexpr = F.ops
    LATE: tl.constexpr = F.late
    INNER: tl.constexpr = F.source_inner
    program, tile = parted(tl.program_id(0), sizes.tiles)
    n, of_channels = parted(program, sizes.groups)
    inner = tl.arange(0, F.block_c)
    channel = of_channels * plain(sizes.group) + inner
    live = (inner < plain(sizes.group)) & (channel < plain(sizes.channels))
    p = tile * F.block_p + tl.arange(0, F.block_p)
    there = p < plain(sizes.positions)
    d, rest = parted(p, sizes.plane)
    h, w = parted(rest, sizes.line)
    spot = Coordinates(n, d, h, w)
    place = offsets(spot, sizes.source, INNER, F.wide, UNIT)
    base = channel_offsets(channel, sizes.source, INNER, F.wide, UNIT)
    here = kept(live, there, INNER, UNIT)
    first = source + (base[:, None] + place[None, :])
    v = tl.load(first, mask=here, other=0.0).to(ACC)
    if F.shared:
        if F.window == "sign":
            sign = tl.load(operands.tensors[F.sign] + channel, mask=live, other=0.0)
            flip = tl.where(negative(sign), -1.0, 1.0).to(ACC)[:, None]
            v = v * flip
        for part in range(1, plain(sizes.parts)):
            more = first + part * plain(sizes.part).to(tl.int64)
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
    v = apply_ops(v, channels, there, n, operands, plain(sizes.positions), OPS, 0, at=spot)
    if F.summed:
        channel = tl.arange(0, 1)
        live = channel == 0
    if F.late != "":
        if F.over_batch:
            row = channel * plain(sizes.batch) + n
        else:
            row = n * plain(gathered.counted) + channel
        at = partials + row.to(tl.int64) * plain(sizes.tiles[0]) + tile
        put(at, plain(gathered.plane), gather(v, there, LATE), live)
    if F.stored:
        write(out, v, Channels(channel, live), there, spot, n * 0, to, F, UNIT)


@triton.jit
def finish(
    source, out, tensors, numbers, strides, partials, sizes, to, gathered,
    F: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Program (sample, channels, positions): a tile of a group of channels.

    ``sizes`` is a ``StoredSizes``, ``to`` a ``Destination``, ``gathered`` a ``Gathered``.
    """
    UNIT: tl.constexpr = F.unit
    operands = Operands(tensors, numbers, strides)
    if plain(to.even) > 0:
        finish_tile(source, out, partials, operands, sizes, to, gathered, F, ACC, UNIT)
    else:
        finish_tile(source, out, partials, operands, sizes, to, gathered, F, ACC, 1)
