"""The GPU that kernels are chosen for."""

from dataclasses import dataclass
from functools import lru_cache

import torch

SHARED = {80: 163_000, 86: 99_000, 87: 163_000, 89: 99_000, 90: 227_000, 100: 227_000}
"""Shared memory of one program, in bytes, by compute capability."""

MULTIPROCESSORS = {80: 108, 86: 84, 89: 128, 90: 132, 100: 148}
"""Programs that run at once, one on each; by compute capability, of the largest GPU."""


@dataclass(frozen=True)
class Gpu:
    """What kernels are chosen by; not real in the interpreter."""

    capability: int
    multiprocessors: int
    real: bool = True


@lru_cache(maxsize=64)
def capability(device: torch.device) -> int:
    """Compute capability, as 90 for 9.0; that of the H100 where there is no GPU."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
