"""What a convolution reads: the input as channels-last rows, the weights by slot.

Both are rounded here (tf32) and padded with zeros, so that tiles need no masks. Stages before the
convolution run on the way.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.kernels.numbers import larger, narrow, nearest_tf32
from transfuse.backends.triton.kernels.steps import steps


@triton.jit
def prepare_input(
    x,
    rows,
    n_stride,
    c_stride,
    d_stride,
    h_stride,
    w_stride,
    batch,
    tensors,
    numbers,
    factor,
    SOURCE: tl.constexpr,  # sizes of x
    INPUTS: tl.constexpr,  # sizes after the prologue
    POOL: tl.constexpr,  # "", "max" or "sum"
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    RESIDUES: tl.constexpr,
    EXTENT: tl.constexpr,  # rows along each axis
    FROM: tl.constexpr,  # the depth of row 0
    BATCH_LAST: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP_CHANNELS: tl.constexpr,
    KEPT: tl.constexpr,  # channels of a group in the copy, padded
    BEFORE: tl.constexpr,  # steps before the pool: OPS, AT
    BEFORE_AT: tl.constexpr,
    AFTER: tl.constexpr,
    AFTER_AT: tl.constexpr,
    TF32: tl.constexpr,
    WIDE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    PLANE: tl.constexpr = EXTENT[1] * EXTENT[2]
    PLANES: tl.constexpr = (PLANE + BLOCK_P - 1) // BLOCK_P
    CHANNELS: tl.constexpr = GROUPS * KEPT
    BLOCKS: tl.constexpr = (CHANNELS + BLOCK_C - 1) // BLOCK_C
    program = tl.program_id(0)
    slot = program % BLOCKS * BLOCK_C + tl.arange(0, BLOCK_C)
    program = program // BLOCKS
    at = program % PLANES * BLOCK_P + tl.arange(0, BLOCK_P)
    program = program // PLANES
    # Outer order of the rows: residue, sample, depth; or residue, depth, …, sample.
    depth = program % EXTENT[0]
    program = program // EXTENT[0]
    n = program % batch
    residue = program // batch
    row_h = at // EXTENT[2]
    row_w = at % EXTENT[2]
    d = (depth + FROM) * RESIDUES[0] + residue // (RESIDUES[1] * RESIDUES[2])
    h = row_h * RESIDUES[1] + residue // RESIDUES[2] % RESIDUES[1]
    w = row_w * RESIDUES[2] + residue % RESIDUES[2]
    if WIDE:
        d = d.to(tl.int64)
        h = h.to(tl.int64)
        w = w.to(tl.int64)
    inside = (d >= 0) & (d < INPUTS[0]) & (h < INPUTS[1]) & (w < INPUTS[2]) & (at < PLANE)
    channel = slot // KEPT * GROUP_CHANNELS + slot % KEPT
    live = (slot < CHANNELS) & (slot % KEPT < GROUP_CHANNELS)
    here = live[:, None] & inside[None, :]
    base = x + n.to(tl.int64) * n_stride + (channel.to(tl.int64) * c_stride)[:, None]
    if POOL == "":
        place = d * d_stride + h * h_stride + w * w_stride
        v = tl.load(base + place[None, :], mask=here, other=0.0).to(ACC)
        v = steps(
            v, channel, live, inside, n, tensors, numbers, 1, BEFORE, BEFORE_AT, (), (), 0
        )
    else:
        v = tl.full([BLOCK_C, BLOCK_P], float("-inf") if POOL == "max" else 0.0, ACC)
        for member in range(KERNEL[0] * KERNEL[1] * KERNEL[2]):
            z = d * STRIDE[0] - PADDING[0] + member // (KERNEL[1] * KERNEL[2])
            y = h * STRIDE[1] - PADDING[1] + member // KERNEL[2] % KERNEL[1]
            u = w * STRIDE[2] - PADDING[2] + member % KERNEL[2]
            there = (z >= 0) & (z < SOURCE[0]) & (y >= 0) & (y < SOURCE[1])
            there = here & (there & (u >= 0) & (u < SOURCE[2]))[None, :]
            place = z * d_stride + y * h_stride + u * w_stride
            part = tl.load(base + place[None, :], mask=there, other=0.0).to(ACC)
            part = steps(
                part, channel, live, inside, n, tensors, numbers, 1, BEFORE, BEFORE_AT, (), (), 0
            )
            if POOL == "max":
                v = larger(v, tl.where(there, part, float("-inf")))
            else:
                v += tl.where(there, part, 0.0)
    v = v * factor
    v = steps(v, channel, live, inside, n, tensors, numbers, 1, AFTER, AFTER_AT, (), (), 0)
    v = tl.where(here, v, 0.0)
    if TF32:
        v = nearest_tf32(v)
    if BATCH_LAST:
        row = ((residue * EXTENT[0] + depth) * PLANE + at).to(tl.int64) * batch + n
    else:
        row = ((residue * batch + n).to(tl.int64) * EXTENT[0] + depth) * PLANE + at
    target = rows + row[None, :] * CHANNELS + slot[:, None]
    keep = (slot < CHANNELS)[:, None] & (at < PLANE)[None, :]
    tl.store(target, narrow(v, rows.dtype.element_ty), mask=keep)


@triton.jit
def prepare_weights(
    weight,
    packed,
    slot_of_tap,
    flag,
    epoch,
    ci_stride,
    co_stride,
    d_stride,
    h_stride,
    w_stride,
    TAPS: tl.constexpr,  # kernel sizes
    GROUPS: tl.constexpr,
    GROUP_CHANNELS: tl.constexpr,
    GROUP_OUTPUTS: tl.constexpr,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,  # output channels of a group in the copy, padded
    TF32: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """``packed[g*ROWS + co, slot*KEPT + ci]``; NaN or Inf among them raises ``flag`` to ``epoch``.

    A later call has a larger epoch, so nothing has to lower the flag again.
    """
    SLOTS: tl.constexpr = TAPS[0] * TAPS[1] * TAPS[2]
    BLOCKS: tl.constexpr = (KEPT + BLOCK_C - 1) // BLOCK_C
    program = tl.program_id(0)
    ci = program % BLOCKS * BLOCK_C + tl.arange(0, BLOCK_C)
    program = program // BLOCKS
    co = program % ROWS
    group = program // ROWS
    tap = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    real = (tap < SLOTS)[:, None] & (ci < GROUP_CHANNELS)[None, :] & (co < GROUP_OUTPUTS)
    place = tap // (TAPS[1] * TAPS[2]) * d_stride
    place += tap // TAPS[2] % TAPS[1] * h_stride + tap % TAPS[2] * w_stride
    source = (group * GROUP_CHANNELS + ci).to(tl.int64) * ci_stride
    source = weight + co.to(tl.int64) * co_stride + source[None, :] + place[:, None]
    v = tl.load(source, mask=real, other=0.0)
    wild = tl.where(v - v == 0, 0, 1)
    if tl.max(tl.max(wild, 1), 0) > 0:
        tl.atomic_max(flag, epoch)
    if TF32:
        v = nearest_tf32(v)
    slot = tl.load(slot_of_tap + tap, mask=tap < SLOTS, other=0)
    target = (group * ROWS + co).to(tl.int64) * (SLOTS * KEPT) + slot[:, None] * KEPT + ci[None, :]
    tl.store(packed + target, v, mask=(tap < SLOTS)[:, None] & (ci < KEPT)[None, :])
