"""Sweeps by seed, over tensors that lie in all kinds of ways, and what a result is judged by."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from tests.sweeping import at, expected
from transfuse.maths.expr import X, parse
from transfuse.sweeps import Each, Fold, Slide, Sweep, View

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
FOLDINGS = ("sum", "mean", "max", "min", "logsumexp", "exponentials", "moments", "squares")
KINDS = ("each", *FOLDINGS, "slide max", "slide sum", "slide mean", "slide sign")
SENTINEL = -77.0
GUARD = 16
MAPS = ("x", "maximum(x, 0.0)", "where(x < {}, {}, x)", "x + {}", "2.0 * x - {}")
"""Exact on small integers, and no steeper than 2."""


@dataclass(frozen=True)
class Drawn:
    """A sweep and what its slots hold: its results nothing but NaN, between guards."""

    sweep: Sweep
    slots: list[Tensor]

    @property
    def outs(self) -> tuple[View, ...]:
        return self.sweep.outs if isinstance(self.sweep, Fold) else (self.sweep.out,)

    def on(self, device: Any) -> "Drawn":
        return replace(self, slots=[slot.to(device) for slot in self.slots])


class Draw:
    """Draws a sweep and its memory, slot by slot."""

    def __init__(self, seed: str, kind: str, fill: str) -> None:
        self.random, self.kind, self.fill = random.Random(seed), kind, fill
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(32))
        self.slots: list[Tensor] = []

    def sweep(self) -> Sweep:
        if self.kind == "each":
            sizes = self.sizes(self.random.randint(0, 5), 300)
            expr, values = self.mapped(sizes)
            return Each(self.out(sizes), expr, values)
        if self.kind.startswith("slide"):
            return self.slide(self.kind.split()[1])
        sizes = self.sizes(self.random.randint(1, 5), 3000)
        kept = self.random.randint(0, len(sizes))
        before, values = self.mapped(sizes)
        outs, after, others = 2 if self.kind in ("exponentials", "moments") else 1, X, ()
        if outs == 1:
            after, others = self.mapped(sizes[:kept], "r", named=())
        results = tuple(self.out(sizes[:kept]) for _ in range(outs))
        return Fold(results, self.kind, values, before, after, others)  # type: ignore[arg-type]

    def slide(self, folding: Any) -> Slide:
        rank = self.random.randint(1, 3)
        sizes = self.sizes(2, 9)
        inputs = tuple(self.random.randint(1, 8) for _ in range(rank))
        adaptive = folding != "sign" and self.random.random() < 0.3
        options: dict[str, Any] = {"adaptive": adaptive}
        if adaptive:
            outputs = tuple(self.random.randint(1, 6) for _ in range(rank))
        else:
            drawn = [self.window(n) for n in inputs]
            names = ("kernel", "stride", "padding", "dilation")
            options |= {name: tuple(w[i] for w in drawn) for i, name in enumerate(names)}
            outputs = tuple(w[4] for w in drawn)
            options["counts_padding"] = self.random.random() < 0.5
            options["divisor"] = self.random.choice((None, None, 3.0))
        before, values = self.mapped((*sizes, *inputs))
        after, others = self.mapped((*sizes, *outputs), "r", named=())
        if folding == "sign":
            others = (*others, ("sign", self.view((*sizes, *outputs))))
        out = self.out((*sizes, *outputs))
        return Slide(out, folding, values, before=before, after=after, others=others, **options)

    def window(self, n: int) -> tuple[int, ...]:
        """Kernel, stride, padding, dilation, outputs: as torch allows, and no window empty."""
        while True:
            kernel, dilation = self.random.randint(1, 4), self.random.randint(1, 2)
            stride, padding = self.random.randint(1, 3), self.random.randint(0, kernel // 2)
            left = n + 2 * padding - dilation * (kernel - 1) - 1
            outputs = left // stride + 1
            starts = range(-padding, outputs * stride - padding, stride)
            inside = [any(0 <= o + k * dilation < n for k in range(kernel)) for o in starts]
            if left >= 0 and all(inside):
                more = outputs * stride - padding < n and self.random.random() < 0.5  # ceil_mode
                return kernel, stride, padding, dilation, outputs + more

    def sizes(self, rank: int, most: int) -> tuple[int, ...]:
        while True:
            found = tuple(self.random.choices((1, 2, 3, 4, 5, 7, 8, 16, 33, 64), k=rank))
            if prod(found) <= most:
                return found

    def mapped(
        self, sizes: tuple[int, ...], name: str = "s", named: tuple[str, ...] = ("x",)
    ) -> tuple[Any, tuple[tuple[str, View], ...]]:
        expr = parse(self.random.choice(MAPS).replace("{}", name))
        values = tuple((each, self.view(sizes)) for each in named)
        return expr, values + (
            ((name, self.view(sizes, spread=True)),) if name in expr.names else ()
        )

    def view(self, sizes: tuple[int, ...], spread: bool = False, filled: bool = True) -> View:
        """A new slot: axes in any order in memory, gaps between them, some at a stride of 0."""
        order = list(range(len(sizes)))
        if self.random.random() < 0.5:
            self.random.shuffle(order)
        strides, step = [0] * len(sizes), self.random.choice((1, 1, 1, 2))
        for axis in reversed(order):
            if spread and self.random.random() < 0.4:
                continue
            strides[axis] = step
            step *= sizes[axis] + self.random.choice((0, 0, 0, 1))
        offset = GUARD + self.random.choice((0, 0, 1, 8))
        dtype = self.random.choice(TYPES[: 3 if self.random.random() < 0.8 else 4])
        view = View(len(self.slots), dtype, sizes, tuple(strides), offset)
        memory = torch.full((offset + step + GUARD,), SENTINEL, dtype=dtype)
        once = tuple(n if stride else 1 for n, stride in zip(sizes, strides, strict=True))
        values = self.values(once) if filled else torch.full(once, torch.nan)
        memory.as_strided(once, view.strides, offset).copy_(values)
        self.slots.append(memory)
        return view

    def out(self, sizes: tuple[int, ...]) -> View:
        return self.view(sizes, filled=False)

    def values(self, sizes: Sequence[int]) -> Tensor:
        if self.fill == "integers":
            return torch.randint(-4, 5, tuple(sizes), generator=self.generator).double()
        values = torch.randn(tuple(sizes), generator=self.generator, dtype=torch.float64)
        if self.fill == "special":
            which = torch.randint(0, 60, tuple(sizes), generator=self.generator)
            for at, value in enumerate((torch.nan, torch.inf, -torch.inf)):
                values = torch.where(which == at, value, values)
        return values


def drawn(seed: int, kind: str, fill: str) -> Drawn:
    draw = Draw(f"{seed} {kind} {fill}", kind, fill)
    return Drawn(draw.sweep(), draw.slots)


def judge(given: Drawn, found: Sequence[Tensor], exact: bool = False) -> None:
    """Assert that slots hold the results after a sweep, and are else as they were."""
    right = expected(given.sweep, given.slots)
    for view, result, close in zip(given.outs, right, slack(given), strict=True):
        got = at(view, found)
        if exact:
            assert torch.equal(got, result.to(view.dtype)), given.sweep
            continue
        wide = got.double()
        infinite = result.isinf() | result.isnan()
        assert torch.equal(wide.nan_to_num(1, 2, 3)[infinite], result.nan_to_num(1, 2, 3)[infinite])
        bound = torch.finfo(view.dtype).eps * result.abs() + close
        off = (wide - result).abs()
        worst = (off - bound)[~infinite]
        assert (worst <= 0).all(), f"{worst.max()} beyond the bound\n  {given.sweep}"
    for number, (before, after) in enumerate(zip(given.slots, found, strict=True)):
        kept = torch.ones_like(before, dtype=torch.bool)
        for view in given.outs:
            if view.slot == number:
                at(view, [kept] * len(given.slots)).fill_(False)
        same = before.double().nan_to_num(9) == after.double().nan_to_num(9)
        assert same[kept].all(), f"slot {number} was written to beside results"


def slack(given: Drawn) -> list[Tensor | float]:
    """How far results may be from float64's for what arithmetic does to them, before rounding."""
    sweep = given.sweep
    double = any(slot.dtype == torch.float64 for slot in given.slots)
    eps = torch.finfo(torch.float64 if double else torch.float32).eps
    if isinstance(sweep, Each):
        return [8 * eps * 16]
    inner = _inner(sweep, given.slots)
    largest = inner[inner.isfinite()].abs().max().item() if inner.isfinite().any() else 0.0
    terms = inner.numel()
    if isinstance(sweep, Slide):
        terms = prod(sweep.kernel) if sweep.kernel else terms
        return [4 * eps * (terms + 8) * (largest + 8)]
    terms //= max(1, prod(sweep.outs[0].sizes))
    one = 2 * eps * (terms + 8) * (largest + 8)
    many = one * (1 if sweep.folding in ("mean", "max", "min", "logsumexp", "moments") else terms)
    square = one * (largest + 8)
    if sweep.folding == "moments":
        return [one, square]
    if sweep.folding == "exponentials":
        return [one, many]
    return [2 * (square if sweep.folding == "squares" else many)]


def _inner(sweep: Fold | Slide, slots: Sequence[Tensor]) -> Tensor:
    """What is folded."""
    sizes = sweep.values[0][1].sizes
    return expected(Each(View(0, torch.float64, sizes, ()), sweep.before, sweep.values), slots)[0]
