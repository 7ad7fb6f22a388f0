# mypy: ignore-errors
"""Which outputs and results the positions of a tile are, and which of them there are.

``T`` is a ``Tile``, ``S`` are ``TileSizes``, as in ``convolve_kernel.py``.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.engines.portable.anchors import anchors
from transfuse.backends.triton.epilogue.records import Channels, Coordinates
from transfuse.backends.triton.told_kernel import plain


@triton.jit
def output_of(d, h, u, cell, member, T: tl.constexpr):
    """The convolution's output that an anchor meets with a member of its window."""
    od = (d * T.classes[0] + cell.cd) * T.window_stride[0] - T.window_padding[0]
    oh = (h * T.classes[1] + cell.ch) * T.window_stride[1] - T.window_padding[1]
    ow = (u * T.classes[2] + cell.cw) * T.window_stride[2] - T.window_padding[2]
    od += member // (T.members[1] * T.members[2])
    oh += member // T.members[2] % T.members[1]
    ow += member % T.members[2]
    return od, oh, ow


@triton.jit
def member_places(p, cell, member, S, T: tl.constexpr):
    """Which anchors meet an output of the convolution with a member of their window."""
    n, d, h, u = anchors(cell.tile, p, S, T)
    od, oh, ow = output_of(d, h, u, cell, member, T)
    # Where there is no anchor there is no output, either.
    there = is_within(od, S.outputs[0], T.window_padding[0])
    there &= is_within(oh, S.outputs[1], T.window_padding[1])
    return there & is_within(ow, S.outputs[2], T.window_padding[2]) & (n < plain(S.batch))


@triton.jit
def last_of(cell, S, T: tl.constexpr):
    """The last sample and anchor of a box, where the first are those of position 0."""
    n, d, h, u = anchors(cell.tile, 0, S, T)
    if T.form == "box":
        return n, d + T.box[1] - 1, h + T.box[2] - 1, u + T.box[3] - 1
    else:
        return n + T.box[3] - 1, d + T.box[0] - 1, h + T.box[1] - 1, u + T.box[2] - 1


@triton.jit
def full_of_members(cell, member, S, T: tl.constexpr):
    """Whether all anchors of a box meet an output with a member of their window."""
    n, d, h, u = last_of(cell, S, T)
    od, oh, ow = output_of(d, h, u, cell, member, T)
    # A statistic before a window takes no padding, so that none lies before the first.
    full = (od < plain(S.outputs[0])) & (oh < plain(S.outputs[1]))
    return full & (ow < plain(S.outputs[2])) & (n < plain(S.batch))


@triton.jit
def full_of_results(cell, JOINED: tl.constexpr, S, T: tl.constexpr):
    """Whether all results of a box are there."""
    n, d, h, u = last_of(cell, S, T)
    full = (d * T.classes[0] + cell.cd < plain(S.results[0])) & (n < plain(S.batch))
    full &= h * T.classes[1] + cell.ch < plain(S.results[1])
    return full & (u * T.classes[2] + cell.cw + JOINED - 1 < plain(S.results[2]))


@triton.jit
def is_within(at, size, PADDING: tl.constexpr):
    """Whether an output is one of ``size``; without padding none lies before the first."""
    found = at < plain(size)
    if PADDING > 0:
        found &= at >= 0
    return found


@triton.jit
def result_places(p, cell, S, T: tl.constexpr, JOINED: tl.constexpr):
    """Where each result of a tile belongs, and which of them there are.

    Positions are anchors, or the results of ``JOINED`` width classes of each side by side.
    """
    n, d, h, u = anchors(cell.tile, p // JOINED, S, T)
    yd = d * T.classes[0] + cell.cd
    yh = h * T.classes[1] + cell.ch
    yw = u * T.classes[2] + cell.cw
    if JOINED > 1:  # these are all width classes
        yw += p % JOINED
    there = (yd < plain(S.results[0])) & (yh < plain(S.results[1]))
    there = there & (yw < plain(S.results[2])) & (n < plain(S.batch))
    return Coordinates(n, yd, yh, yw), there


@triton.jit
def channels_of(group, of_group, S, T: tl.constexpr):
    """The channels of a block of a group."""
    inner = of_group * T.channels + tl.arange(0, T.channels)
    channel = inner
    if not T.depthwise:  # there, all groups are one
        channel = group * plain(S.tiled) + inner
    return Channels(channel, inner < plain(S.tiled))
