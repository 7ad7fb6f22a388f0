# mypy: ignore-errors
"""Which windows have a gradient: how many of each group, then a list of them all.

A group is a block of a line of windows, of one sample and channel. By channel its number is that of
(channel, sample, line, block), by place that of (sample, line, block, channel). ``S`` are
``Sizes``, ``L`` a ``Listing``.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import nearest_tf32
from transfuse.backends.triton.told_kernel import over, parted, plain


@triton.jit
def below(at, size):
    """``0 <= at < size``, by one comparison."""
    return at.to(tl.uint32) < tl.cast(size, tl.uint32)


@triton.jit
def start(ends, group):
    """How many winners come before a group, by the ends of all groups."""
    return tl.load(ends + group - 1, mask=group > 0, other=0)


@triton.jit
def too_many(ends, S):
    """Whether more have a gradient than can: a 0 met an Inf, and it is NaN everywhere."""
    groups = plain(S.batch[0]) * plain(S.lines[0]) * plain(S.blocks[0]) * plain(S.channels[0])
    return start(ends, groups) > plain(S.most)


@triton.jit
def shared(ends, channel, share, shares, S, ROWS: tl.constexpr):
    """A share of a channel's list, by whole blocks of it: its first winner, and its end."""
    each = plain(S.batch[0]) * plain(S.lines[0]) * plain(S.blocks[0])
    most = plain(S.most)
    begin = tl.minimum(start(ends, channel * each), most)
    end = tl.minimum(start(ends, channel * each + each), most)
    blocks = (end - begin + ROWS - 1) // ROWS
    run = over(blocks + plain(shares[0]) - 1, shares) * ROWS
    first = begin + share * run
    return first, tl.minimum(first + run, end)


@triton.jit
def groups(n, line, block, channel, S):
    """The number of a group by channel, and by place."""
    lines = plain(S.lines[0])
    blocks = plain(S.blocks[0])
    place = (n * lines + line) * blocks + block
    by_channel = channel * (plain(S.batch[0]) * lines * blocks) + place
    return by_channel, place * plain(S.channels[0]) + channel


@triton.jit
def gradients(g, strides, channel_blocks, S, L: tl.constexpr, ACC: tl.constexpr):
    """The gradients by a line's block of windows, of some channels; these windows and channels."""
    rest, of_channels = parted(tl.program_id(0), channel_blocks)
    rest, block = parted(rest, S.blocks)
    n, line = parted(rest, S.lines)
    z, y = parted(line, S.windows[1])
    channel = of_channels * L.channels + tl.arange(0, L.channels)
    at = block * L.line + tl.arange(0, L.line)
    source = g + n.to(tl.int64) * plain(strides[0])
    source += z.to(tl.int64) * plain(strides[2]) + y.to(tl.int64) * plain(strides[3])
    if L.inner == 1:
        to = channel[:, None] + at[None, :].to(tl.int64) * plain(strides[4])
    elif L.inner == 4:
        to = channel[:, None].to(tl.int64) * plain(strides[1]) + at[None, :]
    else:
        to = channel[:, None].to(tl.int64) * plain(strides[1])
        to += at[None, :].to(tl.int64) * plain(strides[4])
    there = channel < plain(S.channels[0])
    live = there[:, None] & (at < plain(S.windows[2][0]))[None, :]
    found = tl.load(source + to, mask=live, other=0.0).to(ACC)
    window = (n * plain(S.lines[0]) + line) * plain(S.windows[2][0]) + at
    return found, window, channel, there, groups(n, line, block, channel, S)


@triton.jit
def count(g, by_channel, by_place, strides, channel_blocks, S, L: tl.constexpr, ACC: tl.constexpr):
    """How many winners each group has: a NaN is one, too."""
    found, _, _, there, numbers = gradients(g, strides, channel_blocks, S, L, ACC)
    many = tl.sum((found != 0).to(tl.int32), 1)
    tl.store(by_channel + numbers[0], many, mask=there)
    tl.store(by_place + numbers[1], many, mask=there)


@triton.jit
def enlist(
    g, ends, windows, gradient, strides, channel_blocks, S, L: tl.constexpr, ACC: tl.constexpr
):
    """The windows of all winners, by channel, and their gradients."""
    found, window, _, there, numbers = gradients(g, strides, channel_blocks, S, L, ACC)
    wins = found != 0
    before = tl.load(ends + numbers[0] - 1, mask=there & (numbers[0] > 0), other=0)
    at = before[:, None] + tl.cumsum(wins.to(tl.int32), 1) - 1
    keep = wins & (at < plain(S.most))
    tl.store(windows + at, tl.broadcast_to(window[None, :], at.shape), mask=keep)
    if L.tf32:
        found = nearest_tf32(found)
    tl.store(gradient + at, found, mask=keep)
