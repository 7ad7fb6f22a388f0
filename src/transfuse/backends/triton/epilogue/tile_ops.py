# mypy: ignore-errors
"""The stages after (and before) a convolution, on a tile of channels times positions.

``S`` is a ``OpTable``: ``ops`` names them in order, ``at[i]`` is where op ``i`` finds its
first number or tensor, ``number[i]`` where its first number is (one with tensors may have some,
too), ``factor[i]`` where its factor is (-1: none); for a statistic, ``size[i]`` channels share one
and ``count[i]`` make a sample. One function serves every kernel: a new stage is
a new branch here and a line in ``lower.py``.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import (
    LOG2E,
    bounded_exp,
    inverse_root,
    larger,
    power_of_two,
    reciprocal,
    sigmoid,
    smaller,
    tanh,
)
from transfuse.backends.triton.epilogue.expressions import mapped
from transfuse.backends.triton.epilogue.operands import number, operand, spread, times


@triton.jit
def statistic(
    tensors, at, n, channel, live, like, SIZE: tl.constexpr, COUNT: tl.constexpr, AXIS: tl.constexpr
):
    """One half of a sample's statistic, to meet a tile."""
    if like.shape[AXIS] == 1:
        return tl.load(tensors[at] + n * COUNT).to(like.dtype)
    else:
        return operand(tensors, at, n * COUNT + channel // SIZE, live, like, AXIS)


@triton.jit
def apply_ops(
    v,
    channels,
    valid,
    n,
    operands,
    S: tl.constexpr,
    AXIS: tl.constexpr,
    WHOLE: tl.constexpr = False,  # the tile has no channels but real ones
    at=None,  # coordinates of positions, where a map's tensor may differ along them
):
    """``v`` after all ops of ``S``; ``valid`` tells real positions from padding.

    Statistics of a sample are read for sample ``n``, the same for the whole tile.
    """
    channel, live = channels
    tensors, numbers, _ = operands
    for i in tl.static_range(len(S.ops)):
        if S.ops[i] == "add":
            term = operand(tensors, S.at[i], channel, live, v, AXIS)
            v = v + times(term, numbers, S.factor[i])
        elif S.ops[i] == "add_number":
            v = v + number(numbers, S.at[i], v)
        elif S.ops[i] == "poison":
            # A rewrite dropped this bias, since it cancels. Only its NaN and Inf are to show.
            v = v + 0.0 * operand(tensors, S.at[i], channel, live, v, AXIS)
        elif S.ops[i] == "scale":
            v = v * operand(tensors, S.at[i], channel, live, v, AXIS)
        elif S.ops[i] == "scale_number":
            v = v * number(numbers, S.at[i], v)
        elif S.ops[i] == "clamp":
            v = smaller(larger(v, number(numbers, S.at[i], v)), number(numbers, S.at[i] + 3, v))
        elif S.ops[i] == "sigmoid":
            v = sigmoid(v)
        elif S.ops[i] == "tanh":
            v = tanh(v)
        elif S.ops[i] == "map":
            v = mapped(v, channels, valid, at, operands, S, i, AXIS)
        elif S.ops[i] == "softmax":
            if v.shape[AXIS] > 1 and not WHOLE:
                v = tl.where(spread(live, AXIS), v, float("-inf"))
            # A rounding of top * log2(e) is the same for all channels: it cancels.
            top = tl.max(v, AXIS) * LOG2E
            v = power_of_two(v * LOG2E - tl.expand_dims(top, AXIS))
            share = times(reciprocal(tl.sum(v, AXIS)), numbers, S.factor[i])
            v = v * tl.expand_dims(share, AXIS)
        elif S.ops[i] == "sum":
            if v.shape[AXIS] > 1:
                if not WHOLE:
                    v = tl.where(spread(live, AXIS), v, 0.0)
                v = tl.expand_dims(tl.sum(v, AXIS), AXIS)
        elif S.ops[i] == "batch_apply":  # tensors: mean, 1/std
            v = v - operand(tensors, S.at[i], channel, live, v, AXIS)
            v = v * operand(tensors, S.at[i] + 1, channel, live, v, AXIS)
        elif S.ops[i] == "running_apply":  # tensors: mean, variance
            v = v - operand(tensors, S.at[i], channel, live, v, AXIS)
            var = operand(tensors, S.at[i] + 1, channel, live, v, AXIS)
            v = v * inverse_root(var + number(numbers, S.number[i], v))
        elif S.ops[i] == "group_apply":  # tensors: mean, 1/std of (sample, group)
            v = v - statistic(tensors, S.at[i], n, channel, live, v, S.size[i], S.count[i], AXIS)
            v = v * statistic(
                tensors, S.at[i] + 1, n, channel, live, v, S.size[i], S.count[i], AXIS
            )
        elif S.ops[i] == "space_apply":  # tensors: maximum, 1/sum of (sample, channel)
            v = tl.exp(v - statistic(tensors, S.at[i], n, channel, live, v, 1, S.count[i], AXIS))
            v = v * statistic(tensors, S.at[i] + 1, n, channel, live, v, 1, S.count[i], AXIS)
        elif S.ops[i] == "bounded_apply":
            total = statistic(tensors, S.at[i] + 1, n, channel, live, v, 1, S.count[i], AXIS)
            v = bounded_exp(v) * total
    return v
