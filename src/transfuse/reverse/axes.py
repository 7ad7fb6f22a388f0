"""Windows along one axis each, as integers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AxisWindows:
    """Windows along one axis: inputs, outputs, and which inputs an output's taps are."""

    n: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def tiles(self) -> bool:
        apart = self.kernel == self.stride and not self.padding and self.dilation == 1
        return apart and self.outputs * self.kernel <= self.n

    @property
    def counts(self) -> list[int]:
        """How many inputs each window has."""
        starts = (o * self.stride - self.padding for o in range(self.outputs))
        taps = range(self.kernel)
        return [sum(0 <= at + k * self.dilation < self.n for k in taps) for at in starts]

    @property
    def padded(self) -> list[int]:
        """The same with those of the padding, but not what is beyond it."""
        end = self.n + self.padding
        starts = (o * self.stride - self.padding for o in range(self.outputs))
        return [sum(at + k * self.dilation < end for k in range(self.kernel)) for at in starts]

    def phases(self) -> Iterator[tuple[int, int, dict[int, int]]]:
        """For each phase: its first input, how many there are, and by tap the output of the first.

        That output may be none: before the first, or for later inputs after the last.
        """
        for first in range(min(self.stride, self.n)):
            at = first + self.padding
            taps = [k for k in range(self.kernel) if (at - k * self.dilation) % self.stride == 0]
            count = (self.n - first - 1) // self.stride + 1
            yield first, count, {k: (at - k * self.dilation) // self.stride for k in taps}

    def margins(self) -> tuple[int, int]:
        """Outputs that phases ask for before the first and after the last."""
        before = after = 0
        for _, count, taps in self.phases():
            for output in taps.values():
                before = max(before, -output)
                after = max(after, output + count - self.outputs)
        return before, after


def axes_of(
    dims: Sequence[int], outputs: Sequence[int], options: dict[str, Any]
) -> list[AxisWindows]:
    """The windows of each spatial axis; raises where adaptive ones are of several sizes."""
    if not options.get("adaptive"):
        keys = ("kernel", "stride", "padding", "dilation")
        return [
            AxisWindows(*each)
            for each in zip(dims[2:], outputs, *(options[k] for k in keys), strict=True)
        ]
    if any(n % m for n, m in zip(dims[2:], outputs, strict=True)):
        raise NotImplementedError
    return [AxisWindows(n, m, n // m, n // m, 0, 1) for n, m in zip(dims[2:], outputs, strict=True)]
