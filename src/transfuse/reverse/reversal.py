"""Reversal: sweeps that take a gradient back over a tape.

Each region has one *adjoint*, an expression whose sum over all its elements changes with anything
it names as the chain's result does, weighted by the gradient that comes in. So every gradient is
the derivative of the adjoint by a name, summed over whatever has one value of that name: the
values themselves, operands, statistics. Whoever takes a statistic of the values adds a term.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from transfuse.maths import eq, where
from transfuse.maths.expr import Call, Expr, Name, X, folded, substituted
from transfuse.maths.expr import name as symbol
from transfuse.maths.primitives import ONE, PRIMITIVES, ZERO, derivative
from transfuse.reverse.adaptive import adaptive
from transfuse.reverse.axes import axes_of
from transfuse.reverse.by_result import by_result
from transfuse.reverse.factors import factored, gathered
from transfuse.reverse.narrow import by_part, narrowest, replaced
from transfuse.reverse.shares import EXTREMES, SHARES
from transfuse.reverse.steps import Step, each_leg, fold_leg, same
from transfuse.reverse.tape import Joined, Reduced, Region, Shuffled, Slid, Taken, Tape
from transfuse.reverse.windows import BackOverWindows
from transfuse.stages.walk import Given, Statistic
from transfuse.sweeping import (
    LARGEST,
    Buffer,
    Look,
    Seen,
    grouped,
    select,
    shuffle_looks,
    spread_over,
    then,
    written_out,
)

SHARED = 8
"""Values that a sum which others share goes over, at least."""
G = symbol("g")
"""The gradient that comes in."""
RESULT = symbol("result")
"""The values of a region at its end, such as the chain's result."""


@dataclass(frozen=True)
class _Named:
    """What an adjoint has a name for: how it meets the values, and along which axes it differs.

    Axes are counted in (n, c, …). ``groups``: along the channels it differs by group alone.
    """

    buffer: Buffer
    look: Callable[[int], Look]
    axes: tuple[int, ...]
    groups: int = 1

    def seen(self, groups: int) -> Seen:
        return Seen(self.buffer, self.look(groups))

    def kept(self, groups: int) -> list[int]:
        """The axes along which it differs, where channels are seen in so many groups."""
        if groups == 1:
            return sorted(self.axes)
        wide = [axis + (axis > 0) for axis in self.axes if axis != 1]
        channels = [1] if self.groups > 1 else []
        return sorted([*wide, *([1, 2] if 1 in self.axes else channels)])


Names = dict[str, _Named]


@dataclass(frozen=True)
class Slope:
    """The step to the gradient by the first values, as an expression of what it reads."""

    step: Step
    expr: Expr
    reads: Mapping[str, Buffer]


