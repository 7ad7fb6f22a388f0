"""Stages as sweeps: what stands around the convolution's kernel, told stage by stage.

``Sweeping`` listens to stages and writes down sweeps over ``Buffer``s. Element stages cost none:
they wait as one expression for whatever reads or stores the values next. Strides and types are
settled last, when a call has shown its tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from torch import Tensor

from transfuse.maths.expr import Call, Expr, Name, X, call, folded, substituted
from transfuse.maths.expr import name as symbol
from transfuse.maths.primitives import PRIMITIVES, specials
from transfuse.problem import Shape
from transfuse.stages import Stage
from transfuse.stages.running import Running, write
from transfuse.stages.walk import Given, Statistic, Value
from transfuse.sweeps import Each, Fold, Folding, Slide, Sweep, View

LARGEST = 160
"""Parts of an expression that waits: before a stage that would make it larger it is stored."""
WIDEST = 12
"""Tensors that it reads beside its values, in the same way."""
MOST = 256
"""Parts of one stage's own expression: kernels write no more of them out, and torch runs it."""


@dataclass(eq=False)
class Buffer:
    """Memory between sweeps: the values after some stage, or a statistic.

    ``input``: it is the call's input; ``given``: an operand of the call, by its name. ``part_of``:
    it is that buffer's channels from a certain one on.
    """

    dims: tuple[int, ...]
    input: bool = False
    given: str = ""
    part_of: "tuple[Buffer, int] | None" = None
    statistic: bool = False

    @property
    def foreign(self) -> bool:
        """Whether a call brings its memory."""
        return self.input or bool(self.given)


Look = Callable[[Tensor], Tensor]
"""How a sweep looks at a buffer: from a tensor of its dims to a view of it."""


@dataclass(frozen=True)
class Seen:
    """A buffer as a sweep looks at it."""

    buffer: Buffer
    look: Look


@dataclass(frozen=True)
class Leg:
    """A sweep whose buffers have no strides yet: what it does, in words, and how it is made.

    ``computes``: its expressions, and for how many values each.
    """

    does: str
    writes: tuple[Seen, ...]
    reads: tuple[tuple[str, Seen], ...]
    make: Callable[[tuple[View, ...], dict[str, View]], Sweep]
    computes: tuple[tuple[Expr, int], ...] = ()

    def specials(self, cpu: bool) -> int:
        """Special functions that it takes at least, on a GPU or on a ``cpu``."""
        return sum(specials(expr, cpu) * many for expr, many in self.computes)


@dataclass(frozen=True)
class Move:
    """Running statistics, the buffers of what they move by, and of how many values that is."""

    running: Running
    mean: Buffer
    var: Buffer
    count: int

    def write(self, operands: Mapping[str, Tensor], mean: Tensor, var: Tensor) -> None:
        """Move them in the tensors that they are kept in, by what these buffers hold."""
        first, second = mean.double(), var.double()
        if mean.shape[0] > 1:  # by sample: their mean counts, as in torch's instance norm
            first, second = first.mean(0), second.mean(0)
        write(operands, self.running.moved(operands, first, second, self.count))


@dataclass
class _Open:
    """A fold or slide that waits for the element stages behind it before it is written down."""

    result: Buffer
    look: Look
    reads: dict[str, Seen]
    make: Callable[..., Sweep]
    computes: tuple[tuple[Expr, int], ...]


