"""The machine's own ceilings, measured in the run they judge: a copy and a matrix product."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from transfuse.bench.clock import Clock
from transfuse.bench.precision import Precision, precisions
from transfuse.elements import ELEMENTS

COPIES = {"cpu": (2**18, 2**22, 2**25, 2**28), "cuda": (2**22, 2**26, 2**30, 2**32)}
PRODUCTS = {"cpu": (256, 384, 512, 1024, 2048), "cuda": (4096, 8192)}
REPEATS = 3
SLOW = 0.1
"""Seconds after which a measurement is not repeated."""
WIDER = {"fp32": ("fp64",), "tf32": ("fp32",), "bf16": ("tf32", "fp32"), "fp16": ("tf32", "fp32")}
"""Classes in whose arithmetic another class may compute as well."""


class Ceilings:
    """The best rates seen so far; ``measure`` looks again, so that a busy moment does not count.

    ``copy``: bytes moved (read and written), and the best bytes/s at that size. ``matmul``: the
    best flop/s of the framework's matrix product by precision class.
    """

    def __init__(self, device: str, clock: Clock) -> None:
        self.device = device.partition(":")[0]
        self.clock = clock
        self.classes = precisions(self.device)
        self.copies = dict.fromkeys(COPIES[self.device], 0.0)
        self.products = {each.name: 0.0 for each in self.classes}
        for _ in range(REPEATS):
            self.measure()

    def measure(self) -> None:
        for size in self.copies:
            source = torch.ones(size // 2, dtype=torch.uint8, device=self.device)
            target = torch.empty_like(source)
            self.copies[size] = max(self.copies[size], size / self._best(target.copy_, source))
        for precision in self.classes:
            with precision.applied():
                rate = max(self._product(precision))
            self.products[precision.name] = max(self.products[precision.name], rate)

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

    def floor(self, flops: int, traffic: int, precision: str) -> float:
        """The least seconds these ceilings allow for this work and this traffic.

        Small problems live in a cache: the rate for their bytes is the best of any copy at least
        as large, so the floor is never put too high.
        """
        rates = [rate for size, rate in self.copy if size >= traffic] or [self.copy[-1][1]]
        return max(flops / self.matmul[precision], traffic / max(rates))