class Reversal:
    """The steps that take a gradient back over a tape, and what they find on the way.

    ``wanted``: operands whose gradients are asked for; ``common``: costly parts that gradients of a
    region must save before something is stored for them; ``found``: the parts of each operand's
    gradient, one for every place where it is used, as buffers of its values in their order.
    ``alike``: gradients are stored in the type of the values that they are read from, and may take
    the memory of these. ``result``: the chain's, where it is known; what it tells is read of it.
    """

    def __init__(
        self,
        tape: Tape,
        wanted: Collection[str],
        common: int,
        alike: bool = True,
        result: Buffer | None = None,
    ) -> None:
        self.tape, self.wanted, self.common, self.result = tape, wanted, common, result
        self.alike = alike
        self.steps: list[Step] = []
        self.found: dict[str, list[Buffer]] = {}
        self.slope: Slope | None = None
        self._pulls: dict[int, list[Buffer]] = {}  # gradients of statistics, one for every place
        self._sums: dict[tuple[object, ...], str] = {}  # what several sums of a region share
        self._passed: dict[int, tuple[Name, Expr]] = {}  # of a region: the gradient by a part of it
        self._commons: dict[int, tuple[Expr, Name]] = {}  # of a region: what is stored of it
        self._ends: dict[int, Buffer] = {}  # of a region: its values at the end, until written over
        self._constants: dict[int, dict[str, Expr]] = {}  # of a region: names that they stand for
        self._made = 0

    def back(self, gradient: Seen) -> Seen:
        """From the gradient by the last values to that by the first."""
        after = None
        for region in reversed(self.tape.regions):
            names = self._names(region)
            share, gradient = self._through(region, after, gradient, names)
            names["g"] = _whole(gradient, region)
            gradient = self._region(region, G * share, gradient, names)
            after = region
        return gradient

    def by_channel(self, operand: str, gradient: Seen) -> None:
        """An operand that was added to every channel of the first values."""
        region = self.tape.regions[0]
        part = self._part(operand, (1, region.buffer.dims[1], *[1] * (len(region.buffer.dims) - 2)))
        value = Given(operand, (1,))
        like = _Named(part, _look_of(self.tape, value, region.buffer.dims), value.axes)
        self._summed(
            f"gradient by {operand}", region, G, {"g": _whole(gradient, region)}, like, part
        )

    def total(self, operand: str, name: str) -> Buffer:
        """The sum of an operand's parts, in a tensor of the call by this name."""
        parts = self.found[operand]
        if len(parts) == 1:
            parts[0].given = name
            return parts[0]
        sizes = tuple(size for size in parts[0].dims if size != 1) or (1,)

        def flat(t: Tensor) -> Tensor:
            return spread_over(t, range(len(sizes)), sizes)

        made = Buffer(parts[0].dims, given=name)
        reads = {f"p{i}": Seen(part, flat) for i, part in enumerate(parts)}
        first, *rest = map(symbol, reads)
        self._each(f"gradient by {operand}", Seen(made, flat), sum(rest, first), reads)
        return made

    def handed_on(self, gradient: Seen, name: str) -> Buffer:
        """A gradient in a tensor of the call by this name; or where the call brought it, as is."""
        buffer = gradient.buffer
        if gradient.look is same:
            buffer.given = buffer.given or name
            return buffer
        made = Buffer(self.tape.regions[0].buffer.dims, given=name)
        self._each("copy the gradient", Seen(made, same), G, {"g": gradient})
        return made

    # Words.

    def _through(
        self, region: Region, after: Region | None, gradient: Seen, names: Names
    ) -> tuple[Expr, Seen]:
        """What the last word makes of a value, and the gradient by it, seen from the values."""
        word, dims, back = region.word, region.buffer.dims, _back(region)
        if word is None or after is None:
            return region.expr, gradient
        if isinstance(word, Reduced):

            def wide(t: Tensor) -> Tensor:
                return t.expand(dims)

            names["r"] = _whole(Seen(after.buffer, wide), region)
            kept = tuple(axis for axis in range(len(dims)) if axis not in word.axes)
            ties = self._ties(region, word.folding, region.expr, names, names["r"], kept)
            count = prod(dims[axis] for axis in word.axes)
            (share,) = SHARES[word.folding](region.expr, (symbol("r"),), ties, count)
            assert share is not None, "a fold with one result"
            return share, Seen(gradient.buffer, then(gradient.look, wide))
        if isinstance(word, Joined):
            own = word.channels if word.first else 0
            self._joined(word, gradient, 0 if word.first else dims[1], back)
            mine = then(gradient.look, lambda t: t.narrow(1, own, dims[1]))
            return region.expr, Seen(gradient.buffer, mine)
        made = Seen(Buffer(dims), same)
        if isinstance(word, Shuffled):
            source, spread = shuffle_looks(dims, word.factor)
            read = {"g": Seen(gradient.buffer, then(gradient.look, spread))}
            self._each(back, Seen(made.buffer, source), G, read)
        else:
            self._unslid(word, region, after, gradient, made.buffer, names)
        return region.expr, made

    def _unslid(
        self,
        word: Slid,
        region: Region,
        after: Region,
        gradient: Seen,
        made: Buffer,
        names: Names,
    ) -> None:
        """The gradient by the values that windows saw."""
        if word.folding == "sign":
            raise NotImplementedError
        back, dims, outputs = _back(region), region.buffer.dims, after.buffer.dims[2:]
        values = self._stored(region, names) if word.folding == "max" else None
        try:
            windows = BackOverWindows(back, axes_of(dims, outputs, word.options), gradient, made)
        except NotImplementedError:
            reads = {"g": gradient, **({} if values is None else {"x": values})}
            self.steps.append(adaptive(back, made, outputs, reads))
            return
        if values is not None:
            windows.largest(values, after.buffer)
        else:
            divisor = 1.0 if word.folding == "sum" else word.options.get("divisor")
            windows.mean(word.options.get("counts_padding", True), divisor)
        self.steps += windows.steps

    def _joined(self, word: Joined, gradient: Seen, first: int, back: str) -> None:
        """The gradient by the tensor that joined the values."""
        if word.other.name in self.wanted:
            n, _, *spatial = gradient.look(_likeness(gradient.buffer)).shape
            part = self._part(word.other.name, (n, word.channels, *spatial))
            theirs = then(gradient.look, lambda t: t.narrow(1, first, word.channels))
            read = {"g": Seen(gradient.buffer, theirs)}
            sizes = part.dims
            out = Seen(part, lambda t: spread_over(t, range(len(sizes)), sizes))
            self._each(f"{back} · {word.other.name}", out, G, read)

    def _region(self, region: Region, adjoint: Expr, incoming: Seen, names: Names) -> Seen:
        """The gradient by a region's values, and on the way by all that met them."""
        own = {each for taken in region.taken for each in taken.statistics}
        # Gradients lie where what they are read from does, element by element.
        stored = self._ends.get(id(region)) if self.alike else None
        made = stored or Buffer(region.buffer.dims)
        adjoint = self._narrowed(region, adjoint, names)
        self._common(region, adjoint, names, made)
        for taken in reversed(region.taken):
            self._pull(region, adjoint, names, taken.statistics)
            adjoint = self._pushed(region, taken, adjoint, names)
        met = {each for each in region.values.values() if isinstance(each, Statistic)}
        self._pull(region, adjoint, names, sorted(met - own, key=lambda each: each.number))
        change = derivative(adjoint, "x")
        found = incoming if change is G else Seen(made, same)
        names["dx"] = _whole(found, region)
        late = []
        for name, value in region.values.items():
            if isinstance(value, Given) and value.name in self.wanted:
                by = derivative(adjoint, name)
                if by is change and len(value.axes) == len(region.buffer.dims):
                    late.append((name, value))  # one that was added, as a residual is
                else:
                    self._by_operand(region, name, value, by, names)
        if change is not G:  # the last to read what lies in its buffer
            self._by_values(region, change, names, made)
        for name, value in late:
            self._by_operand(region, name, value, symbol("dx"), names)
        return found

    def _by_values(self, region: Region, change: Expr, names: Names, made: Buffer) -> None:
        """The gradient by a region's values."""
        every = {axis for axis, size in enumerate(region.buffer.dims) if size > 1}
        change = self._known(region, change)
        change = gathered(change, lambda name: every.issubset(names[name].axes))
        expr, groups, reads = self._read(region, change, names)
        self._each(_back(region), Seen(made, grouped(groups)), expr, reads)
        if groups == 1:
            self.slope = Slope(self.steps[-1], expr, {n: reads[n].buffer for n in expr.names})

    def _narrowed(self, region: Region, adjoint: Expr, names: Names) -> Expr:
        """The adjoint as a multiple of the part that all gradients pass through, where it has one.

        The gradient by that part has a name, as ``g`` has.
        """
        sought = ["x", *(name for name, value in region.values.items() if self._sought(value))]
        known = {name for name, value in region.values.items() if isinstance(value, Statistic)}
        part = narrowest(adjoint, sought, known | names.keys() - {*sought})
        change = G if part is None else by_part(adjoint, part)
        if part is None or change is G:
            return adjoint
        self._made += 1
        name = f"by{self._made}"
        self._passed[id(region)] = symbol(name), change
        names[name] = names["g"]
        return symbol(name) * part

    def _common(self, region: Region, adjoint: Expr, names: Names, made: Buffer) -> None:
        """Store what several gradients of a region would each compute, if that takes them long:
        the gradient by the part that they pass through, or another part.

        Where types are ``alike`` it lies where the gradient by the values will, and so takes no
        memory: that one is the last to read it.
        """
        changes = [derivative(adjoint, "x")]
        changes += [derivative(adjoint, n) for n, v in region.values.items() if self._sought(v)]
        users: dict[Expr, int] = {}
        for change in {*changes}:
            for part in change.walk():
                users[part] = users.get(part, 0) + 1
        passed = self._passed.get(id(region))
        worth = {
            part: (count - 1) * _inexact(passed[1] if passed and part is passed[0] else part)
            for part, count in users.items()
            if not part.logical
        }
        piece = max(worth, key=lambda part: worth[part], default=None)
        if piece is None or worth[piece] < self.common or written_out(piece, 1) > LARGEST:
            return
        self._made += 1
        name = f"common{self._made}"
        stored = made if self.alike else Buffer(made.dims)
        expr, groups, reads = self._read(region, piece, names)
        self._each(f"{_back(region)} · in common", Seen(stored, grouped(groups)), expr, reads)
        names[name] = _whole(Seen(stored, same), region)
        self._commons[id(region)] = piece, symbol(name)
        if self.alike:
            self._ends.pop(id(region), None)

    def _known(self, region: Region, expr: Expr) -> Expr:
        """An expression with what is stored of it by name."""
        known = self._commons.get(id(region))
        return expr if known is None else replaced(expr, *known)

    def _by_operand(
        self, region: Region, name: str, value: Given, change: Expr, names: Names
    ) -> None:
        """The gradient by an operand that meets a region's values."""
        if change is ZERO:
            return
        sizes = region.buffer.dims
        dims = tuple(n if axis in value.axes else 1 for axis, n in enumerate(sizes))
        part = self._part(value.name, dims)
        does = f"{_back(region)} · by {value.name}"
        self._summed(does, region, change, names, names[name], part)

    def _pull(
        self, region: Region, adjoint: Expr, names: Names, statistics: Sequence[Statistic]
    ) -> None:
        """The gradients by statistics that meet a region's values."""
        for each in statistics:
            for name, value in region.values.items():
                change = derivative(adjoint, name) if value == each else ZERO
                if change is not ZERO:
                    found = names[name]
                    part = Buffer(found.buffer.dims, statistic=True)
                    self._pulls.setdefault(each.number, []).append(part)
                    self._summed(f"{_back(region)} · gather", region, change, names, found, part)

    def _pushed(self, region: Region, taken: Taken, adjoint: Expr, names: Names) -> Expr:
        """The adjoint with what a fold adds to it, now that the gradients by its results are known.

        As constants the results have names of their own.
        """
        results = []
        usual = {value: symbol(name) for name, value in region.values.items()}
        for each in taken.statistics:
            names[f"s{each.number}"] = self._statistic(region, each)
            results.append(symbol(f"s{each.number}"))
            if each in usual:
                self._constants.setdefault(id(region), {})[f"s{each.number}"] = usual[each]
        first = names[f"s{taken.statistics[0].number}"]
        ties = self._ties(region, taken.folding, taken.expr, names, first, first.axes)
        dims = region.buffer.dims
        count = prod(dims[axis] for axis in taken.axes) // taken.groups
        shares = SHARES[taken.folding](taken.expr, results, ties, count)
        for each, share in zip(taken.statistics, shares, strict=True):
            for i, pull in enumerate(self._pulls.pop(each.number, ())):
                if share is not None:
                    name = f"d{each.number}_{i}"
                    names[name] = self._statistic(region, each, pull)
                    adjoint = adjoint + symbol(name) * share
        return adjoint

    def _ties(
        self,
        region: Region,
        folding: str,
        expr: Expr,
        names: Names,
        result: _Named,
        kept: tuple[int, ...],
    ) -> Expr:
        """How many values equal the largest or smallest, where a folding asks for it."""
        if folding not in EXTREMES:
            return ZERO
        self._made += 1
        name, tied = f"ties{self._made}", f"tied{self._made}"
        names[tied] = result
        part = Buffer(result.buffer.dims, statistic=True)
        names[name] = _Named(part, result.look, kept, result.groups)
        equal = where(eq(expr, symbol(tied)), 1.0, 0.0)
        self._summed(f"{_back(region)} · count", region, equal, names, names[name], part)
        return symbol(name)

    # Sweeps.

    def _summed(
        self, does: str, region: Region, expr: Expr, names: Names, like: _Named, part: Buffer
    ) -> None:
        """The sum of an expression for each value of something, into a buffer that lies so."""
        expr = self._known(region, expr)
        expr, apart = self._shared(does, region, expr, names, like)
        expr, groups, reads = self._read(region, expr, names, like.groups)
        dims = grouped(groups)(_likeness(region.buffer)).shape
        kept = like.kept(groups)
        gone = [axis for axis in range(len(dims)) if axis not in (*kept, *apart)]
        left = sorted((*kept, *gone))
        order = [left.index(axis) for axis in (*kept, *gone)]
        seen = {
            name: Seen(each.buffer, then(each.look, lambda t: select(t, left).permute(order)))
            for name, each in reads.items()
        }
        out = Seen(part, then(like.look(groups), lambda t: select(t, kept)))
        if prod(dims[axis] for axis in gone) > 1:
            self.steps.append(fold_leg(does, out, "sum", expr, seen))
        else:
            narrow = {
                name: Seen(each.buffer, then(each.look, lambda t: select(t, kept)))
                for name, each in reads.items()
            }
            self._each(does, out, expr, narrow)

    def _shared(
        self, does: str, region: Region, expr: Expr, names: Names, like: _Named
    ) -> tuple[Expr, Sequence[int]]:
        """An expression with a sum that others share in place of what varies, and its axes.

        These are the axes that all sums of a region go over. What does not vary along them is taken
        out of the sum; what is left often is the same in several.
        """
        groups = max((each.groups for each in names.values()), default=1)
        dims = grouped(groups)(_likeness(region.buffer)).shape
        met = [name for name, v in region.values.items() if name in names and self._sought(v)]
        kept = {axis for name in met for axis in names[name].kept(groups)} | {*like.kept(groups)}
        kept |= {1} if groups > 1 else set()
        over = [axis for axis in range(len(dims)) if axis not in kept]
        if len(met) < 2 or prod(dims[axis] for axis in over) < SHARED:
            return expr, ()
        outer, inner = factored(expr, lambda name: not kept.issuperset(names[name].kept(groups)))
        key = (id(region), inner, *over)
        name = self._sums.get(key)
        if name is None:
            self._made += 1
            name = self._sums[key] = f"sum{self._made}"
            sizes = tuple(1 if axis in over else n for axis, n in enumerate(dims))
            places = [a + 1 if a and groups > 1 else a for a in range(len(region.buffer.dims))]
            axes = tuple(axis for axis, place in enumerate(places) if place in kept)
            made = Buffer(sizes, statistic=True)
            names[name] = _Named(made, lambda _: lambda t: t.expand(dims), axes, groups)
            inner, _, reads = self._read(region, inner, names, groups)
            order = (*sorted(kept), *over)
            seen = {
                name: Seen(each.buffer, then(each.look, lambda t: t.permute(order)))
                for name, each in reads.items()
            }
            out = Seen(made, lambda t: select(t, sorted(kept)))
            self.steps.append(fold_leg(f"{does} · share", out, "sum", inner, seen))
        return (symbol(name) if outer is ONE else outer * symbol(name)), over

    def _sought(self, value: Given | Statistic) -> bool:
        return isinstance(value, Statistic) or value.name in self.wanted

    def _each(self, does: str, into: Seen, expr: Expr, reads: Mapping[str, Seen]) -> None:
        self.steps.append(each_leg(does, into, expr, reads))

    def _read(
        self, region: Region, expr: Expr, names: Names, groups: int = 1
    ) -> tuple[Expr, int, dict[str, Seen]]:
        """An expression in pieces that kernels take, its groups of channels, what it reads."""
        if id(region) in self._passed:
            expr = replaced(expr, *self._passed[id(region)])
        expr = substituted(expr, self._constants.get(id(region), {}))  # no derivative is taken here
        end = self.result if region is self.tape.regions[-1] else self._ends.get(id(region))
        if end is not None:
            expr = by_result(expr, region.expr, RESULT)
            names[RESULT.name] = _whole(Seen(end, same), region)
        while written_out(expr, 1) > LARGEST:
            piece = max(_pieces(expr), key=lambda each: each[1])[0]
            self._made += 1
            name = f"piece{self._made}"
            made = Buffer(region.buffer.dims)
            of, own, reads = self._read(region, piece, names)
            self._each(f"{_back(region)} · a piece", Seen(made, grouped(own)), of, reads)
            names[name] = _whole(Seen(made, same), region)
            expr = replaced(expr, piece, symbol(name))
        used = {name: names[name] for name in expr.names}
        groups = max([groups, *(each.groups for each in used.values())])
        return expr, groups, {name: each.seen(groups) for name, each in used.items()}

    def _stored(self, region: Region, names: Names) -> Seen:
        """A region's values at its end, in memory."""
        if region.expr is X:
            return Seen(region.buffer, same)
        made = Buffer(region.buffer.dims)
        expr, groups, reads = self._read(region, region.expr, names)
        self._each(" · ".join(region.stages), Seen(made, grouped(groups)), expr, reads)
        self._ends[id(region)] = made
        return Seen(made, same)

    # Names.

    def _names(self, region: Region) -> Names:
        dims = region.buffer.dims
        names = {"x": _whole(Seen(region.buffer, same), region)}
        for name, value in region.values.items():
            if isinstance(value, Statistic):
                names[name] = self._statistic(region, value)
            else:
                buffer, _ = self.tape.value(value, dims, 1)
                names[name] = _Named(buffer, _look_of(self.tape, value, dims), value.axes)
        return names

    def _statistic(
        self, region: Region, statistic: Statistic, buffer: Buffer | None = None
    ) -> _Named:
        """A statistic, or what lies as it does."""
        kept, groups = self.tape.found[statistic.number]
        n, _, c, *spatial = kept.dims
        sizes = (n, c, *spatial)
        axes = tuple(a for a, size in enumerate(sizes) if size != 1)
        look = _look_of(self.tape, statistic, region.buffer.dims)
        return _Named(buffer or kept, look, axes, groups)

    def _part(self, operand: str, dims: tuple[int, ...]) -> Buffer:
        part = Buffer(dims, statistic=True)
        self.found.setdefault(operand, []).append(part)
        return part


