# mypy: ignore-errors
"""What a convolution reads: the input as channels-last rows, the weights by slot, in one launch.

Both are rounded here (tf32) and padded with zeros, so that tiles need no masks. Stages before the
convolution run on the way. ``C`` is a ``PackedInput`` and ``S`` its ``InputSizes``, ``W`` a
``PackedWeights`` and ``Z`` its ``WeightSizes`` (``packed_layout.py``).
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import larger, narrow, nearest_tf32
from transfuse.backends.triton.epilogue.places_kernel import channel_offsets, kept, moved, offsets
from transfuse.backends.triton.epilogue.records import Channels, Coordinates, Operands
from transfuse.backends.triton.epilogue.tile_ops import apply_ops
from transfuse.backends.triton.packing import packed_layout
from transfuse.backends.triton.told_kernel import all_plain, parted, plain

PADDED = tl.constexpr(packed_layout.PADDED)


@triton.jit
def padded(number, IS: tl.constexpr):
    """A number of channels, known to be a multiple of ``PADDED`` where they are padded."""
    if IS:
        return plain(number) * PADDED
    else:
        return plain(number)


@triton.jit
def copy_input(program, x, rows, operands, S, C: tl.constexpr, ACC: tl.constexpr):
    """A block of channels times a block of positions of one plane of rows, of a few samples."""
    SAMPLES: tl.constexpr = C.samples
    BLOCK_P: tl.constexpr = C.block_p
    program, of_channels = parted(program, S.channel_blocks)
    slot = of_channels * C.block_c + tl.arange(0, C.block_c)
    program, of_plane = parted(program, S.plane_blocks)
    # Outer order of the rows: residue, sample, depth; or residue, depth, …, sample.
    program, depth = parted(program, S.deep)
    residue, first = parted(program, S.sample_blocks)
    # ``block`` equals C.block_p, but is an argument at run time. A product with a constant power of
    # two becomes a shift, and LLVM may do two shifts of 32 bits as one of 64, in which the overflow
    # of one number reaches the other (``miscompiles.py``).
    at = tl.multiple_of(of_plane * plain(S.block) + tl.arange(0, BLOCK_P), BLOCK_P)
    line, rest = parted(at, S.line)
    d = (depth + C.low) * C.residues[0] + residue // (C.residues[1] * C.residues[2])
    h = line * C.residues[1] + residue // C.residues[2] % C.residues[1]
    w = rest * C.residues[2] + residue % C.residues[2]
    inputs = all_plain(S.inputs)
    plane = plain(S.plane)
    inside = (d >= 0) & (d < inputs[0]) & (h < inputs[1]) & (w < inputs[2]) & (at < plane)
    width = padded(S.width, C.padded)
    if C.grouped:
        group, own = parted(slot, S.kept)
        channel = group * plain(S.group_channels) + own
        live = (slot < width) & (own < plain(S.group_channels))
    else:
        channel = slot
        live = slot < plain(S.group_channels)
    batch = plain(S.batch)
    deep = plain(S.deep[0])
    for i in tl.static_range(SAMPLES):
        n = first * SAMPLES + i
        there = inside & (n < batch)
        v = sources(x, (n, d, h, w), of_plane, Channels(channel, live), there, operands, S, C, ACC)
        if not C.plain:
            v = tl.where(kept(live, there, 1, 1, C.whole), v, 0.0)
        if C.tf32:
            v = nearest_tf32(v)
        if C.samples_last:
            row = (residue * deep + depth).to(tl.int64) * plane * batch + n
            step = batch * width
        else:
            row = ((residue * batch + n).to(tl.int64) * deep + depth) * plane
            step = width
        place = at * step
        if C.far:
            place = at.to(tl.int64) * step
        target = rows + row * width + (place[None, :] + slot[:, None])
        keep = kept(slot < width, (at < plane) & (n < batch), 1, 1, C.whole)
        tl.store(target, narrow(v, rows.dtype.element_ty), mask=keep)


@triton.jit
def sources(x, at, of_plane, channels, there, operands, S, C: tl.constexpr, ACC: tl.constexpr):
    """What the prologue makes of the tensor at n, d, h, w."""
    n, d, h, w = at
    channel, live = channels
    BLOCK_C: tl.constexpr = C.block_c
    BLOCK_P: tl.constexpr = C.block_p
    INNER: tl.constexpr = C.inner
    RUN: tl.constexpr = C.run
    BEFORE: tl.constexpr = C.before
    AFTER: tl.constexpr = C.after
    UNIT: tl.constexpr = C.unit
    base = moved(x, n, S.strides[0], UNIT)
    c = channel_offsets(channel, S.strides, INNER, C.wide, UNIT)
    if C.pool == "":
        place = offsets(Coordinates(0 * d, d, h, w), S.strides, INNER, C.wide, UNIT)
        here = kept(live, there, INNER, UNIT, C.whole)
        v = tl.load(base + (c[:, None] + place[None, :]), mask=here, other=0.0).to(ACC)
        v = apply_ops(v, channels, live, n, operands, BEFORE, 0)
    else:
        size = all_plain(S.source)
        v = tl.full([BLOCK_C, BLOCK_P], float("-inf") if C.pool == "max" else 0.0, ACC)
        MEMBERS: tl.constexpr = C.members
        for member in tl.range(0, MEMBERS, loop_unroll_factor=4):
            z = d * C.stride[0] - C.padding[0] + member // (C.kernel[1] * (C.kernel[2] // RUN))
            if RUN > 1:  # a window's elements of one line lie side by side: all in one load
                q = of_plane * BLOCK_P * RUN + tl.arange(0, BLOCK_P * RUN)
                line, rest = parted(q // RUN, S.line)
                y = line * C.stride[1] - C.padding[1] + member % C.kernel[1]
                u = rest * RUN + q % RUN
                found = (u < plain(S.inputs[2]) * RUN) & (n < plain(S.batch))
            else:
                y = h * C.stride[1] - C.padding[1] + member // C.kernel[2] % C.kernel[1]
                u = w * C.stride[2] - C.padding[2] + member % C.kernel[2]
                found = there & (u >= 0) & (u < size[2])
            found &= (z >= 0) & (z < size[0]) & (y >= 0) & (y < size[1])
            place = offsets(Coordinates(0 * z, z, y, u), S.strides, INNER, C.wide, UNIT)
            here = kept(live, found, INNER, UNIT, C.whole)
            part = tl.load(base + (c[:, None] + place[None, :]), mask=here, other=0.0).to(ACC)
            part = apply_ops(part, channels, live, n, operands, BEFORE, 0)
            if C.pool == "max":
                part = tl.where(here, part, float("-inf"))
                if RUN > 1:
                    part = tl.reduce(tl.reshape(part, [BLOCK_C, BLOCK_P, RUN]), 2, larger)
                v = larger(v, part)
            else:
                part = tl.where(here, part, 0.0)
                if RUN > 1:
                    part = tl.sum(tl.reshape(part, [BLOCK_C, BLOCK_P, RUN]), 2)
                v += part
    return apply_ops(v, channels, live, n, operands, AFTER, 0)


@triton.jit
def copy_weights(program, weight, packed, slot_of_tap, wild, Z, W: tl.constexpr):
    """``packed[g*rows + co, slot*kept + ci]``; ``wild[1 + program]``: NaN or Inf among them?

    Every program answers in every call, so nothing has to be set to zero before.
    """
    answer = wild + 1 + program
    program, of_channels = parted(program, Z.channel_blocks)
    ci = of_channels * W.block_c + tl.arange(0, W.block_c)
    tap = program % W.tap_blocks * W.block_t + tl.arange(0, W.block_t)
    group, co = parted(program // W.tap_blocks, Z.rows)
    inputs = plain(Z.group_channels)
    known = tap < W.slots
    real = known[:, None] & (ci < inputs)[None, :] & (co < plain(Z.group_outputs))
    strides = all_plain(Z.strides)
    place = tap // (W.taps[1] * W.taps[2]) * strides[2]
    place += tap // W.taps[2] % W.taps[1] * strides[3] + tap % W.taps[2] * strides[4]
    source = (group * inputs + ci).to(tl.int64) * strides[0]
    source = weight + co.to(tl.int64) * strides[1] + source[None, :] + place[:, None]
    v = tl.load(source, mask=real, other=0.0)
    wide = v if v.dtype == tl.float64 else v.to(tl.float32)  # the interpreter cannot subtract bf16
    tl.store(answer, tl.max(tl.max(tl.where(wide - wide == 0, 0, 1), 1), 0))
    if W.tf32:
        v = nearest_tf32(v)
    slot = tl.load(slot_of_tap + tap, mask=known, other=0)
    kept = padded(Z.kept, W.padded)
    row = (group * plain(Z.rows[0]) + co).to(tl.int64) * (W.slots * kept)
    target = packed + row + slot[:, None] * kept + ci[None, :]
    tl.store(target, v, mask=known[:, None] & (ci < kept)[None, :])


@triton.jit
def pack(
    x, rows, weight, packed, slot_of_tap, wild, tensors, numbers, S, Z,
    C: tl.constexpr, W: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The first programs take weights, the others input."""
    program = tl.program_id(0)
    of_weights = plain(Z.programs)
    if program < of_weights:
        copy_weights(program, weight, packed, slot_of_tap, wild, Z, W)
    else:
        operands = Operands(tensors, numbers)
        copy_input(program - of_weights, x, rows, operands, S, C, ACC)
