"""Values computed where they are read, not stored: a sweep of elements goes into its readers.

So the gradient behind windows is no tensor of its own, in which all but one value of a window are
0: sums read the gradients of windows, and which of their inputs has each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod

import torch
from torch import Tensor

from transfuse.backends.memory import touched, whole
from transfuse.maths.expr import Call, Expr, substituted
from transfuse.maths.expr import name as symbol
from transfuse.maths.primitives import PRIMITIVES
from transfuse.reverse.steps import Step, TensorStep
from transfuse.sweeping import MOST, Buffer, Leg, Look, Seen, then, written_out
from transfuse.sweeps import MOST_AXES, Each, Fold, Slide, Sweep, View

WIDEST = 12
"""Tensors that a sweep reads."""


class Inlining:
    """Steps without those whose values their readers compute as well, and read no more for it.

    ``dims``: of the operands that a call brings, by name. ``most``: of exponentials and the like,
    how many are worth to be stored rather than computed again.
    """

    def __init__(self, dims: Mapping[str, Sequence[int]], most: int) -> None:
        self.dims, self.most = dims, most

    def __call__(self, steps: Sequence[Step], wanted: Sequence[Buffer]) -> list[Step]:
        """``wanted`` buffers are read after all steps."""
        found, at = list(steps), 0
        while at < len(found):
            fewer = self._without(found, at, wanted)
            found, at = (found, at + 1) if fewer is None else (fewer, at)
        return found

    def _without(self, steps: list[Step], at: int, wanted: Sequence[Buffer]) -> list[Step] | None:
        """The steps without one of them, if all its readers can do without."""
        step = steps[at]
        made = step.writes[0].buffer
        if isinstance(step, TensorStep) or not step.reads or not self._fills(step):
            return None
        parts = (each for s in steps for side in touched(s) for each in side if each.part_of)
        if any(_writes(made, each) for each in steps[:at]) or made in map(whole, parts):
            return None
        # It is read until it is written over.
        over = next((i for i in range(at + 1, len(steps)) if _writes(made, steps[i])), len(steps))
        last = any(made is each for each in wanted) or made.foreign
        if last if over == len(steps) else not self._fills(steps[over]):
            return None
        readers = [i for i in range(at + 1, min(over + 1, len(steps))) if _reads(made, steps[i])]
        sources = [seen.buffer for _, seen in step.reads]
        if not readers or (len(readers) - 1) * self._inexact(step) >= self.most:
            return None
        if any(_writes(each, later) for each in sources for later in steps[at + 1 : readers[-1]]):
            return None
        saved, changed = self._moved(step.writes), list(steps)
        for i in readers:
            into = self._into(steps[i], step)
            if into is None:
                return None
            changed[i] = into
            saved += self._moved([seen for _, seen in steps[i].reads])
            saved -= self._moved([seen for _, seen in into.reads])
        return changed[:at] + changed[at + 1 :] if saved >= 0 else None

    def _into(self, reader: Step, step: Leg) -> Leg | None:
        """A reader that computes itself what a sweep would have stored for it."""
        if isinstance(reader, TensorStep):
            return None
        sweep, own, made = self._sweep(reader), self._sweep(step), step.writes[0].buffer
        if isinstance(sweep, Slide):
            return None
        assert isinstance(own, Each)
        values = dict(sweep.values)
        theirs = [name for name, seen in reader.reads if seen.buffer is made]
        places = [_place(values[name], own.out) if name in values else None for name in theirs]
        cuts = places[0].cuts if places[0] else ()
        if any(each is None or each.cuts != cuts for each in places):
            return None
        if sum(map(len, cuts)) > MOST_AXES:
            return None
        reads = {
            name: Seen(seen.buffer, then(seen.look, _cut(cuts)))
            for name, seen in reader.reads
            if name not in theirs
        }
        known = {self._key(seen): name for name, seen in reads.items()}
        expr = sweep.expr if isinstance(sweep, Each) else sweep.before
        for name, place in zip(theirs, places, strict=True):
            assert place is not None
            names: dict[str, Expr] = {}
            for each, seen in step.reads:
                more = Seen(seen.buffer, then(seen.look, place.look))
                key = self._key(more)
                if key not in known:
                    known[key] = _fresh(each, (*reads, *theirs))
                    reads[known[key]] = more
                names[each] = symbol(known[key])
            expr = substituted(expr, {name: substituted(own.expr, names)})
        if written_out(expr, 1) > MOST or len(reads) > WIDEST:
            return None
        others = () if isinstance(sweep, Each) else tuple(name for name, _ in sweep.others)

        def make(outs: tuple[View, ...], given: dict[str, View]) -> Sweep:
            read = tuple((name, view) for name, view in given.items() if name not in others)
            if isinstance(sweep, Fold):
                beside = tuple((name, given[name]) for name in others)
                return Fold(outs, sweep.folding, read, expr, sweep.after, beside)
            return Each(outs[0], expr, read)

        writes = tuple(Seen(each.buffer, then(each.look, _cut(cuts))) for each in reader.writes)
        return Leg(reader.does, writes, tuple(reads.items()), make)

    # Buffers that lie one element after another, in no memory.

    def _seen(self, seen: Seen) -> Tensor:
        dims = self.dims.get(seen.buffer.given, seen.buffer.dims)
        return seen.look(torch.empty(tuple(dims), device="meta"))

    def _sweep(self, leg: Leg) -> Sweep:
        def view(seen: Seen) -> View:
            t = self._seen(seen)
            return View(0, t.dtype, tuple(t.shape), tuple(t.stride()), int(t.storage_offset()))

        return leg.make(tuple(map(view, leg.writes)), {name: view(s) for name, s in leg.reads})

    def _fills(self, step: Step) -> bool:
        """Whether it is a sweep that gives its buffer every element, each of its own."""
        if isinstance(step, TensorStep) or not isinstance(self._sweep(step), Each):
            return False
        return self._seen(step.writes[0]).numel() == prod(step.writes[0].buffer.dims)

    def _moved(self, views: Sequence[Seen]) -> int:
        """The elements of memory that views look at; what several look at counts as often."""
        seen = map(self._seen, views)
        return sum(prod(n for n, s in zip(t.shape, t.stride(), strict=True) if s) for t in seen)

    def _inexact(self, leg: Leg) -> int:
        """The exponentials and the like of a sweep of elements."""
        sweep = self._sweep(leg)
        assert isinstance(sweep, Each)
        calls = (each for each in sweep.expr.walk() if isinstance(each, Call))
        return sum(not PRIMITIVES[each.primitive].exact for each in calls)

    def _key(self, seen: Seen) -> object:
        """Views of one key are the same, however the buffer lies."""
        t = self._seen(seen)
        buffer = seen.buffer.given or id(seen.buffer)
        return buffer, tuple(t.shape), t.stride(), t.storage_offset()


def _writes(buffer: Buffer, step: Step) -> bool:
    return any(seen.buffer is buffer for seen in step.writes)


def _reads(buffer: Buffer, step: Step) -> bool:
    return any(seen.buffer is buffer for _, seen in step.reads)


def _fresh(name: str, taken: Sequence[str]) -> str:
    """A name like this one that none of these is."""
    return next(each for i in count() if (each := f"{name}_{i}") not in taken)


@dataclass(frozen=True)
class _Place:
    """Where a view lies among the elements of a sweep.

    ``cuts``: the sizes of the parts of each axis of the view; each part lies along an axis of the
    sweep, that and how far it goes there are ``along``. ``starts``: where the view begins.
    """

    cuts: tuple[tuple[int, ...], ...]
    along: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]

    def look(self, t: Tensor) -> Tensor:
        """What the sweep reads, as the view has it."""
        own = t.stride()
        first = sum(start * stride for start, stride in zip(self.starts, own, strict=True))
        sizes = [n for parts in self.cuts for n in parts]
        strides = [step * own[axis] for axis, step in self.along]
        return t.as_strided(sizes, strides, t.storage_offset() + first)


def _place(view: View, made: View) -> _Place | None:
    """Where a view lies in what a sweep writes densely; None where that is not so simple."""
    starts = tuple(
        view.offset // stride % n for n, stride in zip(made.sizes, made.strides, strict=True)
    )
    inner = sorted(range(len(made.sizes)), key=lambda axis: made.strides[axis])
    free = [axis for axis in inner if made.sizes[axis] > 1]
    cuts, along = [], []
    for size, stride in zip(view.sizes, view.strides, strict=True):
        parts: list[int] = []
        axes: list[tuple[int, int]] = [] if size > 1 else [(0, 0)]
        left, next_ = size, stride
        while left > 1:
            found = [a for a in free if made.strides[a] <= next_ < made.strides[a] * made.sizes[a]]
            if not found or next_ % made.strides[found[0]]:
                return None
            axis, step = found[0], next_ // made.strides[found[0]]
            n = made.sizes[axis]
            free.remove(axis)
            whole = starts[axis] + step * (left - 1) >= n  # it goes on along the next axis
            if whole and (step > 1 or starts[axis] or left % n):
                return None
            parts.insert(0, n if whole else left)
            axes.insert(0, (axis, step))
            left, next_ = left // parts[0], made.strides[axis] * n
        cuts.append(tuple(parts) or (1,))
        along += axes
    return _Place(tuple(cuts), tuple(along), starts)


def _cut(cuts: Sequence[Sequence[int]]) -> Look:
    """The first axes of a view in parts."""

    def look(t: Tensor) -> Tensor:
        sizes: list[int] = []
        strides: list[int] = []
        for n, stride, parts in zip(t.shape, t.stride(), cuts, strict=False):
            sizes += parts if n > 1 else [1] * len(parts)
            strides += [stride * prod(parts[i + 1 :]) for i in range(len(parts))]
        return t.as_strided(sizes, strides, t.storage_offset())

    return look
