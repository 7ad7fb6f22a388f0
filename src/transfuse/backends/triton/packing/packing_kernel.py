# mypy: ignore-errors
"""What a convolution reads: the input as channels-last rows, the weights by slot, in one launch.

Both are rounded here (tf32) and padded with zeros, so that tiles need no masks. Stages before the
convolution run on the way. ``C`` is a ``copies.PackedInput``, ``W`` a ``copies.PackedWeights``.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import larger, narrow, nearest_tf32
from transfuse.backends.triton.epilogue.records import Channels, Operands
from transfuse.backends.triton.epilogue.tile_ops import apply_ops


@triton.jit
def copy_input(program, x, rows, batch, block, operands, C: tl.constexpr, ACC: tl.constexpr):
    """A block of channels times a block of positions of one plane of rows, of a few samples."""
    SAMPLES: tl.constexpr = C.samples
    slot = program % C.channel_blocks * C.block_c + tl.arange(0, C.block_c)
    program = program // C.channel_blocks
    plane = program % C.plane_blocks
    program = program // C.plane_blocks
    # Outer order of the rows: residue, sample, depth; or residue, depth, …, sample.
    depth = program % C.extent[0]
    program = program // C.extent[0]
    samples = (batch + SAMPLES - 1) // SAMPLES
    first = program % samples * SAMPLES
    residue = program // samples
    # ``block`` equals C.block_p, but is an argument at run time. A product with a constant power of
    # two becomes a shift, and LLVM may do two shifts of 32 bits as one of 64, in which the overflow
    # of one number reaches the other (``miscompiles.py``).
    BLOCK_P: tl.constexpr = C.block_p
    at = tl.multiple_of(plane * block + tl.arange(0, BLOCK_P), BLOCK_P)
    d = (depth + C.low) * C.residues[0] + residue // (C.residues[1] * C.residues[2])
    h = at // C.extent[2] * C.residues[1] + residue // C.residues[2] % C.residues[1]
    w = at % C.extent[2] * C.residues[2] + residue % C.residues[2]
    inside = (d >= 0) & (d < C.inputs[0]) & (h < C.inputs[1]) & (w < C.inputs[2]) & (at < C.plane)
    channel = slot // C.kept * C.group_channels + slot % C.kept
    live = (slot < C.channels) & (slot % C.kept < C.group_channels)
    for i in tl.static_range(SAMPLES):
        n = first + i
        here = live[:, None] & inside[None, :] & (n < batch)
        v = sources(x, (n, d, h, w), plane, Channels(channel, live), here, operands, C, ACC)
        v = tl.where(here, v, 0.0)
        if C.tf32:
            v = nearest_tf32(v)
        if C.batch_last:
            row = ((residue * C.extent[0] + depth) * C.plane + at).to(tl.int64) * batch + n
        else:
            row = ((residue * batch + n).to(tl.int64) * C.extent[0] + depth) * C.plane + at
        target = rows + row[None, :] * C.channels + slot[:, None]
        keep = (slot < C.channels)[:, None] & (at < C.plane)[None, :] & (n < batch)
        tl.store(target, narrow(v, rows.dtype.element_ty), mask=keep)


@triton.jit
def sources(x, at, plane, channels, here, operands, C: tl.constexpr, ACC: tl.constexpr):
    """What the prologue makes of the tensor at n, d, h, w."""
    n, d, h, w = at
    channel, live = channels
    BLOCK_C: tl.constexpr = C.block_c
    BLOCK_P: tl.constexpr = C.block_p
    RUN: tl.constexpr = C.run
    BEFORE: tl.constexpr = C.before
    AFTER: tl.constexpr = C.after
    if C.wide:
        d = d.to(tl.int64)
        h = h.to(tl.int64)
        w = w.to(tl.int64)
    base = x + n.to(tl.int64) * C.strides[0] + (channel.to(tl.int64) * C.strides[1])[:, None]
    if C.pool == "":
        place = d * C.strides[2] + h * C.strides[3] + w * C.strides[4]
        v = tl.load(base + place[None, :], mask=here, other=0.0).to(ACC)
        v = apply_ops(v, channels, live, n, operands, 1, BEFORE, 0)
    else:
        v = tl.full([BLOCK_C, BLOCK_P], float("-inf") if C.pool == "max" else 0.0, ACC)
        MEMBERS: tl.constexpr = C.members
        for member in tl.range(0, MEMBERS, loop_unroll_factor=4):
            z = d * C.stride[0] - C.padding[0] + member // (C.kernel[1] * (C.kernel[2] // RUN))
            y = h * C.stride[1] - C.padding[1] + member // (C.kernel[2] // RUN) % C.kernel[1]
            if RUN > 1:  # a window's elements of one line lie side by side: all in one load
                q = plane * BLOCK_P * RUN + tl.arange(0, BLOCK_P * RUN)
                line = q // (C.extent[2] * RUN)
                u = q % (C.extent[2] * RUN)
                y = line * C.stride[1] - C.padding[1] + member % C.kernel[1]
                there = (z >= 0) & (z < C.source[0]) & (y >= 0) & (y < C.source[1])
                there = live[:, None] & (there & (u < C.inputs[2] * RUN))[None, :]
                place = z * C.strides[2] + y * C.strides[3] + u * C.strides[4]
            else:
                u = w * C.stride[2] - C.padding[2] + member % C.kernel[2]
                there = (z >= 0) & (z < C.source[0]) & (y >= 0) & (y < C.source[1])
                there = here & (there & (u >= 0) & (u < C.source[2]))[None, :]
                place = z * C.strides[2] + y * C.strides[3] + u * C.strides[4]
            part = tl.load(base + place[None, :], mask=there, other=0.0).to(ACC)
            part = apply_ops(part, channels, live, n, operands, 1, BEFORE, 0)
            if C.pool == "max":
                part = tl.where(there, part, float("-inf"))
                if RUN > 1:
                    part = tl.reduce(tl.reshape(part, [BLOCK_C, BLOCK_P, RUN]), 2, larger)
                v = larger(v, part)
            else:
                part = tl.where(there, part, 0.0)
                if RUN > 1:
                    part = tl.sum(tl.reshape(part, [BLOCK_C, BLOCK_P, RUN]), 2)
                v += part
    return apply_ops(v, channels, live, n, operands, 1, AFTER, 0)


@triton.jit
def copy_weights(program, weight, packed, slot_of_tap, wild, W: tl.constexpr):
    """``packed[g*rows + co, slot*kept + ci]``; ``wild[1 + program]``: NaN or Inf among them?

    Every program answers in every call, so nothing has to be set to zero before.
    """
    answer = wild + 1 + program
    ci = program % W.channel_blocks * W.block_c + tl.arange(0, W.block_c)
    program = program // W.channel_blocks
    tap = program % W.tap_blocks * W.block_t + tl.arange(0, W.block_t)
    program = program // W.tap_blocks
    co = program % W.rows
    group = program // W.rows
    known = tap < W.slots
    real = known[:, None] & (ci < W.group_channels)[None, :] & (co < W.group_outputs)
    place = tap // (W.taps[1] * W.taps[2]) * W.strides[2]
    place += tap // W.taps[2] % W.taps[1] * W.strides[3] + tap % W.taps[2] * W.strides[4]
    source = (group * W.group_channels + ci).to(tl.int64) * W.strides[0]
    source = weight + co.to(tl.int64) * W.strides[1] + source[None, :] + place[:, None]
    v = tl.load(source, mask=real, other=0.0)
    wide = v if v.dtype == tl.float64 else v.to(tl.float32)  # the interpreter cannot subtract bf16
    tl.store(answer, tl.max(tl.max(tl.where(wide - wide == 0, 0, 1), 1), 0))
    if W.tf32:
        v = nearest_tf32(v)
    slot = tl.load(slot_of_tap + tap, mask=known, other=0)
    row = (group * W.rows + co).to(tl.int64) * (W.slots * W.kept)
    target = packed + row + slot[:, None] * W.kept + ci[None, :]
    tl.store(target, v, mask=known[:, None] & (ci < W.kept)[None, :])


@triton.jit(do_not_specialize=["block"])
def pack(
    x, rows, weight, packed, slot_of_tap, wild, batch, block, tensors, numbers,
    C: tl.constexpr, W: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The first programs take weights, the others input."""
    program = tl.program_id(0)
    if program < W.programs:
        copy_weights(program, weight, packed, slot_of_tap, wild, W)
    else:
        operands = Operands(tensors, numbers)
        copy_input(program - W.programs, x, rows, batch, block, operands, C, ACC)
