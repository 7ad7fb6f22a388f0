"""A multiprocessor that runs the strip loop's own code in plain Python, its warps as threads.

One thread runs at a time, and a draw says which: so a seed is an order of events. Copies spoil
their target when they are asked for and fill it some time later; products read shared memory when
they are waited for, no sooner. What is filled too early, read too early or let go of too early
gives NaN or wrong sums, and where nobody can go on ``Deadlock`` is raised.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Semaphore, Thread
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from transfuse.backends.triton.engines.hopper_strip import strip_feed, strip_kernel, strip_tiles


class Deadlock(Exception):
    """Every warp waits, and no copy is on its way."""


class Stopped(BaseException):
    """The machine is given up, and so are its warps."""


@dataclass
class Barrier:
    count: int = 0
    missing: int = 0
    bytes: int = 0
    completed: int = 0

    def arrive(self, arrivals: int, filled: int) -> None:
        self.missing -= arrivals
        self.bytes -= filled
        assert self.missing >= 0, "more arrive than are awaited"
        if self.missing == self.bytes == 0:
            self.missing = self.count
            self.completed += 1


@dataclass
class Shared:
    """A buffer in shared memory, its first axis indexed."""

    values: Any
    dtype: str = ""

    def index(self, at: int) -> Any:
        assert 0 <= at < len(self.values)
        found = self.values[at]
        return found if isinstance(found, Barrier) else Shared(found)


@dataclass(frozen=True)
class Rows:
    """A tensor in memory by its descriptor: boxes of it, with zeros around it."""

    values: Any
    box: int
    dtype: str = "data"

    def boxed(self, first: int, column: int, depth: int) -> Any:
        found = np.zeros((self.box, depth))
        low, high = max(first, 0), min(first + self.box, len(self.values))
        if low < high:
            part = self.values[low:high, column : column + depth]
            found[low - first : high - first, : part.shape[1]] = part
        return found


@dataclass
class Sums:
    """Sums after a product that may still be on its way."""

    value: Any = None
    before: "Sums | None" = None
    rows: Any = None
    weights: Any = None

    def finish(self) -> None:
        assert self.before is not None
        assert self.before.value is not None
        self.value = self.before.value + self.rows @ self.weights.T


@dataclass
class Warp:
    """One of the parts of the kernel that run side by side."""

    body: Callable[[], None]
    go: Semaphore = field(default_factory=lambda: Semaphore(0))
    ready: Callable[[], bool] = lambda: True
    flying: list[Sums] = field(default_factory=list)
    done: bool = False


class Machine:
    """Program ``program`` of ``programs``; ``finished`` has what its consumers made, in order."""

    def __init__(self, program: int, programs: int, seed: int) -> None:
        self.draw = random.Random(seed)
        self.finished: list[tuple[Any, int, Any]] = []
        self.warps: list[Warp] = []
        self.running: Warp
        self.back = Semaphore(0)
        self.copies: list[Callable[[], None]] = []
        self.fault: BaseException | None = None
        gl = SimpleNamespace(
            program_id=lambda axis: program, num_programs=lambda axis: programs,
            static_range=range, where=lambda which, a, b: a if which else b,
            maximum=max, minimum=min, zeros=lambda *_: Sums(0.0), to_tensor=lambda n: n,
            constexpr=None, float32=None, int64="barriers", allocate_shared_memory=self.allocate,
            warp_specialize=self.run, NVMMASharedLayout=lambda *_: None,
            NVMMADistributedLayout=lambda *_: None,
        )  # fmt: skip
        mbarrier = SimpleNamespace(
            MBarrierLayout=lambda: None, init=self.init, wait=self.wait, arrive=self.arrive,
            expect=lambda bar, filled: bar.arrive(1, -filled),
        )  # fmt: skip
        self.names: dict[str, Any] = {
            "gl": gl, "mbarrier": mbarrier, "async_load": self.load, "quotient": quotient,
            "view": lambda ring, row, rows, *_: Shared(ring.values[row : row + rows, 0]),
            "multiply": self.multiply, "warpgroup_mma_wait": self.land,
            "interleave": lambda even, odd, _: (even, odd), "fence_async_shared": lambda: None,
            "finish_tile": self.finish, "plain": lambda number: (number - 3) >> 1,
        }  # fmt: skip
        names: dict[str, Any] = {}
        for module in (strip_tiles, strip_feed, strip_kernel):
            names |= vars(module)
            for name, each in vars(module).items():
                function = getattr(each, "fn", None)
                if isinstance(function, FunctionType):
                    names[name] = FunctionType(function.__code__, names, name)
        names.update(self.names)
        self.kernel = names["convolve_strip"]

    def allocate(self, kind: str, shape: list[int], _: Any) -> Shared:
        if kind == "barriers":
            return Shared([Barrier() for _ in range(shape[0])])
        return Shared(np.full(shape, np.nan), kind)

    def init(self, bar: Barrier, count: int) -> None:
        bar.count = bar.missing = count

    def arrive(self, bar: Barrier, pred: bool = True) -> None:
        if pred:
            bar.arrive(1, 0)
            self.pause()

    def wait(self, bar: Barrier, phase: int) -> None:
        self.running.ready = lambda: bar.completed % 2 != phase % 2
        self.pause()

    def load(self, rows: Rows, place: list[int], bar: Barrier, target: Shared) -> None:
        target.values[:] = np.nan
        box = rows.boxed(*place, target.values.shape[-1])

        def fill() -> None:
            target.values[:] = box
            bar.arrive(0, box.size * self.itemsize)

        self.copies.append(fill)
        self.pause()

    def multiply(self, rows: Shared, slot: Shared, before: Sums, _: Any) -> Sums:
        product = Sums(None, before, rows.values, slot.values)
        self.running.flying.append(product)
        return product

    def land(self, left: int, deps: list[Sums]) -> Any:
        self.pause()
        flying = self.running.flying
        while len(flying) > left:
            flying.pop(0).finish()
        return deps[0] if len(deps) == 1 else deps

    def finish(self, v: Any, tile: Any, results: Any, sizes: Any, part: int, *_: Any) -> None:
        sums = v if isinstance(v, tuple) else (v,)
        self.finished.append((tile, part, [each.value for each in sums]))

    def run(self, parts: list[Any], *_: Any) -> None:
        self.warps = [Warp(lambda f=f, a=a: f(*a)) for f, a in parts]  # type: ignore[misc]
        threads = [Thread(target=self.live, args=(each,)) for each in self.warps]
        for thread in threads:
            thread.start()
        try:
            self.turn()
        finally:
            self.fault = self.fault or Stopped()
            for warp in self.warps:
                warp.go.release()
            for thread in threads:
                thread.join()

    def turn(self) -> None:
        while left := [each for each in self.warps if not each.done]:
            able = [each for each in left if each.ready()]
            if not able and not self.copies:
                raise Deadlock
            if self.copies and (not able or self.draw.random() < 0.3):
                self.copies.pop(self.draw.randrange(len(self.copies)))()
                continue
            self.running = self.draw.choice(able)
            self.running.ready = lambda: True
            self.running.go.release()
            self.back.acquire()
            if self.fault is not None:
                raise self.fault
        assert not self.copies, "the kernel ends before its copies do"

    def live(self, warp: Warp) -> None:
        warp.go.acquire()
        try:
            if self.fault is None:
                warp.body()
        except Stopped:
            return
        except BaseException as fault:
            self.fault = fault
        warp.done = True
        self.back.release()

    def pause(self) -> None:
        warp = self.running
        self.back.release()
        warp.go.acquire()
        if self.fault is not None:
            raise Stopped

    itemsize = 0

    def __call__(self, x: Rows, halo: Rows, w: Rows, tiles: int, sizes: Any, static: Any) -> None:
        self.itemsize = static[1].itemsize
        *numbers, entries = sizes
        self.kernel(x, halo, w, None, 0, tiles, (), (), None, 0, 0, 0, *numbers, entries, *static)


def quotient(n: int, by: tuple[int, int]) -> int:
    magic, shift = by
    return (n * (magic % (1 << 32)) >> 32) >> shift
