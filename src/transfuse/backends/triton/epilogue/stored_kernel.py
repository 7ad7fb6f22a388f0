# mypy: ignore-errors
"""Tile ops on a stored tensor, where a cut lies between it and the convolution.

``F`` is a ``StoredEpilogue``: all that is known when the kernel is compiled.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import larger, negative
from transfuse.backends.triton.epilogue.places_kernel import channel_offsets, kept, offsets, write
from transfuse.backends.triton.epilogue.records import Channels, Coordinates, Operands
from transfuse.backends.triton.epilogue.resident_kernel import across
from transfuse.backends.triton.epilogue.statistics_kernel import gather, join, put
from transfuse.backends.triton.epilogue.tile_ops import apply_ops
from transfuse.backends.triton.segments import FEW as FEW_PIECES
from transfuse.backends.triton.told_kernel import parted, plain

FEW = tl.constexpr(FEW_PIECES)


@triton.jit
def places(p, n, sizes, F: tl.constexpr):
    """Of the positions of a piece: which are there, where each belongs, that as offsets take it."""
    d, rest = parted(p, sizes.plane)
    h, w = parted(rest, sizes.line)
    spot = Coordinates(n, d, h, w)
    at = spot
    if F.linear:  # as if they were of one line: no division is left, unless an operand asks for it
        at = Coordinates(n, 0 * n, 0 * n, p)
    return p < plain(sizes.positions), spot, at


@triton.jit
def load_piece(
    source, there, at, channels, operands, sizes,
    F: tl.constexpr, ACC: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The values of a piece; shares of a window's members meet here."""
    channel, live = channels
    INNER: tl.constexpr = F.source_inner
    place = offsets(at, sizes.source, INNER, F.wide, UNIT)
    base = channel_offsets(channel, sizes.source, INNER, F.wide, UNIT)
    here = kept(live, there, INNER, UNIT, F.whole)
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
    return v


@triton.jit
def after_run(
    pieces, theres, spots, n, channels, operands, sizes, F: tl.constexpr, WHICH: tl.constexpr
):  # fmt: skip
    """The pieces after a run of ops, one by one; or after one op that takes every position."""
    RUN: tl.constexpr = F.runs[WHICH]
    found = ()
    if RUN.resident:
        heres = ()
        for i in tl.static_range(len(pieces)):
            heres = heres + (kept(channels.live, theres[i], 1, 1, F.whole),)
        found = across(pieces, heres, plain(sizes.positions), operands.numbers, RUN)
    else:
        for i in tl.static_range(len(pieces)):
            v, there = pieces[i], theres[i]
            v = apply_ops(v, channels, there, n, operands, RUN, 0, F.whole, at=spots[i])
            found = found + (v,)
    return found


@triton.jit
def finish_tile(
    memory, operands, sizes, to, gathered,
    F: tl.constexpr, ACC: tl.constexpr, UNIT: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """A tile of a group of channels, ``PIECES`` of it; ``UNIT`` neighbours are one aligned piece.

    ``memory``: where values come from, where results go, and where partials do.
    """
    LATE: tl.constexpr = F.late
    source, out, partials = memory
    program, tile = parted(tl.program_id(0), sizes.tiles)
    n, of_channels = parted(program, sizes.groups)
    inner = tl.arange(0, F.block_c)
    channel = of_channels * plain(sizes.group) + inner
    live = (inner < plain(sizes.group)) & (channel < plain(sizes.channels))
    channels = Channels(channel, live)
    pieces = ()
    theres = ()
    spots = ()
    ats = ()
    for i in tl.static_range(PIECES):
        p = (tile * F.pieces + i) * F.block_p + tl.arange(0, F.block_p)
        there, spot, at = places(p, n, sizes, F)
        v = load_piece(source, there, at, channels, operands, sizes, F, ACC, UNIT)
        pieces = pieces + (v,)
        theres = theres + (there,)
        spots = spots + (spot,)
        ats = ats + (at,)
    for i in tl.static_range(len(F.runs)):
        pieces = after_run(pieces, theres, spots, n, channels, operands, sizes, F, i)
    if F.summed:
        channel = tl.arange(0, 1)
        live = channel == 0
    if F.late != "":
        if F.over_batch:
            row = channel * plain(sizes.batch) + n
        else:
            row = n * plain(gathered.counted) + channel
        own = partials + row.to(tl.int64) * plain(sizes.tiles[0]) + tile
        partial = gather(pieces[0], theres[0], LATE)
        for i in tl.static_range(1, PIECES):
            partial = join(partial, gather(pieces[i], theres[i], LATE), LATE)
        put(own, plain(gathered.plane), partial, live)
    if F.stored:
        WHOLE: tl.constexpr = F.whole or F.summed
        channels = Channels(channel, live)
        for i in tl.static_range(PIECES):
            write(out, pieces[i], channels, theres[i], ats[i], n * 0, to, F, UNIT, WHOLE)


@triton.jit
def finish_pieces(
    memory, operands, sizes, to, gathered,
    F: tl.constexpr, ACC: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """A tile of all its pieces, or of as many as positions reach: one build serves both."""
    ALL: tl.constexpr = F.pieces
    if plain(sizes.positions) <= FEW * F.block_p:
        finish_tile(memory, operands, sizes, to, gathered, F, ACC, UNIT, FEW)
    else:
        finish_tile(memory, operands, sizes, to, gathered, F, ACC, UNIT, ALL)


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
    memory = (source, out, partials)
    if F.pieces == 1:
        if plain(to.even) > 0:
            finish_tile(memory, operands, sizes, to, gathered, F, ACC, UNIT, 1)
        else:
            finish_tile(memory, operands, sizes, to, gathered, F, ACC, 1, 1)
    else:
        if plain(to.even) > 0:
            finish_pieces(memory, operands, sizes, to, gathered, F, ACC, UNIT)
        else:
            finish_pieces(memory, operands, sizes, to, gathered, F, ACC, 1)
