"""The GPU that kernels are chosen for."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

SHARED = {80: 163_000, 86: 99_000, 87: 163_000, 89: 99_000, 90: 227_000, 100: 227_000}
"""Shared memory of one program, in bytes, by compute capability."""

MULTIPROCESSORS = {80: 108, 86: 84, 89: 128, 90: 132, 100: 148}
"""Programs that run at once, one on each; by compute capability, of the largest GPU."""

TUNED_ON = {"NVIDIA H200": 90}
"""GPUs that the shipped files of tuned tiles are for, with their compute capability."""


@dataclass(frozen=True)
class Gpu:
    """What kernels are chosen by; not real in the interpreter."""

    capability: int
    multiprocessors: int
    real: bool = True


@dataclass(frozen=True)
class Aim:
    """A GPU that need not be there, and what is to be compiled for it: ``Build``s.

    ``name``: as tuned tiles know it; empty for any of its kind.
    """

    gpu: Gpu
    name: str = ""
    builds: list[Any] = field(default_factory=list)


_aim: ContextVar[Aim | None] = ContextVar("aim", default=None)


@contextmanager
def aim(capability: int, name: str = "") -> Iterator[Aim]:
    """Calls on torch's ``meta`` device are for that GPU: they note what they would compile."""
    found = Aim(Gpu(capability, MULTIPROCESSORS[capability]), name)
    before = _aim.set(found)
    try:
        yield found
    finally:
        _aim.reset(before)


def aimed() -> Aim | None:
    """The GPU that calls on torch's ``meta`` device are for, where they are for any."""
    return _aim.get()


@lru_cache(maxsize=64)
def capability(device: torch.device) -> int:
    """Compute capability, as 90 for 9.0; that of the H100 where there is no GPU."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
