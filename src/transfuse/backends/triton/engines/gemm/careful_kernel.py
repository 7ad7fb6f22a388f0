# mypy: ignore-errors
"""The same convolution for weights that are not finite, product by product.

Zeros around the input are multiplied like all else, and NaN or Inf times 0 is NaN. Here an input
that is not there is not multiplied. ``W`` is a ``PhaseWeights``, ``A`` an ``Epilogue``.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.engines.gemm.gemm_records import (
    CAREFUL_CHANNELS,
    CAREFUL_POSITIONS,
)
from transfuse.backends.triton.engines.gemm.phases_kernel import tap_of
from transfuse.backends.triton.engines.portable.convolve_kernel import not_finite
from transfuse.backends.triton.epilogue.arithmetic import nearest_tf32
from transfuse.backends.triton.epilogue.places_kernel import write
from transfuse.backends.triton.epilogue.records import Channels, Coordinates, Operands
from transfuse.backends.triton.epilogue.tile_ops import apply_ops
from transfuse.backends.triton.told_kernel import parted, plain

POSITIONS = tl.constexpr(CAREFUL_POSITIONS)
CHANNELS = tl.constexpr(CAREFUL_CHANNELS)


@triton.jit
def source(o, j, sizes, AXIS: tl.constexpr, W: tl.constexpr):
    """The input that tap ``j`` of an output's phase reads, and the phase."""
    at = o + plain(sizes.padding[AXIS])  # may be below zero: a multiple keeps it above
    lifted = at + W.phases[AXIS] * 65536
    return lifted // W.phases[AXIS] - 65536 - j, lifted % W.phases[AXIS]


@triton.jit
def sums(x, weight, at, channels, there, sizes, W: tl.constexpr, ACC: tl.constexpr):
    """[channels, positions]"""
    TAPS: tl.constexpr = W.taps[0] * W.taps[1] * W.taps[2]
    n, d, h, w = at
    inputs = plain(sizes.channels)
    acc = tl.zeros([CHANNELS, POSITIONS], ACC)
    for step in range(TAPS * inputs):
        tap = step // inputs
        ci = (step % inputs).to(tl.int64)
        i, rd = source(d, tap // (W.taps[2] * W.taps[1]), sizes, 0, W)
        j, rh = source(h, tap // W.taps[2] % W.taps[1], sizes, 1, W)
        k, rw = source(w, tap % W.taps[2], sizes, 2, W)
        phase = (rd * W.phases[1] + rh) * W.phases[2] + rw
        inside = there & (i >= 0) & (i < plain(sizes.inputs[0])) & (j >= 0)
        inside &= (j < plain(sizes.inputs[1])) & (k >= 0) & (k < plain(sizes.inputs[2]))
        place = n.to(tl.int64) * plain(sizes.source[0]) + ci * plain(sizes.source[1])
        place += i.to(tl.int64) * plain(sizes.source[2]) + j.to(tl.int64) * plain(sizes.source[3])
        place += k.to(tl.int64) * plain(sizes.source[4])
        a = tl.load(x + place, mask=inside, other=0.0)
        factor = ci * plain(sizes.strides[0]) + tap_of(tap, phase, sizes.strides, W)
        row = channels.number.to(tl.int64) * plain(sizes.strides[1])
        here = channels.live[:, None] & inside[None, :]
        b = tl.load(weight + row[:, None] + factor[None, :], mask=here, other=0.0)
        if W.tf32:
            a = nearest_tf32(a)
            b = nearest_tf32(b)
        acc += tl.where(here, a.to(ACC)[None, :] * b.to(ACC), 0.0)
    return acc


@triton.jit
def multiply_carefully(
    x, weight, out, wild, tensors, numbers, strides, sizes, to,
    W: tl.constexpr, A: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Leaves at once unless weights hold NaN or Inf; then every result once more."""
    AFTER: tl.constexpr = A.after
    if not not_finite(wild, plain(sizes.copied)):
        return
    operands = Operands(tensors, numbers, strides)
    for program in range(tl.program_id(0), plain(sizes.programs), tl.num_programs(0)):
        n, rest = parted(program, sizes.of_sample)
        of_channels, block = parted(rest, sizes.blocks)
        p = block * POSITIONS + tl.arange(0, POSITIONS)
        there = p < plain(sizes.positions)
        d, p = parted(p, sizes.plane)
        h, w = parted(p, sizes.line)
        at = Coordinates(n, d, h, w)
        channel = of_channels * CHANNELS + tl.arange(0, CHANNELS)
        channels = Channels(channel, channel < plain(sizes.outputs))
        v = sums(x, weight, at, channels, there, sizes, W, ACC)
        v = apply_ops(v, channels, there, n, operands, AFTER, 0, False, at)
        write(out, v, channels, there, at, plain(to.part), to, A, 1)