def _whole(seen: Seen, region: Region) -> _Named:
    """What has a value of its own for each of a region's."""
    axes = tuple(range(len(region.buffer.dims)))
    return _Named(seen.buffer, lambda groups: then(seen.look, grouped(groups)), axes)


def _look_of(tape: Tape, value: Given | Statistic, dims: tuple[int, ...]) -> Callable[[int], Look]:
    return lambda groups: tape.value(value, dims, groups)[1]


def _back(region: Region) -> str:
    return f"back through {' · '.join(region.stages)}"


def _likeness(buffer: Buffer) -> Tensor:
    return torch.empty(buffer.dims, device="meta")


def _pieces(expr: Expr) -> Iterator[tuple[Expr, int]]:
    """The parts of an expression that a kernel takes, with their sizes written out."""
    sizes: dict[Expr, int] = {}

    def apply(each: Call, parts: list[int]) -> int:
        sizes[each] = 1 + sum(parts)
        return sizes[each]

    folded(expr, lambda _: 1, apply)
    return ((each, n) for each, n in sizes.items() if n <= LARGEST and not each.logical)


def _inexact(expr: Expr) -> int:
    """Its parts that are more than plain arithmetic, of those that differ from value to value."""
    calls = (each for each in expr.walk() if isinstance(each, Call) and "x" in each.names)
    return sum(not PRIMITIVES[each.primitive].exact for each in calls)
