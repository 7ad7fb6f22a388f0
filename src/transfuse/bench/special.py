"""Exponentials and nothing else, to time: what the ceiling of special functions is measured by."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec

import torch

from transfuse.backends.cpu import library, sweeps
from transfuse.elements import ELEMENTS
from transfuse.maths.expr import X, call
from transfuse.sweeps import Each, View

SIZES = (2**16, 2**18, 2**20)
"""Values on a CPU: they and their results lie in caches, and every thread has a share."""
PROGRAMS, BLOCK, ROUNDS, AT_ONCE = 2**14, 1024, 16, 16
"""On a GPU: programs of so many values, each of which is taken so many times; a millisecond."""

Work = tuple[str, int, Callable[[], object]]
"""An element type, how many exponentials a call computes in it, and the call."""


def exponentials(device: str) -> Iterator[Work]:
    """Ways to compute exponentials on ``cpu`` or ``cuda``; the fastest counts.

    None on a GPU without Triton: torch's own read and write memory for each.
    """
    if device == "cuda":
        if find_spec("triton") is not None:
            yield "fp32", PROGRAMS * BLOCK * ROUNDS * AT_ONCE, _in_registers()
        return
    for name in ("fp32", "fp64"):
        for size in SIZES:
            x = torch.linspace(-1, 1, size, dtype=ELEMENTS[name].dtype)
            out = torch.empty_like(x)
            yield name, size, partial(torch.exp, x, out=out)
            yield name, size, partial(torch.sigmoid, x, out=out)  # with better loops here and there
            if library.load() is not None:
                views = [View(slot, x.dtype, (size,), (1,)) for slot in range(2)]
                run = sweeps.prepare(Each(views[1], call("exp", X), (("x", views[0]),)))
                yield name, size, partial(_run, run, x, out)


def _run(run: Callable[[list[int]], None], *tensors: torch.Tensor) -> None:
    run([each.data_ptr() for each in tensors])


def _in_registers() -> Callable[[], object]:
    from transfuse.bench.special_kernel import exponentials as kernel

    out = torch.empty(PROGRAMS * BLOCK, dtype=torch.float32, device="cuda")
    return lambda: kernel[(PROGRAMS,)](out, ROUNDS, AT_ONCE, BLOCK)
