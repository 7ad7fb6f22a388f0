"""Sweeps as the core takes them: axes put into the order in which memory lies, and made few."""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, prod
from typing import Any, NamedTuple

import torch

from transfuse.backends.cpu import library, threads
from transfuse.backends.cpu.bytecode import Code, assemble
from transfuse.elements import BY_DTYPE
from transfuse.maths.expr import Expr, Name, X
from transfuse.sweeps import Each, Fold, Slide, Sweep, View

Named = Sequence[tuple[str, View]]

SHORT_ROW = 8
"""Values: fewer in a row are too few for vectors."""


class _Axis(NamedTuple):
    """A size, and how far apart its places are in each view."""

    size: int
    strides: tuple[int, ...]


def prepare(sweep: Sweep) -> Callable[[Sequence[int]], None]:
    """The sweep, ready to run over tensors at the addresses of its slots.

    The result is the same bits for any number of threads. Raises ValueError where views do not fit
    one another, ``TooLong`` for an expression beyond what the core holds.
    """
    _consistent(sweep)
    outs = sweep.outs if isinstance(sweep, Fold) else (sweep.out,)
    if not prod(outs[0].sizes):
        return lambda slots: None
    from transfuse.backends.cpu.hoisting import hoisted  # an import of the package leaves it alone

    rest, parts, size = hoisted(sweep)
    last, before = _ready(rest), [_each(each) for each in parts]
    if not before:
        return last

    def run(slots: Sequence[int]) -> None:
        scratch = torch.empty(size, dtype=torch.uint8, device="cpu")
        addresses = [*slots, scratch.data_ptr()]
        for ready in (*before, last):
            ready(addresses)

    return run


def _ready(sweep: Sweep) -> "_Ready":
    if isinstance(sweep, Each):
        return _each(sweep)
    return _fold(sweep) if isinstance(sweep, Fold) else _slide(sweep)


def _each(sweep: Each) -> "_Ready":
    code, values = _read(sweep.expr, sweep.values, None)
    views = (sweep.out, *values)
    axes = _merged(_axes(sweep.out.sizes, [view.strides for view in views], 0))
    # Beside the last axis stands one along which a view that lies otherwise is near; or behind it,
    # where it is much longer.
    for at in range(1, len(views)):
        near = min(axes, key=lambda axis: axis.strides[at] or inf, default=None)
        if near is not None and near is not axes[-1] and near.strides[at]:
            longer = near.strides[at] == 1 and near.size > axes[-1].size < SHORT_ROW
            axes.remove(near)
            axes.insert(len(axes) if longer else -1, near)
            break
    alone = _Axis(1, (0,) * len(views))
    axes = [alone] * (2 - len(axes)) + axes
    return _Ready("each", "sum", axes, [], views[:1], views[1:], (), code, None)


def _fold(sweep: Fold) -> "_Ready":
    before, values = _read(sweep.before, sweep.values, None)
    after, others = _read(sweep.after, sweep.others, "x")
    views = (*sweep.outs, *values, *others)
    kept = len(sweep.outs[0].sizes)
    sizes = sweep.values[0][1].sizes
    strides = [(*view.strides, *(0,) * (len(sizes) - kept))[: len(sizes)] for view in views]
    first = len(sweep.outs)
    main = max(
        range(first, first + len(values)),
        key=lambda at: prod(n for n, s in zip(sizes, strides[at], strict=True) if s),
        default=0,
    )
    outer = _merged(_axes(sizes[:kept], [each[:kept] for each in strides], main))
    inner = _merged(_axes(sizes[kept:], [each[kept:] for each in strides], main))
    alone = [_Axis(1, (0,) * len(views))]
    outer, inner = outer or alone, inner or alone
    near, far = outer[-1].strides[main], inner[-1].strides[main]
    across = near > 0 and (near < far or far == 0)
    read = range(first, first + len(values))
    joined = 0
    if not across and _short_rows(outer[-1], inner, read):
        joined = inner[-1].size
        outer, inner, across = _widened(outer, inner, read), inner[:-1], True
    found = before if not isinstance(sweep.before, Name) else None
    then = after if sweep.after is not X else None
    return _Ready(
        *("fold", sweep.folding, outer, inner, sweep.outs, values, others, found, then),
        across=across,
        joined=joined,
    )


def _short_rows(outer: _Axis, inner: Sequence[_Axis], read: Iterable[int]) -> bool:
    """Whether a fold goes along short rows that lie beside those of the next result, as over
    groups of channels where these are innermost: vectors lie better across several of them."""
    last = inner[-1]
    beside = all(outer.strides[at] == last.size * last.strides[at] for at in read)
    return beside and len(inner) > 1 and 1 < last.size <= library.JOINED


