"""The reverse of windows, as sweeps: each input gathers from the windows that it is in.

Windows that tile the axes are axes of their own: an input of a tile meets the value of its window.
Others are taken tap by tap: along an axis, the inputs that are at the same place between two
windows' beginnings (a *phase*) have the same taps of the windows around them, and those are views
of what the windows gave, shifted. So every input is written once, and sums have one order.

A maximum goes to the first input that has it, and of NaNs to the last, as in torch. Which one it
is, is a number for each window: its tap, or ``-1 - tap`` of a NaN.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

from transfuse.maths import either, eq, minimum, no, where
from transfuse.maths.expr import INF, Expr, X, constant, substituted
from transfuse.maths.expr import name as symbol
from transfuse.maths.primitives import ZERO
from transfuse.reverse.axes import AxisWindows
from transfuse.reverse.steps import CONSTANTS, Step, TensorStep, each_leg, fold_leg, same
from transfuse.sweeping import Buffer, Look, Seen, then

TAPS = 6
"""Of one sweep: each is two tensors that it reads."""
FEW = 32
"""Taps of a tile that are sooner taken one by one than folded."""
NONE = 2.0**127
"""What stands beyond the tensor: a value that is nobody's maximum."""


class BackOverWindows:
    """The steps back through windows: from ``gradient``, one for each window, to ``made``."""

    def __init__(
        self, does: str, axes: Sequence[AxisWindows], gradient: Seen, made: Buffer
    ) -> None:
        self.does, self.axes, self.gradient, self.made = does, axes, gradient, made
        self.tiled = all(axis.tiles for axis in axes)
        self.steps: list[Step] = []
        n, c = made.dims[:2]
        self.outputs = (n, c, *(axis.outputs for axis in axes))

    def mean(self, counts_padding: bool, divisor: float | None) -> None:
        """Each input of a window has an equal part of it."""
        full = prod(axis.kernel for axis in self.axes)
        even = [a.padded if counts_padding else a.counts for a in self.axes]
        varies = divisor is None and any(
            set(c) != {a.kernel} for a, c in zip(self.axes, even, strict=True)
        )
        share = symbol("g") / (divisor or full)
        gradient = self.gradient
        if varies:
            gradient, share = self._divided(even), symbol("g")
        if self.tiled:
            return self._tiles(
                share, {"g": Seen(gradient.buffer, then(gradient.look, self._spread))}
            )
        for at, axis in enumerate(self.axes):
            gradient, share = self._along(at, axis, gradient, share), symbol("g")

    def largest(self, values: Seen, result: Buffer) -> None:
        """The first input of a window that has its value."""
        if self.tiled:
            return self._largest_of_tiles(values, result)
        self._largest_by_taps(values, result)

    # Tiles.

    def _tiles(self, expr: Expr, reads: dict[str, Seen]) -> None:
        """What each input of a tile has; those in none have 0."""
        if any(axis.outputs * axis.kernel < axis.n for axis in self.axes):
            self._each(Seen(self.made, same), ZERO, {}, "zeros")
        self._each(Seen(self.made, self._cut), expr, reads)

    def _cut(self, t: Tensor) -> Tensor:
        """Inputs, by (n, c, and for each axis its windows and the taps of one)."""
        for at, axis in reversed(list(enumerate(self.axes, 2))):
            covered = t.narrow(at, 0, axis.outputs * axis.kernel)
            t = covered.unflatten(at, (axis.outputs, axis.kernel))  # type: ignore[no-untyped-call]
        return t

    @property
    def _parts(self) -> list[int]:
        """For each axis its windows and the taps of one."""
        return [n for axis in self.axes for n in (axis.outputs, axis.kernel)]

    def _spread(self, t: Tensor) -> Tensor:
        """What windows have, met by each of their taps."""
        for at in range(len(self.axes)):
            t = t.unsqueeze(3 + 2 * at)
        return t.expand(*t.shape[:2], *self._parts)

    def _largest_of_tiles(self, values: Seen, result: Buffer) -> None:
        kernel = [axis.kernel for axis in self.axes]
        dims, taps = self.outputs, Buffer((prod(kernel),), statistic=True)
        self.steps.append(_constant(torch.arange(prod(kernel)), taps))

        def at(t: Tensor) -> Tensor:
            places = [n for k in kernel for n in (1, k)]
            return t.view(1, 1, *places).expand(*dims[:2], *self._parts)

        few = prod(kernel) <= FEW
        number = Seen(taps, at)
        first = self._first_by_taps(values, result) if few else self._first(values, result, number)
        f, k = symbol("f"), symbol("k")
        seen = {
            "g": Seen(self.gradient.buffer, then(self.gradient.look, self._spread)),
            "f": Seen(first, self._spread),
            "k": number,
        }
        self._tiles(where(either(eq(f, k), eq(-1.0 - f, k)), symbol("g"), 0.0), seen)

    def _first(self, values: Seen, result: Buffer, number: Seen) -> Buffer:
        """The tap of each tile that has its value, as a fold over the tile."""
        rank, first = len(self.axes), Buffer(self.outputs)
        order = (0, 1, *(2 + 2 * a for a in range(rank)), *(3 + 2 * a for a in range(rank)))

        def ordered(t: Tensor) -> Tensor:
            return t.permute(order)

        reads = {
            "x": Seen(values.buffer, then(values.look, then(self._cut, ordered))),
            "m": Seen(result, then(self._spread, ordered)),
            "k": Seen(number.buffer, then(number.look, ordered)),
        }
        key = _key(X, symbol("m"), symbol("k"), -1.0 - symbol("k"))
        does = f"{self.does} · first of each window"
        self.steps.append(fold_leg(does, Seen(first, same), "min", key, reads))
        return first

    # Tap by tap.

    def _along(self, at: int, axis: AxisWindows, gradient: Seen, share: Expr) -> Seen:
        """The inputs of one axis gather from its windows; the other axes stay as they are."""
        last = at == len(self.axes) - 1
        sizes = [*(a.n for a in self.axes[: at + 1]), *(a.outputs for a in self.axes[at + 1 :])]
        made = self.made if last else Buffer((*self.made.dims[:2], *sizes))
        before, after = axis.margins()
        around = self._padded(gradient, share, [(0, 0)] * at + [(before, after)], 0.0)
        for first, count, taps in axis.phases():
            into = Seen(made, _slice(2 + at, first, count, axis.stride))
            reads = [
                Seen(around.buffer, then(around.look, _slice(2 + at, output + before, count, 1)))
                for output in taps.values()
            ]
            self._added(into, [(symbol("g"), {"g": each}) for each in reads])
        return Seen(made, same)

    def _largest_by_taps(self, values: Seen, result: Buffer) -> None:
        first = self._first_by_taps(values, result)
        margins = [axis.margins() for axis in self.axes]
        g = self._padded(self.gradient, symbol("g"), margins, 0.0)
        f = self._padded(Seen(first, same), symbol("g"), margins, INF)
        for phases in product(*(list(axis.phases()) for axis in self.axes)):
            into: Look = same
            for at, ((begin, count, _), axis) in enumerate(zip(phases, self.axes, strict=True), 2):
                into = then(into, _slice(at, begin, count, axis.stride))
            terms = []
            for taps in product(*(taps.items() for _, _, taps in phases)):
                number = 0
                look: Look = same
                for at, (tap, output) in enumerate(taps):
                    number = number * self.axes[at].kernel + tap
                    count, before = phases[at][1], margins[at][0]
                    look = then(look, _slice(2 + at, output + before, count, 1))
                hit = either(eq(symbol("f"), float(number)), eq(symbol("f"), -1.0 - number))
                reads = {
                    "g": Seen(g.buffer, then(g.look, look)),
                    "f": Seen(f.buffer, then(f.look, look)),
                }
                terms.append((where(hit, symbol("g"), 0.0), reads))
            self._added(Seen(self.made, into), terms)

    def _first_by_taps(self, values: Seen, result: Buffer) -> Buffer:
        """The tap of each window that has its value."""
        ends = [
            (
                a.padding,
                max(
                    0,
                    (a.outputs - 1) * a.stride + (a.kernel - 1) * a.dilation + 1 - a.padding - a.n,
                ),
            )
            for a in self.axes
        ]
        around = self._padded(values, symbol("g"), ends, NONE)
        first, does = Buffer(self.outputs), f"{self.does} · first of each window"
        every = list(product(*(range(a.kernel) for a in self.axes)))
        for begin in range(0, len(every), 2 * TAPS):
            reads: dict[str, Seen] = {"m": Seen(result, same)}
            found: Expr = constant(INF)
            if begin:
                reads["f"], found = Seen(first, same), symbol("f")
            for number, taps in enumerate(every[begin : begin + 2 * TAPS], begin):
                look: Look = same
                for at, (tap, axis) in enumerate(zip(taps, self.axes, strict=True), 2):
                    look = then(look, _slice(at, tap * axis.dilation, axis.outputs, axis.stride))
                reads[f"x{number}"] = Seen(around.buffer, then(around.look, look))
                x = symbol(f"x{number}")
                key = _key(x, symbol("m"), constant(number), constant(-1.0 - number))
                found = minimum(found, key)
            self.steps.append(each_leg(does, Seen(first, same), found, reads))
        return first

    def _divided(self, counts: Sequence[Sequence[int]]) -> Seen:
        """The gradient over the number of each window's inputs, which is a product of the axes'."""
        made, reads = Buffer(self.outputs), {"g": self.gradient}
        for at, every in enumerate(counts):
            count = Buffer((len(every),), statistic=True)
            self.steps.append(_constant(torch.tensor(every), count))
            reads[f"n{at}"] = Seen(count, _along(at, self.outputs))
        total: Expr = symbol("n0")
        for at in range(1, len(counts)):
            total = total * symbol(f"n{at}")
        self._each(Seen(made, same), symbol("g") / total, reads, "share")
        return Seen(made, same)

    def _padded(
        self, seen: Seen, expr: Expr, margins: Sequence[tuple[int, int]], fill: float
    ) -> Seen:
        """Values ``g`` mapped, with so much before and after them along each spatial axis."""
        shape = seen.look(torch.empty(seen.buffer.dims, device="meta")).shape
        ends = [*margins, *[(0, 0)] * (len(shape) - 2 - len(margins))]
        if not any(map(any, ends)) and expr is symbol("g"):
            return seen
        sizes = [n + sum(pair) for n, pair in zip(shape[2:], ends, strict=True)]
        made = Buffer((*shape[:2], *sizes))
        if any(map(any, ends)):
            self._each(Seen(made, same), constant(fill), {}, "margins")

        def inside(t: Tensor) -> Tensor:
            for at, (pair, n) in enumerate(zip(ends, shape[2:], strict=True), 2):
                t = t.narrow(at, pair[0], n)
            return t

        self._each(Seen(made, inside), expr, {"g": seen}, "margins")
        return Seen(made, same)

    def _added(self, into: Seen, terms: Sequence[tuple[Expr, dict[str, Seen]]]) -> None:
        """The sum of terms, a few in each sweep; of none, 0."""
        for begin in range(0, max(1, len(terms)), TAPS):
            reads: dict[str, Seen] = {"sum": into} if begin else {}
            total: Expr = symbol("sum") if begin else ZERO
            for number, (expr, seen) in enumerate(terms[begin : begin + TAPS]):
                term = _renamed(expr, number)
                reads |= {f"{name}{number}": each for name, each in seen.items()}
                total = term if total is ZERO else total + term
            self._each(into, total, reads)

    def _each(self, into: Seen, expr: Expr, reads: dict[str, Seen], more: str = "") -> None:
        does = f"{self.does} · {more}" if more else self.does
        self.steps.append(each_leg(does, into, expr, reads))


