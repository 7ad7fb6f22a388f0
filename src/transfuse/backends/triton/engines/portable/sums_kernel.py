# mypy: ignore-errors
"""The sums of one tile, class and member of a window: on tensor cores, or product by product.

``T`` is a ``Tile``, ``M`` a ``Multiply``, ``S`` are ``TileSizes``, as in ``convolve_kernel.py``.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.engines.portable.anchors import anchors, load_rows, row_of
from transfuse.backends.triton.engines.portable.tile_records import Taps
from transfuse.backends.triton.epilogue.arithmetic import multiply_add
from transfuse.backends.triton.told_kernel import over, plain


@triton.jit
def entry(table, index, AXIS: tl.constexpr, T: tl.constexpr):
    """first, count, slot of a (class, member) along an axis."""
    at = table + 3 * index
    if AXIS > 0:
        at += 3 * T.classes[0] * T.members[0]
    if AXIS > 1:
        at += 3 * T.classes[1] * T.members[1]
    return tl.load(at), tl.load(at + 1), tl.load(at + 2)


@triton.jit
def taps_of(table, cell, member, T: tl.constexpr):
    """Those of the three axes."""
    rd = member // (T.members[1] * T.members[2])
    rh = member // T.members[2] % T.members[1]
    fd, nd, sd = entry(table, cell.cd * T.members[0] + rd, 0, T)
    fh, nh, sh = entry(table, cell.ch * T.members[1] + rh, 1, T)
    fw, nw, sw = entry(table, cell.cw * T.members[2] + member % T.members[2], 2, T)
    return Taps(fd, nd, sd, fh, nh, sh, fw, nw, sw)


@triton.jit
def within(first, count, slot, at, inputs, STEP: tl.constexpr):
    """The taps of an axis that find an input at all, for one anchor at input ``at``."""
    begin = (first + at - inputs + STEP) // STEP
    begin = tl.where(first + at < inputs, 0, begin)
    end = tl.minimum(count, (first + at + STEP) // STEP)
    end = tl.where(first + at < 0, 0, end)
    return first - begin * STEP, tl.maximum(end - begin, 0), slot + begin


@triton.jit
def advanced(k, tw, th, td, kept, nw, nh):
    """Counters of channel and taps, those that are full carried over; the last is never full."""
    tw += tl.where(k == kept, 1, 0)
    k = tl.where(k == kept, 0, k)
    th += tl.where(tw == nw, 1, 0)
    tw = tl.where(tw == nw, 0, tw)
    td += tl.where(th == nh, 1, 0)
    th = tl.where(th == nh, 0, th)
    return k, tw, th, td


@triton.jit
def among(at, size):
    """Whether ``at`` is one of ``size``: below zero, as unsigned, it is beyond."""
    return at.to(tl.uint32) < plain(size).to(tl.uint32)


@triton.jit
def accumulate(factors, cell, member, block, S, T: tl.constexpr, M: tl.constexpr):
    """Outputs of one class and one member of the window, [channels, anchors]: on tensor cores."""
    CHANNELS: tl.constexpr = T.channels
    POSITIONS: tl.constexpr = T.positions
    ACC: tl.constexpr = M.acc
    DOT: tl.constexpr = M.dot
    n, d, h, u = anchors(cell.tile, 0, S, T)
    fd, nd, sd, fh, nh, sh, fw, nw, sw = taps_of(factors.table, cell, member, T)
    if T.lone:
        fd, nd, sd = within(fd, nd, sd, d * T.residues[0], plain(S.inputs[0]), T.step[0])
        fh, nh, sh = within(fh, nh, sh, h * T.residues[1], plain(S.inputs[1]), T.step[1])
        fw, nw, sw = within(fw, nw, sw, u * T.residues[2], plain(S.inputs[2]), T.step[2])
    kept = plain(S.kept)
    first = block.group * kept
    acc = tl.zeros([CHANNELS, POSITIONS], ACC)
    # Counters instead of divisions: these would take as long as the products.
    td = 0
    th = 0
    tw = 0
    k = 0
    for _ in range(nd * nh * nw * (kept // T.depth)):
        offset = (fd - td * T.step[0], fh - th * T.step[1], fw - tw * T.step[2])
        rows = load_rows(factors.x, (n, d, h, u), offset, first + k, S, T)
        slot = ((sd + td) * T.taps[1] + sh + th) * T.taps[2] + sw + tw
        acc = multiply_add(factors.w.load([block.row, slot * kept + k]), rows.T, acc, ACC, DOT)
        k, tw, th, td = advanced(k + T.depth, tw, th, td, kept, nw, nh)
    return acc


@triton.jit
def accumulate_singly(factors, cell, member, block, S, T: tl.constexpr, M: tl.constexpr):
    """The same, product by product: where a group has one channel, and where weights hold NaN.

    What a tap finds outside the input is not multiplied, so no NaN or Inf of a weight shows there.
    """
    CHANNELS: tl.constexpr = T.channels
    POSITIONS: tl.constexpr = T.positions
    ACC: tl.constexpr = M.acc
    BESIDE: tl.constexpr = T.beside
    p = tl.arange(0, POSITIONS)
    channel, live = block.channels
    n, d, h, u = anchors(cell.tile, p, S, T)
    fd, nd, sd, fh, nh, sh, fw, nw, sw = taps_of(factors.table, cell, member, T)
    row = (block.row + tl.arange(0, CHANNELS)).to(tl.int64)
    kept = plain(S.kept)
    if T.beside > 1:
        own = channel
    elif T.depthwise:  # neighbours among channels mostly read neighbours
        own = tl.max_contiguous(over(channel, S.group_outputs) + block.group, 2)
    weights = factors.weights + row * (T.slots * kept)
    acc = tl.zeros([CHANNELS, POSITIONS], ACC)
    summed = plain(S.group_channels[0])
    td = 0
    th = 0
    tw = 0
    ci = 0
    for _ in range(nd * nh * nw * summed):
        i = d * T.residues[0] + fd - td * T.step[0]
        j = h * T.residues[1] + fh - th * T.step[1]
        k = u * T.residues[2] + fw - tw * T.step[2]
        there = (n < plain(S.batch)) & among(i, S.inputs[0])
        there &= among(j, S.inputs[1]) & among(k, S.inputs[2])
        there = live[:, None] & there[None, :]
        if T.beside > 1:
            there = tl.max_constancy(there, [BESIDE, 1])
        residue = i % T.apart[0] * T.apart[1] + j % T.apart[1]
        residue = residue * T.apart[2] + k % T.apart[2]
        at = row_of(n, i // T.apart[0], j // T.apart[1], k // T.apart[2], residue, S, T)
        at = at.to(tl.int64)[None, :] * (plain(S.width) * T.beside)
        if T.depthwise:
            at += own[:, None]
        else:
            at += block.group * kept + ci
        slot = ((sd + td) * T.taps[1] + sh + th) * T.taps[2] + sw + tw
        factor = tl.load(weights + (slot * kept + ci), mask=live, other=0.0).to(ACC)
        part = tl.load(factors.rows + at, mask=there, other=0.0).to(ACC) * factor[:, None]
        acc = tl.where(there, acc + part, acc)  # so that a product is added as it is made
        ci, tw, th, td = advanced(ci + 1, tw, th, td, summed, nw, nh)
    return acc


@triton.jit
def outputs(factors, cell, member, block, S, T: tl.constexpr, M: tl.constexpr):
    """The convolution's outputs of one class and one member of the window: [channels, anchors]."""
    if M.singly:
        acc = accumulate_singly(factors, cell, member, block, S, T, M)
    else:
        acc = accumulate(factors, cell, member, block, S, T, M)
    return acc
