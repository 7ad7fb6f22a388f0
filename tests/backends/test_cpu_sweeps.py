"""The core's sweeps against their definition: random views, types, expressions and foldings."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from random import Random
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from tests.sweeping import at, expected
from transfuse.backends.cpu.bytecode import TooLong
from transfuse.backends.cpu.sweeps import prepare
from transfuse.maths.expr import Expr, X, call, name, parse
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
        assert torch.equal(old[~written].view(torch.uint8), new[~written].view(torch.uint8))


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


@pytest.mark.parametrize("seed", range(4))
def test_every_instruction_set(seed: int, isa: str) -> None:
    make = Maker(f"{isa} each {seed}")
    right(each_sweep(make), make.slots)
    for folding in FOLDINGS:
        make = Maker(f"{isa} {folding} {seed}", real=True)
        sweep = fold_sweep(make, folding)
        values = prod(sweep.values[0][1].sizes) / max(1, prod(sweep.outs[0].sizes))
        right(sweep, make.slots, ulp=200 + (values if folding in ("sum", "exponentials") else 0))
    for folding in ("max", "sum"):
        make = Maker(f"{isa} slide {folding} {seed}", types=(torch.float32, torch.bfloat16))
        right(slide_sweep(make, folding), make.slots, ulp=0)


@pytest.mark.parametrize("folding", FOLDINGS)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_as_many_threads_as_there_may_be(folding: Folding, order: tuple[int, int]) -> None:
    """The same bits: a few results of long folds, which threads share."""
    x = torch.randn(6, 70000, generator=torch.Generator().manual_seed(1))
    memory = x.movedim((0, 1), order).contiguous()
    strides = (70000, 1) if order == (0, 1) else (1, 6)
    two = folding in ("moments", "exponentials")
    results = tuple(View(1, torch.float32, (6,), (1,), 6 * i) for i in range(1 + two))
    sweep = Fold(results, folding, (("x", View(0, torch.float32, (6, 70000), strides)),))
    slots = [memory.flatten(), torch.zeros(12)]
    right(sweep, slots, ulp=100 + (2000 if folding in ("sum", "exponentials") else 0))
    one = run(sweep, slots, 1)[1]
    assert all(torch.equal(run(sweep, slots, count)[1], one) for count in (2, 3, 16))


def test_threads_of_each_and_slide() -> None:
    for seed in range(5):
        make = Maker(f"threads {seed}", real=True)
        for sweep in (each_sweep(make), slide_sweep(make, "mean")):
            found = [run(sweep, make.slots, count) for count in (1, 2, 16)]
            for slots in found[1:]:
                for mine, other in zip(found[0], slots, strict=True):
                    torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)


SPECIAL = (
    *([0.0] * 5, [-torch.inf] * 5, [torch.inf] * 5, [torch.nan] * 5),
    *([1.0, torch.inf, 2, 3, 4], [1.0, -torch.inf, 2, 3, 4], [1.0, 2, torch.nan, 3, 4]),
    *([torch.inf, -torch.inf, 1, 2, 3], [torch.nan, torch.inf, 1, 2, 3], [1e38] * 5, [-1e38] * 5),
)


@pytest.mark.parametrize("folding", FOLDINGS)
@pytest.mark.parametrize("times", [1, 9, 5000])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_and_inf_in_folds(
    folding: Folding, times: int, across: bool, dtype: torch.dtype
) -> None:
    if folding in ("squares", "moments", "sum", "mean") and dtype is torch.float32:
        rows = [row for row in SPECIAL if abs(row[0]) != 1e38]  # beyond float32
    else:
        rows = list(SPECIAL)
    x = torch.tensor(rows, dtype=dtype).repeat(1, times)
    n, length = x.shape
    memory = x.t().contiguous() if across else x
    strides = (1, n) if across else (length, 1)
    two = folding in ("moments", "exponentials")
    results = tuple(View(1, dtype, (n,), (1,), n * i) for i in range(1 + two))
    sweep = Fold(results, folding, (("x", View(0, dtype, (n, length), strides)),))
    right(sweep, [memory.flatten(), torch.zeros(2 * n, dtype=dtype)], ulp=32)


def test_a_variance_beside_a_large_mean() -> None:
    """Means of 10^6 with a spread of 1: squares of the raw values would leave nothing of it."""
    for across in (False, True):
        x = torch.randn(8, 40000, generator=torch.Generator().manual_seed(2)) + 1e6
        memory = x.t().contiguous() if across else x
        strides = (1, 8) if across else (40000, 1)
        results = tuple(View(1, torch.float32, (8,), (1,), 8 * i) for i in range(2))
        sweep = Fold(results, "moments", (("x", View(0, torch.float32, (8, 40000), strides)),))
        slots = [memory.flatten(), torch.zeros(16)]
        exact = expected(sweep, slots)[1]
        found = run(sweep, slots)[1][8:]
        assert bool(((found.double() - exact).abs() <= 1e-6 * exact).all())


def test_nan_and_windows_without_values() -> None:
    x = torch.tensor([1.0, torch.nan, 3, -torch.inf, torch.inf, 2, -5, 4]).view(1, 1, 8)
    view, out = (
        View(0, torch.float32, (1, 1, 8), (8, 8, 1)),
        View(1, torch.float32, (1, 1, 9), (9, 9, 1)),
    )
    for folding, (kernel, padding) in product(("max", "sum", "mean"), ((2, 1), (1, 1), (3, 2))):
        if kernel == 3:
            out = replace(out, sizes=(1, 1, 10), strides=(10, 10, 1))
        sweep = Slide(out, folding, (("x", view),), (kernel,), (1,), (padding,), (1,))  # type: ignore[arg-type]
        right(sweep, [x.flatten(), torch.zeros(10)], ulp=4)
        right(replace(sweep, counts_padding=False), [x.flatten(), torch.zeros(10)], ulp=4)


def test_results_may_replace_what_they_come_from() -> None:
    for strides in ((33, 1), (1, 70)):
        view = View(0, torch.float32, (70, 33), strides)
        sweep = Each(view, X * 2 + name("y"), (("x", view), ("y", view)))
        right(sweep, [torch.randint(-4, 5, (70 * 33,)).float()])


def test_expressions_of_any_length() -> None:
    """More values at the same time than strips of full length have room for."""
    for count in (17, 100, 500):
        parts = [X * float(i) for i in range(1, count)]
        total = parts[0]
        for each in parts[1:]:
            total = call("maximum", total, each)
        for each in parts:
            total = total - each
        view, out = (View(slot, torch.float64, (3000,), (1,)) for slot in (0, 1))
        slots = [torch.randint(-4, 5, (3000,)).double(), torch.zeros(3000).double()]
        right(Each(out, total, (("x", view),)), slots)


def test_no_values() -> None:
    empty = View(0, torch.float32, (2, 0), (1, 1))
    for folding, result in (
        ("sum", 0.0),
        ("max", -torch.inf),
        ("min", torch.inf),
        ("logsumexp", -torch.inf),
    ):
        sweep = Fold((View(1, torch.float32, (2,), (1,)),), folding, (("x", empty),))  # type: ignore[arg-type]
        assert run(sweep, [torch.zeros(1), torch.zeros(2)])[1].tolist() == [result] * 2
    nothing = View(0, torch.float32, (0, 3), (3, 1))
    prepare(Each(replace(nothing, slot=1), X, (("x", nothing),)))([0, 0])


def test_a_number_in_place_of_values() -> None:
    view, out = (View(slot, torch.float32, (2, 3, 6), (18, 6, 1)) for slot in (0, 1))
    values, slots = (("x", view),), [torch.zeros(36), torch.zeros(36)]
    two = parse("2.0")
    right(Each(out, two, values), slots)
    right(Fold((View(1, torch.float32, (2, 3), (3, 1)),), "sum", values, two), slots)
    right(Slide(out, "sum", values, (3,), (1,), (1,), (1,), before=two), slots)


V = View(0, torch.float32, (2, 3), (3, 1))


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        (Each(V, parse("x + y"), (("x", V),)), "reads y; its values are x"),
        (Each(V, X, (("x", replace(V, sizes=(3, 2))),)), r"x has the sizes \(3, 2\), not \(2, 3\)"),
        (Each(V, X, (("x", replace(V, strides=(1,))),)), "x has 2 sizes and 1 strides"),
        (Each(V, X, (("x", replace(V, dtype=torch.int32)),)), "x is of type torch.int32"),
        (Fold((V,), "moments", (("x", V),)), "moments has 2 results, not 1"),
        (Fold((V, V), "moments", (("x", V),), after=-X), "no expression after"),
        (Slide(V, "max", (("x", V),)), "one to three axes"),
    ],
)
def test_views_that_do_not_fit_are_refused(sweep: Sweep, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        prepare(sweep)


def test_too_many_values_at_the_same_time() -> None:
    parts = [X * float(i) for i in range(1, 600)]
    total = parts[0]
    for each in (*parts[1:], *parts):
        total = total + each
    with pytest.raises(TooLong, match="held at the same time; 512 is the most"):
        prepare(Each(V, total, (("x", V),)))
