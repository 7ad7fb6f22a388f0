"""Clocks: one call's seconds on the device, and on the host until it returns; peak memory."""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch

from transfuse.backends.base import Part
from transfuse.backends.cpu import results


class Clock(Protocol):
    """``time`` gives device seconds and host seconds of one call."""

    def time(self, call: Callable[[], Any]) -> tuple[float, float]: ...

    def laps(self, parts: Iterator[Part]) -> list[tuple[Part, float]]:
        """The device seconds of each part of a call."""
        ...

    def peak(self, call: Callable[[], Any]) -> int | None:
        """Bytes that one call takes at its peak, beyond what was there before it."""
        ...


class HostClock:
    """The wall clock, for calls that return when they are done."""

    def time(self, call: Callable[[], Any]) -> tuple[float, float]:
        start = perf_counter()
        call()
        seconds = perf_counter() - start
        return seconds, seconds

    def laps(self, parts: Iterator[Part]) -> list[tuple[Part, float]]:
        found, last = [], perf_counter()
        for part in parts:
            now = perf_counter()
            found.append((part, now - last if part.seconds is None else part.seconds))
            last = now
        return found

    def peak(self, call: Callable[[], Any]) -> int | None:
        reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
        try:
            results.release()  # memory kept for reuse would hide what is taken
            ctypes.CDLL(None).malloc_trim(0)
            reset.write_text("5", encoding="ascii")  # sets the peak to what is resident now
            before = _kilobytes(status, "VmHWM")
            call()
            return (_kilobytes(status, "VmHWM") - before) * 1024
        except (OSError, AttributeError):  # not Linux, not glibc
            return None


def _kilobytes(status: Path, key: str) -> int:
    lines = status.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


SWEPT = 2**31
"""Bytes written before a call on a GPU: half a millisecond or more, and the host gets ahead."""


class CudaClock:
    """CUDA events around the call, after writes that have swept the L2 cache.

    They keep the device busy while the host makes its launches: what the device takes is not what
    it waits for Python. That is the host's time, taken until the call returns.
    """

    def __init__(self) -> None:
        size = 2 * torch.cuda.get_device_properties(0).L2_cache_size
        self.sweep = torch.empty(max(size, 2**26), dtype=torch.uint8, device="cuda")

    def time(self, call: Callable[[], Any]) -> tuple[float, float]:
        start, end = self._event(), self._event()
        self._swept()
        start.record()
        begun = perf_counter()
        call()
        host = perf_counter() - begun
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3, host

    def laps(self, parts: Iterator[Part]) -> list[tuple[Part, float]]:
        """The first part finds swept caches, the others what those before them left there."""
        last = self._event()
        self._swept(8 * SWEPT)  # launches that are stopped one by one take the host milliseconds
        last.record()
        events = []
        for part in parts:
            events.append((part, event := self._event()))
            event.record()
        torch.cuda.synchronize()
        found = []
        for part, event in events:
            found.append((part, last.elapsed_time(event) / 1e3))
            last = event
        return found

    def _swept(self, written: int = SWEPT) -> None:
        torch.cuda.synchronize()
        for _ in range(0, written, len(self.sweep)):
            self.sweep.zero_()

    @staticmethod
    def _event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def peak(self, call: Callable[[], Any]) -> int | None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        # Every call makes a result: none here is one of a library with memory of its own.
        return torch.cuda.max_memory_allocated() - before or None


def clock(device: str) -> Clock:
    return CudaClock() if device.startswith("cuda") else HostClock()
