"""The core's sweeps against their definition: random views, types, expressions and foldings."""

from collections.abc import Iterator, Sequence
from math import prod
from random import Random
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from tests.sweeping import at, expected
from transfuse.backends.cpu.sweeps import prepare
from transfuse.maths.expr import Expr, X, call, name
from transfuse.sweeps import Each, Fold, Folding, Slide, Sweep, View

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
FOLDINGS = get_args(Folding)
Slots = list[Tensor]


class Maker:
    """Random views over memory of their own, small integers in it or real numbers."""

    def __init__(
        self, seed: str, real: bool = False, types: Sequence[torch.dtype] = DTYPES
    ) -> None:
        self.random = Random(seed)
        self.generator = torch.Generator().manual_seed(self.random.randrange(2**31))
        self.real, self.types = real, types
        self.slots: Slots = []

    def sizes(self, axes: int, most: int) -> tuple[int, ...]:
        """So many sizes, at most as many values in all."""
        found: list[int] = []
        for _ in range(axes):
            room = max(1, most // prod(found))
            found.append(self.random.choice((1, 2, 3, 5, 8, 17, 33, 70, 130, 1000)) % room or room)
        self.random.shuffle(found)
        return tuple(found)

    def view(self, sizes: Sequence[int], out: bool = False) -> View:
        """A view with its axes in any order, gaps between them, some of them expanded."""
        order = list(range(len(sizes)))
        if self.random.random() < 0.6:
            self.random.shuffle(order)
        strides, span = [0] * len(sizes), 1
        for axis in reversed(order):
            if not out and self.random.random() < 0.15:
                continue
            strides[axis] = span
            span *= sizes[axis]
            if self.random.random() < 0.2:
                span += self.random.choice((1, 3, 16))
            if axis == order[-1] and self.random.random() < 0.1:
                strides[axis], span = 2, 2 * span
        offset = self.random.choice((0, 0, 1, 7))
        dtype = self.random.choice(self.types)
        if self.real:
            memory = torch.randn(span + offset, generator=self.generator, dtype=torch.float64)
        else:
            memory = torch.randint(-4, 5, (span + offset,), generator=self.generator)
        self.slots.append(memory.to(dtype))
        return View(len(self.slots) - 1, dtype, tuple(sizes), tuple(strides), offset)

    def values(self, sizes: Sequence[int], names: str) -> tuple[tuple[str, View], ...]:
        return tuple((each, self.view(sizes)) for each in names)

    def expr(self, names: str, depth: int = 3) -> Expr:
        """An expression that small integers pass exactly."""
        if depth == 0 or self.random.random() < 0.2:
            return name(self.random.choice(names)) if self.random.random() < 0.8 else X * 0 + 2.0
        word = self.random.choice(
            ("add", "sub", "minimum", "maximum", "mul", "neg", "abs", "where")
        )
        if word == "where":
            parts = [self.expr(names, depth - 1) for _ in range(4)]
            return call("where", parts[0] < parts[1], parts[2], parts[3])
        count = 1 if word in ("neg", "abs") else 2
        parts = [self.expr(names, depth - 1) for _ in range(count)]
        return call(word, *(parts if word != "mul" else (parts[0], 2.0)))


def run(sweep: Sweep, slots: Slots, threads: int = 1) -> Slots:
    """The slots after a sweep."""
    copies = [each.clone() for each in slots]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        prepare(sweep)([each.data_ptr() for each in copies])
    finally:
        torch.set_num_threads(before)
    return copies


def outs(sweep: Sweep) -> tuple[View, ...]:
    return sweep.outs if isinstance(sweep, Fold) else (sweep.out,)


def read(sweep: Sweep) -> Iterator[View]:
    """The views that matter: those of names in expressions, and results."""
    yield from outs(sweep)
    used: set[str] = {"sign"}
    for expr in (sweep.expr,) if isinstance(sweep, Each) else (sweep.before, sweep.after):
        used |= set(expr.names)
    others = () if isinstance(sweep, Each) else sweep.others
    yield from (view for each, view in (*sweep.values, *others) if each in used)


def right(sweep: Sweep, slots: Slots, ulp: float | None = None) -> None:
    """Bit for bit, or within so many units of the last place; and nothing else is written."""
    found = run(sweep, slots)
    wide = any(view.dtype == torch.float64 for view in read(sweep))
    for view, exact in zip(outs(sweep), expected(sweep, slots), strict=True):
        result = at(view, found)
        if ulp is None:
            assert torch.equal(result, exact.to(view.dtype)), sweep
        else:
            stored = torch.finfo(view.dtype)
            compute = torch.finfo(torch.float64 if wide else torch.float32).eps
            bound = ulp * compute * exact.abs().clamp(min=1) + stored.eps * exact.abs()
            bound = bound + stored.smallest_normal * stored.eps
            same = (result.double() == exact) | (result.isnan() & exact.isnan())
            near = (result.double() - exact).abs() <= bound
            assert bool((same | near).all()), (sweep, (result.double() - exact).abs().max())
    for number, (old, new) in enumerate(zip(slots, found, strict=True)):
        written = torch.zeros(len(old), dtype=torch.bool)
        for view in outs(sweep):
            if view.slot == number:
                at(view, [written] * (number + 1)).fill_(True)
        assert torch.equal(old[~written], new[~written])


def each_sweep(make: Maker) -> Each:
    sizes = make.sizes(make.random.randrange(1, 7), 20000)
    return Each(make.view(sizes, out=True), make.expr("xyz"), make.values(sizes, "xyz"))


def fold_sweep(make: Maker, folding: Folding) -> Fold:
    sizes = make.sizes(make.random.randrange(1, 7), 40000)
    kept = make.random.randrange(len(sizes) + 1)
    two = folding in ("moments", "exponentials")
    results = tuple(make.view(sizes[:kept], out=True) for _ in range(1 + two))
    before = X if make.random.random() < 0.5 else make.expr("xy")
    if two:
        return Fold(results, folding, make.values(sizes, "xy"), before)
    after = X if make.random.random() < 0.5 else X + name("z")
    values, others = make.values(sizes, "xy"), make.values(sizes[:kept], "z")
    return Fold(results, folding, values, before, after, others)


def slide_sweep(make: Maker, folding: Any) -> Slide:
    random, rank = make.random, make.random.randrange(1, 4)
    n, c = random.choice((1, 2, 3)), random.choice((1, 2, 5, 16, 40, 300))
    inputs = tuple(
        random.choice((1, 2, 4, 7, 9, 20, 65)) % (30 if rank == 3 else 100) for _ in range(rank)
    )
    if rank == 3:
        inputs, c = tuple(min(7, each) for each in inputs), min(c, 16)
    adaptive = random.random() < 0.3
    options: dict[str, tuple[int, ...]] = {}
    if adaptive:
        outputs = tuple(random.randrange(1, size + 3) for size in inputs)
    else:
        options["kernel"] = tuple(random.choice((1, 2, 3, 5, 9)) for _ in inputs)
        options["stride"] = tuple(random.choice((1, 1, 2, 2, 3, 4, 5)) for _ in inputs)
        options["dilation"] = tuple(random.choice((1, 1, 1, 2, 3)) for _ in inputs)
        options["padding"] = tuple(random.randrange(k // 2 + 1) for k in options["kernel"])
        outputs = tuple(
            max(1, (size + 2 * p - d * (k - 1) - 1 + s - 1) // s + 1)
            for size, k, s, p, d in zip(
                inputs,
                *(options[o] for o in ("kernel", "stride", "padding", "dilation")),
                strict=True,
            )
        )
        outputs = tuple(
            min(o, (size + p - 1) // s + 1)
            for o, size, p, s in zip(
                outputs, inputs, options["padding"], options["stride"], strict=True
            )
        )
    before = X if random.random() < 0.5 else make.expr("xy")
    after = X if random.random() < 0.5 else X + name("z")
    others = make.values((n, c, *outputs), "z")
    if folding == "sign":
        others = (*others, ("sign", make.view((n, c, *outputs))))
    return Slide(
        make.view((n, c, *outputs), out=True),
        folding,
        make.values((n, c, *inputs), "xy"),
        **options,
        adaptive=adaptive,
        counts_padding=random.random() < 0.5,
        divisor=random.choice((None, None, 4.0)),
        before=before,
        after=after,
        others=others,
    )


EXACT = [each for each in FOLDINGS if each in ("sum", "max", "min")]
SLIDES = ("max", "sum", "mean", "sign")


@pytest.mark.parametrize("seed", range(60))
def test_each_of_integers(seed: int) -> None:
    make = Maker(f"each {seed}")
    right(each_sweep(make), make.slots)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("folding", EXACT)
def test_folds_of_integers(folding: Folding, seed: int) -> None:
    make = Maker(f"{folding} {seed}", types=(torch.float32, torch.float64))
    right(fold_sweep(make, folding), make.slots)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("folding", FOLDINGS)
def test_folds_of_real_numbers(folding: Folding, seed: int) -> None:
    make = Maker(f"real {folding} {seed}", real=True)
    sweep = fold_sweep(make, folding)
    values = prod(sweep.values[0][1].sizes) / max(1, prod(sweep.outs[0].sizes))
    right(sweep, make.slots, ulp=200 + (values if folding in ("sum", "exponentials") else 0))


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("folding", SLIDES)
def test_slides(folding: str, seed: int) -> None:
    make = Maker(f"{folding} {seed}", types=(torch.float32, torch.float64, torch.bfloat16))
    sweep = slide_sweep(make, folding)
    try:
        right(sweep, make.slots, ulp=8 if folding == "mean" else 0)
    except IndexError:  # the definition has no smallest of no values
        assert folding == "sign"
