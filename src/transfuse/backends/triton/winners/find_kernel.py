# mypy: ignore-errors
"""Which output of a window won: the values of all are computed again, as one product of matrices.

Rows are windows, columns the outputs that these may have. What is summed over are the inputs that
reach a window, and channels; weights of taps that do not reach a column are 0.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import multiply_add
from transfuse.backends.triton.told_kernel import over, parted, plain
from transfuse.backends.triton.winners.list_kernel import below, groups, shared


@triton.jit
def column(index, P: tl.constexpr):
    """The coordinates of a column, and whether there is such a one."""
    Z: tl.constexpr = P.z
    Y: tl.constexpr = P.y
    X: tl.constexpr = P.x
    x = index % X.outputs
    y = index // X.outputs % Y.outputs
    z = index // (X.outputs * Y.outputs)
    return z, y, x, z < Z.outputs


@triton.jit
def first_input(window, A: tl.constexpr):
    """The first input that reaches a window, which may be none, before them all."""
    up = window * A.window_stride + (A.least + A.stride - 1 + A.lift * A.stride)
    return up // A.stride - A.lift


@triton.jit
def tap(column, j, A: tl.constexpr):
    """The tap by which a column meets the ``j``-th input of a window, and whether it does."""
    apart = column * A.step + (A.first - j * A.stride)
    k = apart // A.dilation
    return k, (apart >= 0) & (apart % A.dilation == 0) & (k < A.kernel)


@triton.jit
def output(column, input, window, size, A: tl.constexpr):
    """The output of a column, and whether it is one of the window's."""
    at = column * A.step + (A.first - A.padding) + input * A.stride
    own = at - (window * A.window_stride - A.window_padding)
    inside = (own >= 0) & (own <= (A.window - 1) * A.window_dilation)
    inside &= own % A.window_dilation == 0
    return at, inside & (at >= 0) & (at < size)


@triton.jit
def part(step, acc, rows, weights, seen, S, P: tl.constexpr, ACC: tl.constexpr):
    """The products of one input of each window, and a block of channels."""
    Z: tl.constexpr = P.z
    Y: tl.constexpr = P.y
    X: tl.constexpr = P.x
    DOT: tl.constexpr = P.dot
    input, live, wide = seen
    inner = plain(S.inner) * P.unit
    block = step // P.inputs
    j = step % P.inputs
    jx = j % X.inputs
    jy = j // X.inputs % Y.inputs
    jz = j // (X.inputs * Y.inputs)
    deep = plain(S.inputs[0])
    high = plain(S.inputs[1])
    long = plain(S.inputs[2])
    inside = live & below(input[0] + jz, deep) & below(input[1] + jy, high)
    inside &= below(input[2] + jx, long)
    c = block * P.channels + tl.arange(0, P.channels)
    there = c < inner
    source = rows + ((jz * high + jy) * long + jx) * wide
    a = tl.load(source + c[None, :], mask=inside[:, None] & there[None, :], other=0.0)
    z, y, w, known = column(tl.arange(0, P.columns), P)
    kz, of_z = tap(z, jz, Z)
    ky, of_y = tap(y, jy, Y)
    kx, of_x = tap(w, jx, X)
    number = (kz * Y.kernel + ky) * X.kernel + kx
    meets = known & of_z & of_y & of_x
    source = weights + (number.to(tl.int64)[:, None] * inner + c[None, :])
    b = tl.load(source, mask=meets[:, None] & there[None, :], other=0.0)
    return multiply_add(a, b.T, acc, ACC, DOT)


@triton.jit
def won(values, valid, COLUMNS: tl.constexpr):
    """The first column of the largest value; of NaNs, which are larger, the last."""
    index = tl.arange(0, COLUMNS)[None, :]
    high = tl.max(tl.where(valid & (values == values), values, float("-inf")), 1)
    first = tl.min(tl.where(valid & (values == high[:, None]), index, COLUMNS - 1), 1)
    nan = tl.max(tl.where(valid & (values != values), index, -1), 1)
    return tl.where(nan >= 0, nan, first)


