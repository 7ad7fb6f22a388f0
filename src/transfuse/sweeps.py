"""Sweeps: one walk over tensors in memory, as data that every backend has a kernel for.

What a chain needs beyond the kernel of its convolution is one of three: ``Each`` gives every
element from elements of other tensors, ``Fold`` gives one value for all elements along some axes,
``Slide`` one for each window. The values on the way in and out go through expressions, so that
pointwise stages around them cost no sweep of their own.

A sweep knows sizes, strides and types, and no address: tensors are numbers of ``slots``, which a
call fills in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from transfuse.maths.expr import Expr, X

MOST_AXES = 8
"""Axes of a view."""


@dataclass(frozen=True)
class View:
    """Memory as a sweep reads or writes it: element ``i`` lies at ``offset + sum(i * strides)``.

    Counted in elements. A stride of 0 reads one value along a whole axis; none is negative.
    """

    slot: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class Each:
    """``out[i] = expr(values[i], …)``.

    Every value is a view of the sizes of ``out``, under the name that ``expr`` has for it. Values
    may be the memory of ``out`` itself, element by element, but not overlap it otherwise.
    """

    out: View
    expr: Expr
    values: tuple[tuple[str, View], ...]


Folding = Literal["sum", "mean", "max", "min", "logsumexp", "exponentials", "moments", "squares"]
"""What a fold leaves of values v.

One result: their ``sum``, ``mean``, ``max`` and ``min`` (NaN wins), ``logsumexp``, ``squares`` (the
mean of v * v). Two results: ``exponentials`` (m = max v, and the sum of exp(v - m)) and ``moments``
(mean and biased variance, never as a difference of large sums). Values of -Inf alone have the
exponentials -Inf and 0, and the logsumexp -Inf; a value of Inf the logsumexp Inf, as in torch.
"""


@dataclass(frozen=True)
class Fold:
    """``out[i] = after(fold over j of before(values[i, j], …))``.

    The axes of ``outs`` come first in the values, those folded follow. ``before`` gives what is
    folded; ``after`` maps the result ``x`` of a fold that has one, with ``others`` beside it, which
    are views of the sizes of the result.
    """

    outs: tuple[View, ...]
    folding: Folding
    values: tuple[tuple[str, View], ...]
    before: Expr = X
    after: Expr = X
    others: tuple[tuple[str, View], ...] = ()


@dataclass(frozen=True)
class Slide:
    """``out[n, c, o] = after(fold over the window at o of before(values[n, c, …], …))``.

    The window at ``o`` covers the inputs ``o * stride - padding + k * dilation`` for
    ``k < kernel``, those outside the tensor left out; or, ``adaptive``, along each axis those from
    ``floor(o * n / outputs)`` to ``ceil((o + 1) * n / outputs)``.

    ``max``: the largest, NaN wins; a window without values gives -Inf. ``sum``: their sum.
    ``mean``: their sum over ``divisor``, or where that is None over the number of inputs in the
    window, with those of the padding (but not those that only ``ceil_mode`` adds beyond it) where
    ``counts_padding``. ``sign``: the largest where ``others["sign"]``, read as an output's value,
    is at least 0, and elsewhere the smallest.
    """

    out: View
    folding: Literal["max", "sum", "mean", "sign"]
    values: tuple[tuple[str, View], ...]
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    adaptive: bool = False
    counts_padding: bool = True
    divisor: float | None = None
    before: Expr = X
    after: Expr = X
    others: tuple[tuple[str, View], ...] = field(default=())


Sweep = Each | Fold | Slide


def views(sweep: Sweep) -> Mapping[int, View]:
    """Every slot that a sweep looks at, with one of its views of it."""
    outs = sweep.outs if isinstance(sweep, Fold) else (sweep.out,)
    others = () if isinstance(sweep, Each) else sweep.others
    return {view.slot: view for view in (*outs, *(v for _, v in (*sweep.values, *others)))}
