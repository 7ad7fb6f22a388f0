"""Sweeps in Triton: in the interpreter against their definition, and as machine code."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from tests.random_sweeps import FOLDINGS, KINDS, Drawn, drawn, judge
from transfuse.backends.triton.sweeps import prepare
from transfuse.maths.expr import parse
from transfuse.sweeps import Each, Fold, Slide, Sweep, View

from .conftest import Child

EXACT = ("each", "sum", "max", "min", "slide max", "slide sum", "slide sign")
"""Kinds whose results are bit for bit those of exact arithmetic, on small integers."""
OTHERS = (torch.float32, torch.bfloat16, torch.float64)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Child]:
    child = Child("interpret", "swept.py", TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    yield child
    child.close()


def swept(interpreter: Child, given: Drawn, exact: bool = False, wide: bool = False) -> list[str]:
    """Assert that a sweep is right, and gives the same bits again; the kernels launched."""
    answer = interpreter(sweep=given.sweep, slots=given.slots, wide=wide)
    first, second = answer["slots"]
    judge(given, first, exact)
    pairs = zip(first, second, strict=True)
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)
    launches: list[str] = answer["launches"]
    return launches


def seeds(quick: int, all_: int) -> list[Any]:
    long = [pytest.param(seed, marks=pytest.mark.long) for seed in range(quick, all_)]
    return [*range(quick), *long]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(2, 20))
def test_integers(kind: str, seed: int, interpreter: Child) -> None:
    swept(interpreter, drawn(seed, kind, "integers"), exact=kind in EXACT)


def test_slots_of_other_sweeps(interpreter: Child) -> None:
    """Partials of programs that share a result go to scratch memory, not to the slots behind."""
    x = torch.arange(200_000, dtype=torch.float32) % 7
    values = View(0, torch.float32, (1, len(x)), (0, 1))
    fold = Fold((View(1, torch.float32, (1,), (1,)),), "sum", (("x", values),))
    others = [torch.full((4096,), 5.0) for _ in range(3)]
    answer = interpreter(sweep=fold, slots=[x, torch.zeros(1), *others])
    assert answer["launches"] == ["fold", "join"]
    for slots in answer["slots"]:
        assert slots[1].item() == x.sum().item()
        assert all(torch.equal(a, b) for a, b in zip(slots[2:], others, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(1, 20))
@pytest.mark.parametrize("fill", ["real", "special"])
def test_values(kind: str, seed: int, fill: str, interpreter: Child) -> None:
    swept(interpreter, drawn(seed, kind, fill))


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_of_64_bits(kind: str, interpreter: Child) -> None:
    swept(interpreter, drawn(0, kind, "integers"), exact=kind in EXACT, wide=True)


def filled(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, sizes, generator=generator).to(dtype)


def empty(*sizes: int) -> torch.Tensor:
    return torch.full(sizes, torch.nan)


def whole(slot: int, tensor: torch.Tensor) -> View:
    return View(slot, tensor.dtype, tuple(tensor.shape), tensor.stride())


def results(folding: str, slot: int, tensor: torch.Tensor) -> tuple[View, ...]:
    """The one or two results of a fold, side by side in memory."""
    one = View(slot, tensor.dtype, tuple(tensor.shape[1:]), tensor.stride()[1:])
    two = replace(one, offset=tensor.stride(0))
    return (one, two) if folding in ("moments", "exponentials") else (one,)


@pytest.mark.parametrize("folding", FOLDINGS)
def test_long_folds_are_shared(folding: Any, interpreter: Child) -> None:
    """Few results of many values: partials, then their join, exactly where the fold is exact."""
    x, out = filled(40, 3, 25, 27), empty(2, 3)
    source = View(1, x.dtype, (3, 40, 25, 27), (675, 2025, 27, 1))
    sweep = Fold(results(folding, 0, out), folding, (("x", source),))
    given = Drawn(sweep, [out.flatten(), x.flatten()])
    assert swept(interpreter, given, exact=folding in EXACT) == ["fold", "join"]


@pytest.mark.parametrize("folding", FOLDINGS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("shared", [False, True])
def test_one_value_that_is_not_finite(
    folding: Any, value: float, shared: bool, interpreter: Child
) -> None:
    many = 40_000 if shared else 70
    x, out = filled(2, many).flatten(), empty(2, 2)
    x[many + many // 2] = value
    source = View(1, x.dtype, (2, many), (many, 1))
    sweep = Fold(results(folding, 0, out), folding, (("x", source),))
    swept(interpreter, Drawn(sweep, [out.flatten(), x]))


@pytest.mark.parametrize("folding", ["logsumexp", "exponentials"])
def test_nothing_but_minus_infinity(folding: Any, interpreter: Child) -> None:
    x, out = torch.full((140,), -torch.inf), empty(2, 2)
    sweep = Fold(results(folding, 0, out), folding, (("x", View(1, x.dtype, (2, 70), (70, 1))),))
    swept(interpreter, Drawn(sweep, [out.flatten(), x]))


def test_moments_far_from_zero(interpreter: Child) -> None:
    """A mean of 1e4 beside a deviation of 1: no difference of large sums."""
    generator = torch.Generator().manual_seed(0)
    x, out = torch.randn(3, 20_000, generator=generator) + 1e4, empty(2, 3)
    sweep = Fold(results("moments", 0, out), "moments", (("x", whole(1, x)),))
    answer = interpreter(sweep=sweep, slots=[out.flatten(), x.flatten()])
    mean, var = answer["slots"][0][0].view(2, 3).double()
    right = x.double().var(1, correction=0)
    assert (mean - x.double().mean(1)).abs().max() < 2e-3
    assert ((var - right) / right).abs().max() < 1e-3


LARGE: dict[str, tuple[dict[str, Any], tuple[int, ...], list[str]]] = {
    "global": ({"adaptive": True}, (1, 1), ["fold"]),
    "adaptive": ({"adaptive": True}, (4, 2), ["fold"]),
    "apart": ({"kernel": (9, 10), "stride": (9, 10), "divisor": 7.0}, (4, 2), ["fold"]),
    "not even": ({"adaptive": True}, (5, 2), ["slide"]),
    "overlapping": ({"kernel": (9, 10), "stride": (8, 10)}, (4, 2), ["slide"]),
    "dilated": ({"kernel": (9, 10), "stride": (9, 10), "dilation": (1, 2)}, (4, 1), ["slide"]),
}


@pytest.mark.parametrize("folding", ["max", "sum", "mean"])
@pytest.mark.parametrize("name", LARGE)
def test_large_windows(folding: Any, name: str, interpreter: Child) -> None:
    """Those that share no input are folded."""
    options, space, kernels = LARGE[name]
    if not options.get("adaptive"):
        options = {"padding": (0, 0), "dilation": (1, 1)} | options
    x, out = filled(2, 3, 36, 20), empty(2, 3, *space)
    values, after = (("x", whole(1, x)),), parse("x + 1.0")
    sweep = Slide(whole(0, out), folding, values, after=after, **options)
    given = Drawn(sweep, [out.flatten(), x.flatten()])
    assert swept(interpreter, given, exact=folding != "mean") == kernels


def test_in_place(interpreter: Child) -> None:
    x = filled(3, 50, 7)
    sweep = Each(whole(0, x), parse("maximum(x, 0.0) + x"), (("x", whole(0, x)),))
    answer = interpreter(sweep=sweep, slots=[x.flatten()])
    assert torch.equal(answer["slots"][0][0], (x.relu() + x).flatten())


def test_a_number(interpreter: Child) -> None:
    """An expression of no values gives the same for all."""
    sweep = Each(View(0, torch.float32, (3, 5), (5, 1)), parse("2.5"), ())
    answer = interpreter(sweep=sweep, slots=[empty(15)])
    assert answer["slots"][0][0].tolist() == [2.5] * 15


def test_nothing_to_write() -> None:
    x = empty(2, 0, 5)
    sweep = Each(whole(0, x), parse("x"), (("x", whole(1, x)),))
    assert prepare(sweep, torch.device("cpu")).launches == []


def permuted(slot: int, dtype: torch.dtype, sizes: tuple[int, ...], order: str) -> View:
    """A dense view whose axes lie in memory in this order, outermost first."""
    strides, step = [0] * len(sizes), 1
    for axis in reversed(order):
        strides[int(axis)] = step
        step *= sizes[int(axis)]
    return View(slot, dtype, sizes, tuple(strides))


Make = Callable[[tuple[int, ...], torch.dtype], Sweep]
NCHW, NHWC = "0123", "0231"


def elements(expr: str, into: str = NCHW, *orders: str) -> Make:
    def make(sizes: tuple[int, ...], dtype: torch.dtype) -> Sweep:
        values = [permuted(at, dtype, sizes, order) for at, order in enumerate(orders, 1)]
        names = zip("xsr", values, strict=False)
        return Each(permuted(0, dtype, sizes, into), parse(expr), tuple(names))

    return make


def biased(sizes: tuple[int, ...], dtype: torch.dtype) -> Sweep:
    bias = View(2, dtype, sizes, (0, 1, 0, 0))
    values = (("x", permuted(1, dtype, sizes, NCHW)), ("b", bias))
    return Each(permuted(0, dtype, sizes, NCHW), parse("x + b"), values)


def folded(folding: Any, kept: str, over: str, order: str = NCHW) -> Make:
    def make(sizes: tuple[int, ...], dtype: torch.dtype) -> Sweep:
        x = permuted(1, dtype, sizes, order)
        axes = [int(axis) for axis in kept + over]
        source = View(1, dtype, tuple(sizes[a] for a in axes), tuple(x.strides[a] for a in axes))
        result = tuple(sizes[int(axis)] for axis in kept)
        out = torch.empty((2, *result), device="meta")
        return Fold(results(folding, 0, out), folding, (("x", source),))

    return make


def pooled(order: str, kernel: int = 3) -> Make:
    def make(sizes: tuple[int, ...], dtype: torch.dtype) -> Sweep:
        n, c, h, w = sizes
        out = permuted(0, dtype, (n, c, (h + 1) // 2, (w + 1) // 2), order)
        twos, ones = (2, 2), (1, 1)
        return Slide(
            out,
            "max",
            (("x", permuted(1, dtype, sizes, order)),),
            (kernel, kernel),
            twos,
            ones,
            ones,
        )

    return make


MAKERS: dict[str, Make] = {
    "relu": elements("maximum(x, 0.0)", NCHW, NCHW),
    "residual": elements("x + s", NCHW, NCHW, NCHW),
    "to channels last": elements("maximum(x, 0.0)", NHWC, NCHW),
    "to channels first": elements("x + s", NCHW, NHWC, NCHW),
    "bias": biased,
    "over channels": folded("exponentials", "023", "1"),
    "over channels that lie innermost": folded("exponentials", "023", "1", NHWC),
    "over space": folded("exponentials", "01", "23"),
    "over the batch": folded("moments", "1", "023"),
    "pool": pooled(NCHW),
    "pool of channels last": pooled(NHWC),
    "pool of large windows": pooled(NCHW, 33),
}


@pytest.fixture(scope="module")
def counter() -> Iterator[Child]:
    child = Child("count", "swept.py", TRITON_INTERPRET="0")
    yield child
    child.close()


@pytest.mark.parametrize("name", MAKERS)
def test_builds(name: str, counter: Child) -> None:
    """A kernel is built for a kind of sweep, not for a size: 300 sizes, a handful of builds."""
    draw = random.Random(name)
    sizes = [tuple(draw.randint(2, most) for most in (64, 300, 300, 300)) for _ in range(300)]
    found = counter(sweeps=[MAKERS[name](each, torch.float16) for each in sizes])
    print(found)
    assert all(count <= 10 for count in found.values()), found


@pytest.fixture(scope="module")
def machine_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    cache = str(tmp_path_factory.mktemp("compiled"))
    child = Child("compile", "swept.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache)
    yield child
    child.close()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "dtype", [torch.float16, *(pytest.param(t, marks=pytest.mark.long) for t in OTHERS)], ids=str
)
def test_machine_code(name: str, dtype: torch.dtype, machine_code: Child) -> None:
    """For sm_90: nothing spilled, and where sizes allow it, 16 bytes in one access."""
    for kernel in machine_code(sweep=MAKERS[name]((8, 64, 64, 64), dtype)):
        assert kernel["spilled"] == 0, kernel