@triton.jit
def found(e, live, channel, given, lists, ends, steps, S, P: tl.constexpr, ACC: tl.constexpr):
    """Note where the winners of a block of a channel's list are, in the list by place, too.

    ``given``: the input, the weights, and what is added to the products.
    """
    x, weights, added = given
    Z: tl.constexpr = P.z
    Y: tl.constexpr = P.y
    X: tl.constexpr = P.x
    windows, gradient, places, places_there, gradient_there, owners = lists
    by_channel, by_place = ends
    window = tl.load(windows + e, mask=live, other=0)
    rest, wx = parted(window, S.windows[2])
    n, lines = parted(rest, S.lines)
    wz, wy = parted(lines, S.windows[1])
    input = (first_input(wz, Z), first_input(wy, Y), first_input(wx, X))
    group = over(channel, S.group_channels)
    inner = plain(S.inner) * P.unit
    wide = inner * over(plain(S.channels[0]), S.group_channels)
    line = (n * plain(S.inputs[0]) + input[0]) * plain(S.inputs[1]) + input[1]
    row = line * plain(S.inputs[2]) + input[2]
    rows = x + (row.to(tl.int64) * wide + group * inner)[:, None]
    own = weights + channel.to(tl.int64) * (P.taps * inner)
    ROWS: tl.constexpr = P.rows
    COLUMNS: tl.constexpr = P.columns
    acc = tl.zeros([ROWS, COLUMNS], ACC)
    for step in tl.range(0, steps):
        acc = part(step, acc, rows, own, (input, live, wide), S, P, ACC)
    acc += added
    z, y, w, known = column(tl.arange(0, P.columns)[None, :], P)
    sizes = S.outputs
    _, of_z = output(z, input[0][:, None], wz[:, None], plain(sizes[0][0]), Z)
    _, of_y = output(y, input[1][:, None], wy[:, None], plain(sizes[1][0]), Y)
    _, of_x = output(w, input[2][:, None], wx[:, None], plain(sizes[2][0]), X)
    z, y, w, _ = column(won(acc, known & of_z & of_y & of_x, COLUMNS), P)
    z, _ = output(z, input[0], wz, 0, Z)
    y, _ = output(y, input[1], wy, 0, Y)
    w, _ = output(w, input[2], wx, 0, X)
    place = ((n * plain(sizes[0][0]) + z) * plain(sizes[1][0]) + y) * plain(sizes[2][0]) + w
    tl.store(places + e, place, mask=live)
    first, other = groups(n, lines, wx // P.line, channel, S)
    before = tl.load(by_channel + first - 1, mask=live & (first > 0), other=0)
    to = e - before + tl.load(by_place + other - 1, mask=live & (other > 0), other=0)
    keep = live & (to < plain(S.most))
    tl.store(places_there + to, place, mask=keep)
    tl.store(gradient_there + to, tl.load(gradient + e, mask=live, other=0.0), mask=keep)
    tl.store(owners + to, e * 0 + channel, mask=keep)


@triton.jit
def find(x, weights, bias, lists, ends, shares, S, P: tl.constexpr, ACC: tl.constexpr):
    """Program (share, channel): a share of a channel's list.

    ``lists``: the windows and gradients of all winners by channel, their places, to be found; the
    same by place: places, gradients and channels. ``ends``: of groups by channel and by place.
    """
    share, channel = parted(tl.program_id(0), S.channels)
    first, end = shared(ends[0], channel, share, shares, S, P.rows)
    added = tl.zeros([1, 1], ACC)
    if P.biased:
        added += tl.load(bias + channel).to(ACC)
    steps = P.inputs * (((plain(S.inner) * P.unit) + P.channels - 1) // P.channels)
    for at in range(first, end, P.rows):
        e = at + tl.arange(0, P.rows)
        found(e, e < end, channel, (x, weights, added), lists, ends, steps, S, P, ACC)
