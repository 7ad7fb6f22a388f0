# mypy: ignore-errors
"""Pointwise expressions on a tile: one function that calls itself over an expression.

The expression is a ``segments.Node``, a constant of the kernel: nothing of it is left when it runs.
A part that occurs twice is computed once: the compiler sees that it is the same.
"""

import re
from inspect import getsource

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import larger, smaller, tanh
from transfuse.backends.triton.epilogue.operands import number, operand, placed
from transfuse.maths.primitives import complete


@triton.jit
def expm1(x):
    """``exp(x) - 1``: what exp(x) lost in rounding is made good by x over its logarithm."""
    u = tl.exp(x)
    d = u - 1.0
    r = d * (x / tl.log(u))
    return tl.where(d == 0.0, x, tl.where((d == -1.0) | (u == float("inf")), d, r))


@triton.jit
def log1p(x):
    """``log(1 + x)``: what 1 + x lost in rounding is made good by x over what is left of it."""
    u = 1.0 + x
    d = u - 1.0
    r = tl.log(u) * (x / d)
    return tl.where((d == 0.0) | (x == float("inf")), x, tl.where(u == 0.0, float("-inf"), r))


@triton.jit
def logistic(x):
    """The sigmoid, without an overflow that matters: 1 / (1 + Inf) is 0."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def logistic_slope(x):
    """The sigmoid of x times that of -x, which cancels nowhere."""
    t = tl.exp(-tl.abs(x))
    r = 1.0 / (1.0 + t)
    return t * r * r


@triton.jit
def value(
    x, channels, valid, at, operands, S: tl.constexpr, STEP: tl.constexpr, WHICH: tl.constexpr,
    AXIS: tl.constexpr,
):  # fmt: skip
    """Tensor ``WHICH`` of step ``STEP``, to meet a tile."""
    SPREAD: tl.constexpr = S.places[STEP][WHICH] if len(S.places[STEP]) > 0 else None
    tensors, _, strides = operands
    if SPREAD is None:
        channel, live = channels
        return operand(tensors, S.at[STEP] + WHICH, channel, live, x, AXIS)
    else:
        own = strides[SPREAD.at]
        return placed(tensors[S.at[STEP] + WHICH], channels, valid, at, x, own, SPREAD, AXIS)


@triton.jit
def mapped(
    x, channels, valid, at, operands, S: tl.constexpr, STEP: tl.constexpr, AXIS: tl.constexpr
):
    """A tile after step ``STEP`` of ``S``, a map. One that uses no x gives the same for all."""
    E: tl.constexpr = S.expr[STEP]
    COUNT: tl.constexpr = S.tensors[STEP]
    values = ()
    for i in tl.static_range(COUNT):
        values = values + (value(x, channels, valid, at, operands, S, STEP, i, AXIS),)
    y = evaluate(E, x, values, operands.numbers, S.number[STEP])
    return tl.broadcast_to(y, x.shape)


@triton.jit
def evaluate(E: tl.constexpr, x, values, numbers, N: tl.constexpr):
    """The value of expression ``E``; ``values`` are its tensors, its numbers begin at ``N``."""
    if E.op == "x":
        return x
    elif E.op == "number":
        return number(numbers, N + 3 * E.at, x)
    elif E.op == "tensor":
        return values[E.at]
    else:
        FIRST: tl.constexpr = E.parts[0]
        a = evaluate(FIRST, x, values, numbers, N)
        if E.op == "sigmoid_slope":  # no primitive: a product of two
            return logistic_slope(a)
        elif len(E.parts) == 1:
            return of_one(E, a)
        else:
            SECOND: tl.constexpr = E.parts[1]
            b = evaluate(SECOND, x, values, numbers, N)
            if len(E.parts) == 2:
                return of_two(E, a, b)
            else:
                THIRD: tl.constexpr = E.parts[2]
                c = evaluate(THIRD, x, values, numbers, N)
                return of_three(E, a, b, c)


@triton.jit
def of_three(E: tl.constexpr, a, b, c):
    """The primitives of three arguments."""
    if E.op == "where":
        return tl.where(a, b, c)
    else:
        tl.static_assert(E.op == "clamp")
        return smaller(larger(a, b), c)


@triton.jit
def of_one(E: tl.constexpr, a):
    """The primitives of one argument."""
    if E.op == "neg":
        return a * -1.0  # Triton takes it from 0, which makes 0 of -0 and of 0
    elif E.op == "no":
        return a == 0
    elif E.op == "abs":
        return tl.abs(a)
    elif E.op == "floor":
        return tl.floor(a)
    elif E.op == "sqrt":
        return tl.sqrt(a)
    elif E.op == "rsqrt":
        return 1.0 / tl.sqrt(a)
    elif E.op == "exp":
        return tl.exp(a)
    elif E.op == "expm1":
        return expm1(a)
    elif E.op == "log":
        return tl.log(a)
    elif E.op == "log1p":
        return log1p(a)
    elif E.op == "sin":
        return tl.sin(a)
    elif E.op == "cos":
        return tl.cos(a)
    elif E.op == "tanh":
        return tanh(a)
    elif E.op == "sigmoid":
        return logistic(a)
    else:
        tl.static_assert(E.op == "erf")
        return tl.erf(a)


@triton.jit
def of_two(E: tl.constexpr, a, b):
    """The primitives of two arguments."""
    if E.op == "add":
        return a + b
    elif E.op == "sub":
        return a - b
    elif E.op == "mul":
        return a * b
    elif E.op == "div":
        return a / b
    elif E.op == "minimum":
        return smaller(a, b)
    elif E.op == "maximum":
        return larger(a, b)
    elif E.op == "lt":
        return a < b
    elif E.op == "le":
        return a <= b
    elif E.op == "eq":
        return a == b
    elif E.op == "both":
        return a & b
    else:
        tl.static_assert(E.op == "either")
        return a | b


# A kernel has no table to look primitives up in: its branches are the rows.
complete(
    {
        name: each
        for each in (of_one, of_two, of_three)
        for name in re.findall(r'E\.op == "(\w+)"', getsource(each.fn))
    },
    __name__,
)
