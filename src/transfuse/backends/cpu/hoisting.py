"""Parts of a sweep's expression that are the same along some axes, computed once for all of them.

The root of a variance, the logarithm of a sum: a value for each statistic, where the expression
would compute it for each element. The part becomes a small sweep of its own, into memory that the
large one reads in its place; the bits are the same.

So do parts that are the same along an axis of a few places, such as the channels of a group where
channels lie innermost: with a value for each of these the rows of the large one are all channels.
"""

from dataclasses import replace
from math import prod

import torch

from transfuse.maths.expr import Call, Expr, Name, call, name
from transfuse.maths.primitives import PRIMITIVES
from transfuse.sweeps import Each, Fold, Slide, Sweep, View

MANY_VALUES = 2**15
"""Of a sweep that is worth a second one."""
MANY_TIMES = 8
"""That a part would be computed for the same values."""
SHORT = 32
"""Places of an innermost axis that make short rows."""
SCRATCH = -1
"""The slot of the memory between the two: the last."""
_ALIGN = 64


def hoisted(sweep: Sweep) -> tuple[Sweep, tuple[Each, ...], int]:
    """The sweep as it is best run, those that come before it, and the bytes between them.

    Mostly itself, with nothing before it.
    """
    expr = sweep.expr if isinstance(sweep, Each) else sweep.before
    values = dict(sweep.values)
    sizes = sweep.values[0][1].sizes if sweep.values else ()
    if prod(sizes) < MANY_VALUES:
        return sweep, (), 0
    found: dict[Expr, tuple[str, View]] = {}
    before: list[Each] = []
    size = 0
    cut, pair = _cut(sweep, values, sizes)
    for part in _parts(expr, values, sizes, cut, pair):
        used = {word: values[word] for word in part.names}
        spans = _spans(used, sizes, pair if cut & used.keys() else ())
        small = tuple(n if along else 1 for n, along in zip(sizes, spans, strict=True))
        dtype = _computed(sweep)
        strides = tuple(prod(small[a + 1 :]) if along else 0 for a, along in enumerate(spans))
        out = View(SCRATCH, dtype, small, strides, size // dtype.itemsize)
        read = tuple((word, replace(view, sizes=small)) for word, view in used.items())
        before.append(Each(out, part, read))
        found[part] = f"hoisted{len(found)}", replace(out, sizes=sizes)
        size += -(-prod(small) * dtype.itemsize // _ALIGN) * _ALIGN
    if not found:
        return sweep, (), 0
    rest = _replaced(expr, {part: name(word) for part, (word, _) in found.items()})
    kept = tuple((word, view) for word, view in sweep.values if word in rest.names)
    given = (*kept, *found.values())
    if isinstance(sweep, Each):
        return replace(sweep, expr=rest, values=given), tuple(before), size
    return replace(sweep, before=rest, values=given), tuple(before), size


def _cut(
    sweep: Sweep, values: dict[str, View], sizes: tuple[int, ...]
) -> tuple[frozenset[str], tuple[int, ...]]:
    """Values that alone keep two axes from being one long row, and these axes; mostly none."""
    none = frozenset[str](), ()
    if isinstance(sweep, Slide):
        return none
    outs = sweep.outs if isinstance(sweep, Fold) else (sweep.out,)
    axes = [axis for axis, n in enumerate(sizes) if n > 1]
    whole = [v for v in (*outs, *values.values()) if len(v.sizes) == len(sizes)]
    main = next((v for v in whole if all(v.strides[axis] for axis in axes)), None)
    if main is None or len(axes) < 2:
        return none
    *_, far, near = sorted(axes, key=lambda axis: main.strides[axis], reverse=True)
    if sizes[near] >= SHORT or near < far or near >= len(outs[0].sizes) > far:
        return none

    def one(view: View) -> bool:
        return far >= len(view.sizes) or view.strides[far] == sizes[near] * view.strides[near]

    found = frozenset(word for word, view in values.items() if not one(view))
    spread = (_spans({word: values[word]}, sizes, (far, near)) for word in found)
    small = all(_count(each, sizes) * MANY_TIMES <= prod(sizes) for each in spread)
    return (found, (far, near)) if small and all(map(one, outs)) else none


def _parts(
    expr: Expr,
    values: dict[str, View],
    sizes: tuple[int, ...],
    cut: frozenset[str],
    pair: tuple[int, ...],
) -> list[Expr]:
    """The largest parts that are worth it, none within another."""
    dear: dict[Expr, bool] = {}  # whether it has a root, a quotient, an exponential or the like
    names: dict[Expr, frozenset[str]] = {}
    for each in expr.walk():
        own = isinstance(each, Call) and PRIMITIVES[each.primitive].special > 0
        word = [each.name] if isinstance(each, Name) else []
        dear[each] = own or any(dear[part] for part in each.parts) or not cut.isdisjoint(word)
        names[each] = frozenset(word).union(*(names[part] for part in each.parts))
    found: dict[Expr, None] = {}
    waiting, seen = [expr], {expr}
    while waiting:
        each = waiting.pop()
        if not dear[each]:
            continue
        used = {word: values[word] for word in names[each]}
        spans = _spans(used, sizes, pair if cut & used.keys() else ())
        if _count(spans, sizes) * MANY_TIMES <= prod(sizes) and not each.logical:
            found[each] = None
            continue
        waiting += [part for part in each.parts if part not in seen]
        seen.update(each.parts)
    return list(found)


def _spans(
    views: dict[str, View], sizes: tuple[int, ...], more: tuple[int, ...] = ()
) -> list[bool]:
    """The axes along which any of some views has more than one value, and those of ``more``."""
    along = (a in more or any(v.strides[a] for v in views.values()) for a in range(len(sizes)))
    return [n > 1 and each for n, each in zip(sizes, along, strict=True)]


def _count(spans: list[bool], sizes: tuple[int, ...]) -> int:
    return prod(n for n, along in zip(sizes, spans, strict=True) if along)


def _computed(sweep: Sweep) -> torch.dtype:
    """The type that the core computes a sweep in."""
    outs = sweep.outs if isinstance(sweep, Fold) else (sweep.out,)
    others = sweep.others if isinstance(sweep, Fold | Slide) else ()
    views = (*outs, *(view for _, view in (*sweep.values, *others)))
    return torch.float64 if any(v.dtype is torch.float64 for v in views) else torch.float32


def _replaced(expr: Expr, by: dict[Expr, Expr]) -> Expr:
    done: dict[Expr, Expr] = {}
    for each in expr.walk():
        if isinstance(each, Call) and each not in by:
            done[each] = call(each.primitive, *(done[part] for part in each.parts))
        else:
            done[each] = by.get(each, each)
    return done[expr]