def _widened(outer: Sequence[_Axis], inner: Sequence[_Axis], read: Iterable[int]) -> list[_Axis]:
    """The axes that are kept, where the values along the last one that is folded are kept, too."""
    *rest, near = outer
    last = inner[-1]
    strides = [last.strides[at] if at in read else step for at, step in enumerate(near.strides)]
    return [*rest, _Axis(near.size * last.size, tuple(strides))]


def _slide(sweep: Slide) -> "_Ready":
    before, values = _read(sweep.before, sweep.values, None)
    after, others = _read(sweep.after, sweep.others, "x")
    if sweep.folding == "sign":
        others = (*others, dict(sweep.others)["sign"])
    views = (sweep.out, *values, *others)
    missing = 5 - len(sweep.out.sizes)

    def five(values: Sequence[int], fill: int) -> tuple[int, ...]:
        return (*values[:2], *(fill,) * missing, *values[2:])

    def three(values: Sequence[int], fill: int) -> Any:
        return library.Sizes(*(fill,) * (3 - len(values)), *values)

    sizes = five(sweep.out.sizes, 1)
    strides = [five(view.strides, 0) for view in views]
    axes = [_Axis(sizes[a], tuple(each[a] for each in strides)) for a in range(5)]
    inputs = sweep.values[0][1].sizes
    main = strides[1 if values else 0]
    channel, last = main[1], main[4] if inputs[-1] > 1 else 0
    across = sizes[1] > 1 and channel > 0 and (channel < last or not last)
    found = before if not isinstance(sweep.before, Name) else None
    then = after if sweep.after is not X else None
    return _Ready(
        *("slide", sweep.folding, axes, [], (sweep.out,), values, others, found, then),
        across=across,
        inputs=three(inputs[2:], 1),
        kernel=three(sweep.kernel, 1),
        stride=three(sweep.stride, 1),
        padding=three(sweep.padding, 0),
        dilation=three(sweep.dilation, 1),
        adaptive=sweep.adaptive,
        counts_padding=sweep.counts_padding,
        divisor=sweep.divisor or 0.0,
    )


class _Ready:
    """A sweep as the core takes it; of a call's own there are only addresses to fill in."""

    def __init__(
        self,
        kind: str,
        folding: str,
        kept: Sequence[_Axis],
        folded: Sequence[_Axis],
        outs: Sequence[View],
        values: Sequence[View],
        others: Sequence[View],
        before: Code | None,
        after: Code | None,
        **fields: Any,
    ) -> None:
        axes = (*kept, *folded)

        def structure(view: View, at: int) -> library.View:
            element = library.ELEMENTS.index(BY_DTYPE[view.dtype].name)
            strides = library.Axes(*(axis.strides[at] for axis in axes))
            return library.View(element, None, strides)

        views = (*outs, *values, *others)
        found = [structure(view, at) for at, view in enumerate(views)]
        bytes_ = [view.offset * view.dtype.itemsize for view in views]
        self._places = [(view.slot, offset) for view, offset in zip(views, bytes_, strict=True)]
        self._outs = len(outs)
        self._values = (library.View * len(values))(*found[len(outs) : len(outs) + len(values)])
        self._others = (library.View * len(others))(*found[len(outs) + len(values) :])
        self._sweep = library.Sweep(
            kind=library.KINDS.index(kind),
            folding=library.FOLDINGS.index(folding),
            kept=len(kept),
            folded=len(folded),
            sizes=library.Axes(*(axis.size for axis in axes)),
            values_count=len(values),
            others_count=len(others),
            outs=(library.View * 2)(*found[: len(outs)]),
            before=before and ctypes.pointer(before.structure()),
            after=after and ctypes.pointer(after.structure()),
            **fields,
        )
        self._idle: list[_Filled] = []

    def __call__(self, slots: Sequence[int]) -> None:
        core = library.load()
        assert core is not None
        try:
            filled = self._idle.pop()
        except IndexError:
            filled = self._filled()
        for (words, at), (slot, offset) in zip(filled.addresses, self._places, strict=True):
            words[at] = slots[slot] + offset
        status = core.transfuse_sweep_run(filled.sweep, threads.count())
        self._idle.append(filled)
        library.check(core, status)

    def _filled(self) -> "_Filled":
        sweep = library.Sweep.from_buffer_copy(self._sweep)
        values = type(self._values).from_buffer_copy(self._values)
        others = type(self._others).from_buffer_copy(self._others)
        addresses = [
            *_addresses(sweep, library.Sweep.outs.offset, self._outs),
            *_addresses(values, 0, len(values)),
            *_addresses(others, 0, len(others)),
        ]
        sweep.values, sweep.others = values, others
        return _Filled(ctypes.pointer(sweep), addresses)


