"""Sweeps on the CPU."""

from collections.abc import Callable, Sequence

from transfuse.sweeps import Sweep


def prepare(sweep: Sweep) -> Callable[[Sequence[int]], None]:
    raise NotImplementedError
