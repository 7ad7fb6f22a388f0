"""What the kernel of few output channels knows: when it is compiled, and when it runs."""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, NamedTuple

from transfuse.backends.triton.segments import power
from transfuse.backends.triton.strides import Three


@dataclass(frozen=True)
class FewTile:
    """A tile: all phases of so many ``anchors``, of all channels, as far as code depends on it.

    A step adds what ``together`` channels of the input give. ``order``: the strides of the weights
    of one of these: channels of the output, then depth, height and width.
    """

    anchors: int
    outputs: int
    together: int
    kernel: Three
    stride: Three
    order: tuple[int, int, int, int]
    leaves: tuple[bool, bool, bool]  # along which axes some taps fall outside the input
    cropped: bool  # some outputs of some anchors are no results
    unit: int  # results that are one aligned piece of memory

    @cached_property
    def taps(self) -> tuple[Three, ...]:
        """How many inputs before an anchor's own each tap reads, axis by axis."""
        counts = [-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True)]
        return tuple((d, h, w) for d, h, w in product(*map(range, counts)))

    @cached_property
    def factors(self) -> tuple[tuple[int, ...], ...]:
        """For each tap and each sum, where the weight lies that both have; -1: there is none."""
        phases = [*product(*map(range, self.stride))]
        return tuple(
            tuple(self._factor(tap, phase, co) for phase in phases for co in range(self.outputs))
            for tap in self.taps
        )

    def _factor(self, tap: Three, phase: tuple[int, ...], co: int) -> int:
        at = [s * j + r for s, j, r in zip(self.stride, tap, phase, strict=True)]
        if any(each >= k for each, k in zip(at, self.kernel, strict=True)):
            return -1
        return sum(n * each for n, each in zip((co, *at), self.order, strict=True))

    @property
    def sums(self) -> int:
        """Of an anchor: phase by phase, those along width innermost, all channels of each."""
        return prod(self.stride) * self.outputs

    @property
    def weights(self) -> int:
        """Of a channel of the input."""
        return prod(self.kernel) * self.outputs

    @property
    def channels(self) -> int:
        """Of a tile as it is stored: a power of two."""
        return power(self.outputs)

    @property
    def wide(self) -> int:
        """Phases along width of a tile as it is stored: a power of two."""
        return power(self.stride[2])

    @property
    def outside(self) -> bool:
        return any(self.leaves)


class FewSizes(NamedTuple):
    """What the kernel is told when it runs.

    Divisors: blocks of a sample's anchors, anchors of a plane and of a line. ``channels`` of the
    input, in so many ``steps``; the strides of the input, and from one of its channels to the next
    among the weights. Output ``s*a + r - back`` of an axis is phase ``r`` of anchor ``a``, whose
    first tap reads input ``first + a``.
    """

    blocks: Any
    plane: Any
    line: Any
    anchors: Any
    channels: Any
    steps: Any
    first: Any
    inputs: Any
    source: Any
    weights: Any
    results: Any
    back: Any