def _key(x: Expr, largest: Expr, tap: Expr, of_nan: Expr) -> Expr:
    """The least of a window's keys tells its input: of equals the first, of NaNs the last."""
    return where(no(eq(x, x)), of_nan, where(eq(x, largest), tap, INF))


def _renamed(expr: Expr, number: int) -> Expr:
    return substituted(expr, {name: symbol(f"{name}{number}") for name in expr.names})


def _slice(axis: int, first: int, count: int, step: int) -> Look:
    """So many places of an axis from the first on."""

    def look(t: Tensor) -> Tensor:
        strides = list(t.stride())
        offset = t.storage_offset() + first * strides[axis]
        strides[axis] *= step
        return t.as_strided((*t.shape[:axis], count, *t.shape[axis + 1 :]), strides, offset)

    return look


def _along(at: int, dims: tuple[int, ...]) -> Look:
    """A value for each place of a spatial axis, met by all of ``dims``."""
    places = tuple(slice(None) if axis == 2 + at else None for axis in range(len(dims)))
    return lambda t: t[places].expand(dims)


def _constant(values: Tensor, into: Buffer) -> TensorStep:
    def run(outs: Sequence[Tensor], reads: Mapping[str, Tensor]) -> None:
        outs[0].copy_(values)

    return TensorStep(CONSTANTS, (Seen(into, same),), (), run)
