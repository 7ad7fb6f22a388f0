# mypy: ignore-errors
"""The gradient by the input: of some inputs of a line, what the winners that they reach sum up to.

Rows of a matrix are these inputs. A winner has its gradient in the row of the input that meets it
by its ``m``-th tap, and 0 in all others.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import multiply_add, narrow
from transfuse.backends.triton.told_kernel import parted, plain
from transfuse.backends.triton.winners.list_kernel import below, start, too_many
from transfuse.backends.triton.winners.weight_kernel import nearest, padded


@triton.jit
def reached(first, last, size, A: tl.constexpr):
    """The windows that inputs from ``first`` to ``last`` may reach: the first, and how many."""
    off = first * A.stride + (A.window_padding - A.padding - (A.window - 1) * A.window_dilation)
    low = (tl.maximum(off, 0) + A.window_stride - 1) // A.window_stride
    off = last * A.stride + (A.window_padding - A.padding + A.reach)
    high = tl.maximum(off + A.window_stride, 0) // A.window_stride - 1
    return low, tl.maximum(tl.minimum(high, size - 1) - low + 1, 0)


@triton.jit
def met(at, i, A: tl.constexpr):
    """The tap by which an output meets an input, and whether it does."""
    apart = at - i * A.stride
    k = apart // A.dilation
    return k, (apart >= 0) & (apart % A.dilation == 0) & (k < A.kernel)


@triton.jit
def summed(acc, index, live, weights, lists, own, channels, S, P: tl.constexpr, ACC: tl.constexpr):
    """One block of winners more."""
    c, there = channels
    Z: tl.constexpr = P.z
    Y: tl.constexpr = P.y
    X: tl.constexpr = P.x
    DOT: tl.constexpr = P.dot
    places, gradient, owners = lists
    iz, iy, first, size = own
    _, z, y, w = padded(tl.load(places + index, mask=live, other=0), S, P)
    g = tl.load(gradient + index, mask=live, other=0.0)
    channel = tl.load(owners + index, mask=live, other=0)
    kz, has_z = met(z, iz, Z)
    ky, has_y = met(y, iy, Y)
    kx, w = nearest(w, X)
    tap = ((channel * Z.kernel + kz) * Y.kernel + ky) * X.kernel + kx
    inner = plain(S.inner) * P.unit
    to = weights + tap.to(tl.int64)[:, None] * inner + c[None, :]
    # Where an output meets this line, or far below it.
    w = tl.where(live & has_z & has_y & (w >= 0), w - first, -1)
    TAPS: tl.constexpr = X.taps
    for m in tl.static_range(TAPS):
        at = w - m * X.hop
        if (m + 1) * X.every > X.kernel:
            at = tl.where(kx + m * X.every < X.kernel, at, -1)
        b = tl.load(
            to + m * X.every * inner, mask=below(at, size)[:, None] & there[None, :], other=0.0
        )
        a = tl.where(at[None, :] == tl.arange(0, P.line)[:, None], g[None, :], 0.0)
        acc = multiply_add(narrow(a, b.dtype), b, acc, ACC, DOT)
    return acc


@triton.jit
def over_range(
    acc, begin, end, weights, lists, own, channels, S, P: tl.constexpr, ACC: tl.constexpr
):
    """All blocks of a range more."""
    for at in range(begin, end, P.rows):
        index = at + tl.arange(0, P.rows)
        acc = summed(acc, index, index < end, weights, lists, own, channels, S, P, ACC)
    return acc


@triton.jit
def by_input(weights, ends, lists, out, strides, tiles, S, P: tl.constexpr, ACC: tl.constexpr):
    """Program (sample, z, y, tile of a line, block of channels).

    ``tiles``: blocks of a group's channels, of all channels, tiles of a line, z and y.
    """
    Z: tl.constexpr = P.z
    Y: tl.constexpr = P.y
    X: tl.constexpr = P.x
    rest, block = parted(tl.program_id(0), tiles[1])
    rest, tile = parted(rest, tiles[2])
    rest, iy = parted(rest, tiles[4])
    n, iz = parted(rest, tiles[3])
    group, block = parted(block, tiles[0])
    c = block * P.channels + tl.arange(0, P.channels)
    inner = plain(S.inner) * P.unit
    there = c < inner
    first = tile * P.line
    windows_y = plain(S.windows[1][0])
    low_z, many_z = reached(iz, iz, plain(S.windows[0][0]), Z)
    low_y, many_y = reached(iy, iy, windows_y, Y)
    last = tl.minimum(first + P.line, plain(S.inputs[2])) - 1
    low_x, many_x = reached(first, last, plain(S.windows[2][0]), X)
    blocks = plain(S.blocks[0])
    low_b = low_x // P.line
    many_b = tl.where(many_x > 0, (low_x + many_x - 1) // P.line - low_b + 1, 0)
    # Groups by place that follow each other are walked as one.
    once_y = many_y
    once_b = many_b
    if P.grouped:
        once_b = tl.minimum(many_b, 1)
    if P.grouped or blocks > 1:
        once_y = tl.minimum(many_y, 1)
    channels = plain(S.channels[0])
    own_channels = plain(S.group_channels[0])
    turns_y = many_y - once_y + 1
    turns_b = many_b - once_b + 1
    turns = tl.where(tl.minimum(many_y, many_b) > 0, many_z * turns_y * turns_b, 0)
    LINE: tl.constexpr = P.line
    CHANNELS: tl.constexpr = P.channels
    own = (iz, iy, first, last + 1 - first)
    acc = tl.zeros([LINE, CHANNELS], ACC)
    for turn in range(turns):
        b = low_b + turn % turns_b
        y = low_y + turn // turns_b % turns_y
        z = low_z + turn // (turns_b * turns_y)
        line = (n * plain(S.windows[0][0]) + z) * windows_y + y
        from_ = (line * blocks + b) * channels + group * own_channels
        to = ((line + once_y - 1) * blocks + b + once_b - 1) * channels
        begin = start(ends, from_)
        end = tl.minimum(start(ends, to + (group + 1) * own_channels), plain(S.most))
        acc = over_range(acc, begin, end, weights, lists, own, (c, there), S, P, ACC)
    acc = tl.where(too_many(ends, S), float("nan"), acc)
    x = first + tl.arange(0, P.line)
    to = out + n.to(tl.int64) * plain(strides[0]) + iz.to(tl.int64) * plain(strides[2])
    to += iy.to(tl.int64) * plain(strides[3])
    channel = group * inner + c
    if P.last:
        to = to + (x[:, None].to(tl.int64) * plain(strides[4]) + channel[None, :])
    else:
        to = to + (channel[None, :].to(tl.int64) * plain(strides[1]) + x[:, None])
    keep = (x < plain(S.inputs[2]))[:, None] & there[None, :]
    tl.store(to, narrow(acc, out.dtype.element_ty), mask=keep)