@dataclass
class Sweeping:
    """The values of ``buffer`` as stages go over them, and the sweeps that come of it."""

    buffer: Buffer
    legs: list[Leg] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.expr: Expr = X  # of the values in the buffer, or of what is open
        self.values: dict[str, Value] = {}  # its other names
        self.open: _Open | None = None
        self.found: list[tuple[Buffer, int]] = []  # statistics, with their groups
        self.words: list[str] = []  # stages since the last sweep

    @property
    def shape(self) -> Shape:
        n, c, *spatial = self._dims
        return Shape(n, c, tuple(spatial))

    def follow(self, stages: Sequence[Stage]) -> int:
        """Go over stages up to the first that has no sweep; how many that were."""
        for at, stage in enumerate(stages):
            try:
                self.hear(stage)
            except NotImplementedError:
                return at
        return len(stages)

    def hear(self, stage: Stage) -> None:
        """Go over one stage."""
        stage.sweep(self)
        self.words.append(str(stage))

    # The words of a walk.

    def map(self, expr: Expr, values: Mapping[str, Value] = {}) -> None:
        if written_out(expr, 1) > MOST:
            raise NotImplementedError
        if not self._fits(expr, values):
            self.store()
        names = {key: symbol(self._name(value)) for key, value in values.items()}
        self.expr = substituted(expr, {"x": self.expr, **names})

    def fold(self, folding: Folding, axes: Sequence[int], groups: int = 1) -> tuple[Statistic, ...]:
        if self.open or self._groups not in (1, groups):
            self.store()
        n, c, *spatial = self._dims
        dims = (n, groups, c // groups, *spatial)
        gone = {axis + 1 if axis else 0 for axis in axes}
        kept = [axis for axis in range(len(dims)) if axis not in gone]
        left = tuple(1 if axis in gone else size for axis, size in enumerate(dims))
        results = 2 if folding in ("moments", "exponentials") else 1
        buffers = [Buffer(left, statistic=True) for _ in range(results)]
        expr = self.expr

        def make(outs: tuple[View, ...], values: dict[str, View]) -> Sweep:
            return Fold(outs, folding, tuple(values.items()), before=expr)

        def ordered(t: Tensor) -> Tensor:
            return (t.unsqueeze(1) if groups == 1 else t).permute(*kept, *sorted(gone))

        reads = _looked(self._seen(self.expr, groups), ordered)
        outs = tuple(Seen(each, lambda t: select(t, kept)) for each in buffers)
        computes = _computed(expr, folding, self._dims)
        does = self._does(f"gather {folding}")
        self._write(Leg(does, outs, tuple(reads.items()), make, computes))
        self.found += [(each, groups) for each in buffers]
        first = len(self.found) - results
        return tuple(map(Statistic, range(first, first + results)))

    def reduce(self, folding: Folding, axes: Sequence[int]) -> None:
        self._ready()
        dims = self._dims
        kept = [axis for axis in range(len(dims)) if axis not in axes]
        left = tuple(1 if axis in axes else size for axis, size in enumerate(dims))
        reads = _looked(self._seen(self.expr, 1), lambda t: t.permute(*kept, *sorted(axes)))
        before, names = self.expr, tuple(reads)

        def make(outs: tuple[View, ...], values: dict[str, View], after: Expr) -> Sweep:
            inner, others = _sides(values, names)
            return Fold(outs, folding, inner, before, after, others)

        computes = _computed(before, folding, dims)
        self._wait(_Open(Buffer(left), lambda t: select(t, kept), reads, make, computes))

    def slide(
        self,
        folding: Literal["max", "sum", "mean", "sign"],
        outputs: Sequence[int],
        *,
        sign: Value | None = None,
        **options: Any,
    ) -> None:
        self._ready()
        steps = zip(options.get("kernel", ()), options.get("stride", ()), strict=True)
        if (options.get("adaptive") or any(k > step for k, step in steps)) and _costly(self.expr):
            self.store()  # or it would be computed again for every window that a value is in
        n, c = self._dims[:2]
        reads = self._seen(self.expr, 1)
        before, names = self.expr, tuple(reads)
        result = Buffer((n, c, *outputs))
        if sign is not None:
            reads["sign"] = Seen(*self.value(sign, result.dims, 1))
        given: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list | tuple) else v for k, v in options.items()
        }

        def make(outs: tuple[View, ...], values: dict[str, View], after: Expr) -> Sweep:
            inner, others = _sides(values, names)
            return Slide(
                outs[0], folding, inner, before=before, after=after, others=others, **given
            )

        computes = _computed(before, folding, self._dims)
        self._wait(_Open(result, lambda t: t, reads, make, computes))

    def shuffle(self, factor: int) -> None:
        self._ready()
        n, c, *spatial = self._dims
        source, spread = shuffle_looks(self._dims, factor)
        reads = _looked(self._seen(self.expr, 1), source)
        before = self.expr

        def make(outs: tuple[View, ...], values: dict[str, View], after: Expr) -> Sweep:
            # Names behind the shuffle are others than those before it.
            moved = {name: symbol(f"after_{name}") for name in _names(after) if name != "x"}
            expr = substituted(after, {**moved, "x": before})
            return Each(outs[0], expr, tuple(values.items()))

        channels = c // factor ** len(spatial)
        result = Buffer((n, channels, *(size * factor for size in spatial)))
        computes = ((before, prod(self._dims)),)
        self._wait(_Open(result, spread, reads, make, computes))

    def cat(self, other: Given, channels: int, first: bool) -> None:
        self._owned()
        n, c, *spatial = self._dims
        joined = Buffer((n, c + channels, *spatial))
        self.buffer.part_of = (joined, channels if first else 0)
        part = Buffer((n, channels, *spatial), part_of=(joined, 0 if first else c))
        whole = Buffer((n, channels, *spatial), given=other.name)
        reads = (("x", Seen(whole, lambda t: t.expand(part.dims))),)
        self._write(Leg(f"copy {other.name}", (Seen(part, lambda t: t),), reads, _copied))
        self.buffer = joined

    def update(self, running: Running, mean: Statistic, var: Statistic, count: int) -> None:
        first, second = (self.found[each.number][0] for each in (mean, var))
        self.moves.append(Move(running, first, second, count))

    def store(self) -> None:
        """The values as they are now into memory."""
        if self.open is not None:
            opened, self.open = self.open, None
            others = self._seen(self.expr, 1, opened)
            expr, make = self.expr, opened.make
            reads = (*opened.reads.items(), *((f"after_{k}", v) for k, v in others.items()))
            out = Seen(opened.result, opened.look)
            computes = (*opened.computes, (expr, prod(opened.result.dims)))
            self._write(Leg(self._does(), (out,), reads, lambda o, v: make(o, v, expr), computes))
            self.buffer, self.expr, self.values = opened.result, X, {}
        elif self.expr is not X:
            groups, made = self._groups, Buffer(self.buffer.dims)
            reads = tuple(self._seen(self.expr, groups).items())
            expr = self.expr
            self._write(
                Leg(
                    self._does(),
                    (Seen(made, grouped(groups)),),
                    reads,
                    lambda outs, values: Each(outs[0], expr, tuple(values.items())),
                    ((expr, prod(made.dims)),),
                )
            )
            self.buffer, self.expr, self.values = made, X, {}

    # What the words have in common.

    @property
    def _dims(self) -> tuple[int, ...]:
        return self.open.result.dims if self.open else self.buffer.dims

    @property
    def _groups(self) -> int:
        """The groups of channels that the expression's statistics are of."""
        used = (v for v in self.values.values() if isinstance(v, Statistic))
        return max((self.found[each.number][1] for each in used), default=1)

    def _fits(self, expr: Expr, values: Mapping[str, Value]) -> bool:
        held = written_out(self.expr, 1)
        return written_out(expr, held) <= LARGEST and len(self.values) + len(values) <= WIDEST

    def _name(self, value: Value) -> str:
        for name, known in self.values.items():
            if known == value:
                return name
        name = f"v{len(self.values)}"
        self.values[name] = value
        return name

    def _ready(self) -> None:
        """Values that a sweep over (N, C, …) can read: none open, none that meet groups."""
        if self.open or self._groups > 1:
            self.store()

    def _owned(self) -> None:
        """Values in a buffer of their own, as they are now."""
        self.store()
        if self.buffer.foreign or self.buffer.part_of:
            made = Buffer(self.buffer.dims)
            reads = (("x", Seen(self.buffer, lambda t: t)),)
            self._write(Leg(self._does(), (Seen(made, lambda t: t),), reads, _copied))
            self.buffer = made

    def _seen(self, expr: Expr, groups: int, opened: _Open | None = None) -> dict[str, Seen]:
        """What an expression reads, by its names; ``opened``: at the results of that one."""
        used = _names(expr)
        found = {}
        if opened is None:
            found["x"] = Seen(self.buffer, grouped(groups))
        dims = opened.result.dims if opened else self.buffer.dims
        for name, value in self.values.items():
            if name in used:
                buffer, look = self.value(value, dims, groups)
                if opened is not None:
                    look = then(look, opened.look)
                found[name] = Seen(buffer, look)
        return found

    def value(self, value: Value, dims: tuple[int, ...], groups: int) -> tuple[Buffer, Look]:
        """Where a value lies, and how it meets all of ``dims``, its channels in ``groups``."""
        if isinstance(value, Statistic):
            buffer, own = self.found[value.number]
            if own == 1:
                return buffer, lambda t: grouped(groups)(t.squeeze(1).expand(dims))
            n, c, *rest = dims
            return buffer, lambda t: t.expand(n, own, c // own, *rest)
        axes = value.axes
        return Buffer((), given=value.name), lambda t: grouped(groups)(spread_over(t, axes, dims))

    def _wait(self, opened: _Open) -> None:
        self.open, self.expr, self.values = opened, X, {}

    def _write(self, leg: Leg) -> None:
        self.legs.append(leg)
        self.words = []

    def _does(self, more: str = "") -> str:
        return " · ".join([*self.words, *([more] if more else [])])


def _computed(before: Expr, folding: str, dims: Sequence[int]) -> tuple[tuple[Expr, int], ...]:
    """What a fold or a slide computes of values of these sizes before it has its result."""
    shares = ((call("exp", X), prod(dims)),) if folding in ("exponentials", "logsumexp") else ()
    return ((before, prod(dims)), *shares)


def _copied(outs: tuple[View, ...], values: dict[str, View]) -> Sweep:
    return Each(outs[0], X, tuple(values.items()))


def _sides(
    values: dict[str, View], names: tuple[str, ...]
) -> tuple[tuple[tuple[str, View], ...], tuple[tuple[str, View], ...]]:
    """What a fold or slide reads before it, and what its results meet."""
    inner = tuple((name, values[name]) for name in names)
    outer = tuple(
        (name.removeprefix("after_"), view) for name, view in values.items() if name not in names
    )
    return inner, outer


def taken(stage: Stage, dims: tuple[int, ...], cpu: bool) -> int:
    """Special functions that a stage takes at least, on values of these sizes.

    Of several sweeps the one that takes most counts: a softmax may keep the exponentials of its
    first. None are counted of a stage that torch alone has.
    """
    walk = Sweeping(Buffer(dims))
    try:
        walk.hear(stage)
    except NotImplementedError:
        return 0
    walk.store()
    return max((leg.specials(cpu) for leg in walk.legs), default=0)


def written_out(expr: Expr, held: int) -> int:
    """Parts of an expression written out, where its x has so many."""
    return int(folded(expr, lambda e: held if e is X else 1, lambda _, sizes: 1 + sum(sizes)))


def _costly(expr: Expr) -> bool:
    """Whether it has more than plain arithmetic in it."""
    used = (each.primitive for each in expr.walk() if isinstance(each, Call))
    return not all(PRIMITIVES[each].exact for each in used)


def _names(expr: Expr) -> set[str]:
    return {each.name for each in expr.walk() if isinstance(each, Name)}


def _looked(seen: Mapping[str, Seen], look: Look) -> dict[str, Seen]:
    """The same buffers, looked at once more."""
    return {name: Seen(each.buffer, then(each.look, look)) for name, each in seen.items()}


def unflattened(t: Tensor, axis: int, sizes: Sequence[int]) -> Tensor:
    """One axis as several."""
    found: Tensor = t.unflatten(axis, sizes)  # type: ignore[no-untyped-call]
    return found


def shuffle_looks(dims: Sequence[int], factor: int) -> tuple[Look, Look]:
    """Values of these sizes before a shuffle and after it, both by (n, c, and for each axis its
    size and its factor)."""
    _, c, *spatial = dims
    rank = len(spatial)
    parts = (c // factor**rank, *[factor] * rank)
    order = [0, 1, *(at for axis in range(rank) for at in (2 + rank + axis, 2 + axis))]

    def after(t: Tensor) -> Tensor:
        for axis in reversed(range(rank)):
            t = unflattened(t, 2 + axis, (spatial[axis], factor))
        return t

    return (lambda t: unflattened(t, 1, parts).permute(order)), after


def then(first: Look, second: Look) -> Look:
    """One look after another."""
    return lambda t: second(first(t))


def grouped(groups: int) -> Look:
    """Channels as groups of channels, where there are groups."""
    return (lambda t: unflattened(t, 1, (groups, -1))) if groups > 1 else (lambda t: t)


def select(t: Tensor, kept: Sequence[int]) -> Tensor:
    """The axes kept; along the others there is one."""
    for axis in reversed(range(t.dim())):
        if axis not in kept:
            t = t.select(axis, 0)
    return t


def spread_over(t: Tensor, axes: Sequence[int], dims: Sequence[int]) -> Tensor:
    """A tensor that differs along some axes, read along all of them."""
    steps = iter([step for size, step in zip(t.shape, t.stride(), strict=True) if size != 1])
    strides = [0] * len(dims)
    for axis in axes:
        if dims[axis] != 1:
            strides[axis] = next(steps)
    return t.as_strided(tuple(dims), strides)