class _Filled(NamedTuple):
    """The sweep of one call, and the words in it that are addresses of its views.

    Each call takes one for itself and gives it back: threads never share one.
    """

    sweep: Any
    addresses: list[tuple[memoryview, int]]


def _addresses(
    structure: ctypes.Structure | ctypes.Array[library.View], first: int, count: int
) -> Iterator[tuple[memoryview, int]]:
    """Where the addresses of so many views stand in a structure, from a byte on."""
    if not count:
        return
    words, size = memoryview(structure).cast("B").cast("Q"), ctypes.sizeof(library.View)
    for at in range(first + library.View.data.offset, first + count * size, size):
        yield words, at // 8


def _read(expr: Expr, named: Named, running: str | None) -> tuple[Code, tuple[View, ...]]:
    """The code of an expression, and the views it reads, in its order."""
    known = dict(named)
    unknown = [name for name in expr.names if name not in known and name != running]
    if unknown:
        raise ValueError(f"{expr} reads {', '.join(unknown)}; its values are {', '.join(known)}")
    code = assemble(expr, {}, {name: name for name in known}, running)
    return code, tuple(known[name] for name in code.operands)


def _axes(sizes: Sequence[int], strides: Sequence[Sequence[int]], main: int) -> list[_Axis]:
    """The axes that are longer than 1, those along which the main view is near last."""
    columns = [tuple(each[a] for each in strides) for a in range(len(sizes))]
    axes = [_Axis(size, column) for size, column in zip(sizes, columns, strict=True) if size != 1]
    return sorted(axes, key=lambda axis: axis.strides[main] or inf, reverse=True)


def _merged(axes: Iterable[_Axis]) -> list[_Axis]:
    """Axes that follow one another in every view as one."""
    found: list[_Axis] = []
    for axis in axes:
        if found and found[-1].strides == tuple(axis.size * stride for stride in axis.strides):
            found[-1] = _Axis(found[-1].size * axis.size, axis.strides)
        else:
            found.append(axis)
    return found


def _consistent(sweep: Sweep) -> None:
    """Raise where the views of a sweep do not fit one another."""
    named = sweep.values if isinstance(sweep, Each) else (*sweep.values, *sweep.others)
    outs = sweep.outs if isinstance(sweep, Fold) else (sweep.out,)
    for name, view in (*(("out", out) for out in outs), *named):
        if len(view.sizes) != len(view.strides):
            raise ValueError(f"{name} has {len(view.sizes)} sizes and {len(view.strides)} strides")
        if view.dtype not in BY_DTYPE:
            raise ValueError(
                f"{name} is of type {view.dtype}, not of {', '.join(map(str, BY_DTYPE))}"
            )
    sizes = outs[0].sizes

    def same(name: str, view: View, expected: Sequence[int]) -> None:
        if view.sizes != tuple(expected):
            raise ValueError(f"{name} has the sizes {view.sizes}, not {tuple(expected)}")

    for out in outs:
        same("out", out, sizes)
    inner = sizes
    if not isinstance(sweep, Each):
        if not sweep.values:
            raise ValueError("a sweep that folds has no values")
        inner = sweep.values[0][1].sizes
        kept = len(sizes) if isinstance(sweep, Fold) else 2
        same("out", View(0, outs[0].dtype, sizes[:kept], ()), inner[:kept])
        for name, view in sweep.others:
            same(name, view, sizes)
    for name, view in sweep.values:
        same(name, view, inner)
    if isinstance(sweep, Fold):
        two = sweep.folding in ("exponentials", "moments")
        if len(outs) != 1 + two:
            raise ValueError(f"{sweep.folding} has {1 + two} results, not {len(outs)}")
        if two and (sweep.after is not X or sweep.others):
            raise ValueError(f"{sweep.folding} has two results, and no expression after them")
    if isinstance(sweep, Slide):
        rank = len(sizes) - 2
        if not 1 <= rank <= 3 or len(inner) != len(sizes):
            raise ValueError(f"windows slide along one to three axes: from {inner} to {sizes}")
        options = (sweep.kernel, sweep.stride, sweep.padding, sweep.dilation)
        if not sweep.adaptive and any(len(each) != rank for each in options):
            raise ValueError(f"kernel, stride, padding and dilation {options} need {rank} each")
        if sweep.folding == "sign" and "sign" not in dict(sweep.others):
            raise ValueError("the folding sign reads another value of that name")
