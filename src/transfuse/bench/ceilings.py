"""The machine's own ceilings, measured in the run they judge: copies, products, exponentials."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from transfuse.bench.clock import Clock
from transfuse.bench.precision import Precision, precisions
from transfuse.bench.special import exponentials
from transfuse.elements import ELEMENTS
from transfuse.plan import Pass

COPIES = {"cpu": (2**18, 2**22, 2**25, 2**28), "cuda": (2**22, 2**26, 2**30, 2**32)}
PRODUCTS = {"cpu": (256, 384, 512, 1024, 2048), "cuda": (4096, 8192)}
REPEATS = 3
MOVES = {
    "cpu": (2**18, 2**20, 2**22, 2**24, 2**26, 2**28),
    "cuda": (2**22, 2**24, 2**26, 2**28, 2**30),
}
AGAIN = {"cpu": 1, "cuda": 8}
"""Moves of the same, one after another: where clocks sweep the caches, all but one find them."""
SLOW = 0.1
"""Seconds after which a measurement is not repeated."""
WIDER = {"fp32": ("fp64",), "tf32": ("fp32",), "bf16": ("tf32", "fp32"), "fp16": ("tf32", "fp32")}
"""Classes in whose arithmetic another class may compute as well."""


class Ceilings:
    """The best rates seen so far; ``measure`` looks again, so that a busy moment does not count.

    ``copy``: bytes moved (read and written), and the best bytes/s at that size; ``moves``: likewise
    of the fastest way to move bytes, be it to copy them, to change them in place, to read them or
    to write them alone, also where a cache has them, as one pass finds what another stored.
    ``matmul``: the best flop/s of the framework's matrix product by precision class. ``special``:
    exponentials per second, by the element type that they are computed in. ``only``: a class, where
    no other is asked for.
    """

    def __init__(self, device: str, clock: Clock, only: str | None = None) -> None:
        self.device = device.partition(":")[0]
        self.clock = clock
        known = precisions(self.device)
        wanted = {only, *WIDER.get(only, ())} if only else {each.name for each in known}
        self.classes = [each for each in known if each.name in wanted]
        self.copies = dict.fromkeys(COPIES[self.device], 0.0)
        self.moves = dict.fromkeys(MOVES[self.device], 0.0)
        self.products = {each.name: 0.0 for each in self.classes}
        self.special: dict[str, float] = {}
        for _ in range(REPEATS):
            self.measure()

    def measure(self) -> None:
        for size in self.copies:
            source = torch.ones(size // 2, dtype=torch.uint8, device=self.device)
            target = torch.empty_like(source)
            self.copies[size] = max(self.copies[size], size / self._best(target.copy_, source))
        for size in self.moves:
            many = AGAIN[self.device]
            taken = min(self._best(partial(_times, many, way)) for way in _ways(size, self.device))
            self.moves[size] = max(self.moves[size], many * size / taken)
        for precision in self.classes:
            with precision.applied():
                rate = max(self._product(precision))
            self.products[precision.name] = max(self.products[precision.name], rate)
        for name, many, call in exponentials(self.device):
            self.special[name] = max(self.special.get(name, 0.0), many / self._best(call))

    def _product(self, precision: Precision) -> Iterator[float]:
        for n in PRODUCTS[self.device]:
            a = torch.randn(n, n, device=self.device).to(ELEMENTS[precision.dtype].dtype)
            taken = self._best(partial(torch.matmul, out=torch.empty_like(a)), a, a)
            yield 2 * n**3 / taken
            if taken > SLOW:
                return  # larger ones would take seconds each

    def _best(self, call: Callable[..., object], *operands: Tensor) -> float:
        """The least seconds of a few calls; one alone where it is slow."""
        taken = [self.clock.time(partial(call, *operands))[0]]
        while len(taken) < REPEATS and taken[0] < SLOW:
            taken.append(self.clock.time(partial(call, *operands))[0])
        return min(taken)

    @property
    def copy(self) -> list[tuple[int, float]]:
        return list(self.copies.items())

    @property
    def matmul(self) -> dict[str, float]:
        return {
            name: max(rate, *(self.products.get(wide, 0.0) for wide in WIDER.get(name, ())), 0.0)
            for name, rate in self.products.items()
        }

    def floor_of_definition(self, flops: int, traffic: int, precision: str) -> float:
        """The least seconds these ceilings allow for this work and this traffic.

        Small problems live in a cache: the rate for their bytes is the best of any copy at least
        as large, so the floor is never put too high.
        """
        rates = [rate for size, rate in self.copy if size >= traffic] or [self.copy[-1][1]]
        return max(flops / self.matmul[precision], traffic / max(rates))

    def seconds(self, each: Pass, precision: str) -> float:
        """The least seconds these ceilings allow for a pass of a plan, special functions included.

        What it reads another pass may have left in a cache, so the rate for its bytes is the best
        from the size on that is next below theirs. Special functions whose rate was not measured
        are not counted.
        """
        below = max((size for size in self.moves if size <= each.bytes), default=0)
        rate = self.special_rate(precision)
        return max(
            each.flops / self.matmul[precision],
            each.bytes / max(rate for size, rate in self.moves.items() if size >= below),
            each.special / rate if rate else 0.0,
        )

    def special_rate(self, precision: str) -> float | None:
        """Special functions per second in a class; where those of float64 are not known, others."""
        known = self.special.get("fp32")
        return self.special.get("fp64", known) if precision == "fp64" else known


def _ways(size: int, device: str) -> Iterator[Callable[[], object]]:
    """Ways to move so many bytes."""
    values = torch.ones(size // 4, device=device)
    half, other = values.chunk(2)
    yield partial(half.copy_, other)
    yield partial(half.mul_, 1.0)
    yield partial(torch.amax, values)
    yield values.zero_


def _times(many: int, call: Callable[[], object]) -> None:
    for _ in range(many):
        call()
