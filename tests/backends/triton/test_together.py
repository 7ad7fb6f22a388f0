"""Sweeps that become one: which do, and that each leaves what it leaves alone."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from tests.random_sweeps import FOLDINGS
from tests.sweeping import run
from transfuse.backends.triton.sweeps.together import Group, groups
from transfuse.maths.expr import parse
from transfuse.sweeps import Each, Fold, Slide, Sweep, View

from .conftest import Child

EXACT = ("sum", "max", "min")
LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Child]:
    child = Child("interpret-all", "swept.py", TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    yield child
    child.close()


def view(slot: int, tensor: Tensor, order: str = "nchw", spread: str = "") -> View:
    """A tensor of the axes nchw that are not ``spread``, in an order; those it has no values of."""
    sizes = dict(zip("nchw", SIZES, strict=True))
    has = iter(tensor.stride())
    strides = {axis: 0 if axis in spread else next(has) for axis in "nchw"}
    return View(
        slot,
        tensor.dtype,
        tuple(sizes[axis] for axis in order),
        tuple(strides[axis] for axis in order),
    )


SIZES = (3, 5, 7, 6)


class Example:
    """A fold of rows, what follows from it for every element, and sums of columns."""

    def __init__(
        self, folding: Any, x: torch.memory_format, y: torch.memory_format, dtype: torch.dtype
    ) -> None:
        n, c, h, w = SIZES
        generator = torch.Generator().manual_seed(0)

        def filled(*sizes: int) -> Tensor:
            return torch.randint(-4, 5, sizes, generator=generator).to(dtype)

        wide = torch.float64 if dtype is torch.float64 else torch.float32
        self.slots = [
            filled(*SIZES).contiguous(memory_format=x),
            filled(*SIZES).contiguous(memory_format=y),
            filled(c),
            *(torch.full((n, h, w), torch.nan, dtype=wide) for _ in range(3)),
            torch.full(SIZES, torch.nan, dtype=wide).contiguous(memory_format=x),
            *(torch.full((c,), torch.nan, dtype=wide) for _ in range(2)),
        ]
        a, b, per, first, second, third, made, left, right = self.slots
        two = folding in ("exponentials", "moments")
        rows = [view(3 + i, each, "nhw", "c") for i, each in enumerate((first, second))]
        at_rows = [view(3 + i, each, "nchw", "c") for i, each in enumerate((first, second))]
        found = {"m": at_rows[0], **({"s": at_rows[1]} if two else {})}

        def turned(order: str, **named: View) -> tuple[tuple[str, View], ...]:
            at = ["nchw".index(axis) for axis in order]
            return tuple(
                (
                    name,
                    replace(
                        each,
                        sizes=tuple(each.sizes[i] for i in at),
                        strides=tuple(each.strides[i] for i in at),
                    ),
                )
                for name, each in named.items()
            )

        columns = View(7, left.dtype, (c,), (1,)), View(8, right.dtype, (c,), (1,))
        x_, y_, per_ = view(0, a), view(1, b), view(2, per, spread="nhw")
        expr = parse("x + y * m" + (" - s" if two else ""))
        self.sweeps: list[Sweep] = [
            Fold(tuple(rows[: 1 + two]), folding, turned("nhwc", x=x_, p=per_), parse("x + p")),
            Fold(
                (view(5, third, "nhw", "c"),),
                "sum",
                turned("nhwc", x=x_, y=y_, **found),
                expr,
                after=parse("x * 0.5 + q"),
                others=(("q", rows[0]),),
            ),
            Each(view(6, made), parse("x - t"), (("x", x_), ("t", view(5, third, spread="c")))),
            Fold(columns[:1], "sum", turned("cnhw", x=x_, y=y_, **found), expr),
            Fold(columns[1:], "mean", turned("cnhw", d=view(6, made)), parse("d")),
        ]


@pytest.mark.parametrize("folding", FOLDINGS)
@pytest.mark.parametrize("x", LAYOUTS)
@pytest.mark.parametrize("y", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_launch_for_all(
    folding: Any, x: torch.memory_format, y: torch.memory_format, dtype: torch.dtype,
    interpreter: Child,
) -> None:  # fmt: skip
    example = Example(folding, x, y, dtype)
    answer = interpreter(sweeps=example.sweeps, slots=[each.clone() for each in example.slots])
    assert [launches[0] for launches in answer["launches"]] == ["walk"]
    right = [each.double() for each in example.slots]
    for sweep in example.sweeps:
        run(sweep, right)
    for found, expected in zip(answer["slots"], right, strict=True):
        # Halves and sums of small integers; a mean over columns is none.
        limit = 0.0 if folding in EXACT and found.dim() > 1 else 1e-5
        torch.testing.assert_close(found.double(), expected, rtol=limit, atol=limit, equal_nan=True)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("folding", FOLDINGS)
def test_a_value_that_is_not_finite(folding: Any, value: float, interpreter: Child) -> None:
    """It is as in sweeps by themselves, and spoils no other row."""
    example = Example(folding, *LAYOUTS, torch.float32)
    example.slots[0][1, 2, 3, 4] = value
    answer = interpreter(sweeps=example.sweeps, slots=[each.clone() for each in example.slots])
    right = [each.double() for each in example.slots]
    run(example.sweeps[0], right)
    for at in (3, 4):
        torch.testing.assert_close(
            answer["slots"][at].double(), right[at], rtol=1e-5, atol=1e-5, equal_nan=True
        )


def members(sweeps: Sequence[Sweep]) -> list[int]:
    return [len(each.members) if isinstance(each, Group) else 1 for each in groups(sweeps)]


def test_what_does_not_join() -> None:
    """A window, a sum over all of what another sweep left of columns, memory seen in two ways."""
    example = Example("sum", *LAYOUTS, torch.float32)
    fold, second, each, left, mean = example.sweeps
    assert members(example.sweeps) == [5]
    pool = Slide(view(1, example.slots[1]), "max", (("x", view(0, example.slots[0])),), (1, 1))
    assert members([fold, second, pool, each]) == [2, 1, 1]
    assert isinstance(left, Fold)
    per = replace(left.outs[0], sizes=SIZES, strides=(0, 1, 0, 0))
    reader = Each(view(6, example.slots[6]), parse("x * p"), (*each.values, ("p", per)))
    assert members([fold, second, left, reader]) == [3, 1]
    assert isinstance(each, Each)
    (name, there), *others = each.values
    moved = replace(each, values=((name, replace(there, slot=6, offset=0)), *others), out=there)
    assert members([fold, second, each, moved]) == [3, 1]
    assert members([left, mean]) == [1, 1]


def test_rows_that_no_program_holds() -> None:
    """Long rows are swept one sweep after another."""
    x = torch.zeros(4, 5000)
    values = (("x", View(0, x.dtype, (4, 5000), (5000, 1))),)
    rows = View(1, x.dtype, (4,), (1,))
    spread = View(1, x.dtype, (4, 5000), (1, 0))
    out = View(2, x.dtype, (4, 5000), (5000, 1))
    fold = Fold((rows,), "max", values)
    each = Each(out, parse("x - m"), (*values, ("m", spread)))
    assert members([fold, each]) == [1, 1]
