"""Anchors of a transposed convolution, and how tensors lie for it.

``y[s*a + r - back]`` of an axis is phase ``r`` of anchor ``a``, which tap ``j`` reads input
``first + a - j`` for. Where the stride does not divide the kernel, the last tap has no weights for
some phases. Plain integers.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod

from transfuse.backends.triton.epilogue.records import Destination
from transfuse.backends.triton.strides import CHANNELS, WIDTH, Five, Three, inner
from transfuse.backends.triton.told import all_told, told
from transfuse.geometry import Axis


@dataclass(frozen=True)
class AnchorAxis:
    """The anchors of one axis."""

    inputs: int
    results: int
    stride: int
    taps: int
    first: int
    anchors: int
    back: int

    @classmethod
    def of(cls, axis: Axis, results: int) -> "AnchorAxis":
        first = axis.padding // axis.stride
        last = (axis.padding + results - 1) // axis.stride
        back = axis.padding - first * axis.stride
        taps = -(-axis.k // axis.stride)
        return cls(axis.n, results, axis.stride, taps, first, last - first + 1, back)

    @property
    def whole(self) -> bool:
        """Whether every input is an anchor, and nothing else is."""
        return self.taps == 1 and self.first == 0 and self.anchors == self.inputs

    @property
    def leaves(self) -> bool:
        """Whether a tap of an anchor falls outside the input."""
        return self.first < self.taps - 1 or self.first + self.anchors > self.inputs

    @property
    def extent(self) -> int:
        """Inputs of a line of a copy in which every tap outside the input finds a zero: one that
        it has after its inputs, before the next line."""
        before = self.taps - 1 - self.first
        return max(self.inputs + max(before, 0), self.first + self.anchors, self.anchors)


ONE = AnchorAxis(1, 1, 1, 1, 0, 1, 0)
"""The axis that a problem of lower rank lacks."""


@dataclass(frozen=True)
class Anchors:
    """Three axes, depth first; missing ones are ``ONE``."""

    depth: AnchorAxis
    height: AnchorAxis
    width: AnchorAxis

    @classmethod
    def of(cls, axes: tuple[Axis, ...], results: tuple[int, ...]) -> "Anchors":
        found = [AnchorAxis.of(*each) for each in zip(axes, results, strict=True)]
        return cls(*[ONE] * (3 - len(found)), *found)

    @property
    def axes(self) -> tuple[AnchorAxis, AnchorAxis, AnchorAxis]:
        return self.depth, self.height, self.width

    def each(self, name: str) -> Three:
        """One property of the three axes."""
        d, h, w = (getattr(each, name) for each in self.axes)
        return d, h, w

    @property
    def phases(self) -> int:
        return prod(self.each("stride"))

    @property
    def taps(self) -> int:
        return prod(self.each("taps"))

    @property
    def whole(self) -> bool:
        return all(each.whole for each in self.axes)

    @property
    def leaves(self) -> bool:
        return any(each.leaves for each in self.axes)

    def cropped(self, extent: Three) -> bool:
        """Whether some outputs are no results, of anchors that lines of an extent have."""
        return any(
            each.back > 0 or size * each.stride != each.results
            for each, size in zip(self.axes, extent, strict=True)
        )

    def first(self, extent: Three) -> int:
        """The input of the first anchor among lines of an extent."""
        d, h, w = self.each("first")
        return (d * extent[1] + h) * extent[2] + w

    def unit(
        self, strides: Five, most: int, channels: int, tile: int, line: int, any_size: bool
    ) -> int:
        """How many results are always one aligned piece of a tensor: ``most`` where sizes allow it,
        else (or where ``any_size``) those that are so for all widths; a kernel is built for each.

        Tiles are of so many channels, where these lie side by side, or else of so many anchors;
        a ``line`` has so many of these.
        """
        axis, width = inner(strides), self.width
        numbers = [strides[0], strides[2], strides[3]]
        always = 1
        if axis == CHANNELS:
            numbers += [strides[4], channels, tile]
        elif axis == WIDTH:
            numbers += [strides[1], line * width.stride, width.back, width.results]
            numbers += [tile * width.stride]
            always = gcd(most, width.stride, width.back, width.results)
            most = always if any_size else most
        else:
            return 1
        return next(unit for unit in (most, always, 1) if not any(n % unit for n in numbers))


@dataclass(frozen=True)
class Source:
    """The input as the copy engine reads it: sample, channel and position, or channels last.

    ``extent``: the inputs that lines of each axis have. Where it is a copy, strides are dense.
    """

    channels_last: bool
    crosses: bool
    extent: Three
    sizes: Three
    strides: Three | None = None

    @property
    def copied(self) -> bool:
        return self.strides is None

    @property
    def count(self) -> int:
        """Inputs that tiles run over."""
        return self.sizes[1] if self.channels_last else self.sizes[2]


def copy_of(batch: int, channels: int, extent: Three, crosses: bool) -> Source:
    """A copy of the input, by rows of channels."""
    count = prod(extent)
    sizes = (1, batch * count, channels) if crosses else (batch, count, channels)
    return Source(True, crosses, extent, sizes)


def in_place(
    batch: int, channels: int, sizes: Three, strides: Five, unit: int, crosses: bool
) -> Source | None:
    """How an input can be read where it lies; aligned pieces of memory have ``unit`` elements.

    ``crosses``: tiles may run on from one sample into the next.

    None where its positions do not follow each other, or channels or samples do not begin where a
    piece does.
    """
    count, pitch = prod(sizes), _pitch(sizes, strides)
    sample, channel = strides[:2]
    if pitch is None or (batch > 1 and sample % unit):
        return None
    if channel == 1 and channels > 1:
        pitch = sample if count == 1 else pitch
        if pitch % unit == 0:
            if crosses and (batch == 1 or sample == count * pitch):
                whole = batch * count
                return Source(True, True, sizes, (1, whole, channels), (whole * pitch, pitch, 1))
            sample = sample if batch > 1 else count * pitch
            return Source(True, False, sizes, (batch, count, channels), (sample, pitch, 1))
    elif pitch == 1 and (channels == 1 or channel % unit == 0):
        apart = channel if channels > 1 else -(-count // unit) * unit
        sample = sample if batch > 1 else channels * apart
        return Source(False, False, sizes, (batch, channels, count), (sample, apart, 1))
    return None


def _pitch(sizes: Three, strides: Five) -> int | None:
    """The stride at which positions follow each other, if they do at one; of one alone, 1."""
    found = [(n, s) for n, s in zip(sizes, strides[2:], strict=True) if n > 1]
    for (_, outer), (n, s) in pairwise(found):
        if outer != n * s:
            return None
    return found[-1][1] if found else 1


def destination(strides: Five) -> Destination:
    """Where results go, as a kernel is told it; what is stored together is compiled in."""
    return Destination(all_told(strides), told(0), told(0))
