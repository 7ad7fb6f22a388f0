# mypy: ignore-errors
"""The weights in the order of the product's rows. ``W`` is a ``PhaseWeights``."""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import nearest_tf32
from transfuse.backends.triton.packing.packed_layout import PADDED as MULTIPLE
from transfuse.backends.triton.told_kernel import parted, plain

PADDED = tl.constexpr(MULTIPLE)


@triton.jit
def tap_of(tap, phase, strides, W: tl.constexpr):
    """Where tap ``s*j + r`` of the kernel lies, for tap ``j`` of phase ``r``."""
    rw = phase % W.phases[2]
    rh = phase // W.phases[2] % W.phases[1]
    rd = phase // (W.phases[2] * W.phases[1])
    jw = tap % W.taps[2]
    jh = tap // W.taps[2] % W.taps[1]
    jd = tap // (W.taps[2] * W.taps[1])
    place = (jd * W.phases[0] + rd).to(tl.int64) * plain(strides[2])
    place += (jh * W.phases[1] + rh).to(tl.int64) * plain(strides[3])
    return place + (jw * W.phases[2] + rw).to(tl.int64) * plain(strides[4])


@triton.jit
def pack_phases(weight, packed, wild, sizes, strides, W: tl.constexpr):
    """``packed[tap, row, ci]``; ``wild[1 + program]``: NaN or Inf among them?

    Every program answers in every call, so nothing has to be set to zero before.
    """
    TAPS: tl.constexpr = W.taps[0] * W.taps[1] * W.taps[2]
    PHASES: tl.constexpr = W.phases[0] * W.phases[1] * W.phases[2]
    program = tl.program_id(0)
    tap = program % TAPS
    of_rows, of_depth = parted(program // TAPS, sizes.depths)
    row = of_rows * W.block + tl.arange(0, W.block)
    ci = of_depth * W.depth + tl.arange(0, W.depth)
    if W.channels_inner:
        phase, co = parted(row, sizes.padded)
    else:
        co = row // PHASES
        phase = row % PHASES
    real = (co < plain(sizes.outputs))[:, None] & (ci < plain(sizes.channels))[None, :]
    place = co.to(tl.int64) * plain(strides[1]) + tap_of(tap, phase, strides, W)
    source = weight + place[:, None] + (ci.to(tl.int64) * plain(strides[0]))[None, :]
    v = tl.load(source, mask=real, other=0.0)
    wide = v.to(tl.float32)  # the interpreter cannot subtract bf16
    tl.store(wild + 1 + program, tl.max(tl.max(tl.where(wide - wide == 0, 0, 1), 1), 0))
    if W.tf32:
        v = nearest_tf32(v)
    kept = plain(sizes.kept) * PADDED
    rows = plain(sizes.rows)
    to = packed + ((tap.to(tl.int64) * rows + row) * kept)[:, None] + ci[None, :]
    keep = (row < rows)[:, None] & (ci < kept)[None, :]
    tl.store(to, v, mask=keep)
