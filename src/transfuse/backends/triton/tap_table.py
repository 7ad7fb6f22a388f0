"""Where a transposed convolution's outputs lie, axis by axis, as a GPU tile meets them.

A tile holds *anchors* ``q``; result ``m*q + c`` of an axis belongs to anchor ``q`` and *class*
``c``. Without a window after the convolution a class is a phase of the stride. With one (kernel K,
stride ws, padding wp), result ``y`` covers the convolution's outputs ``ws*y - wp + r``, its
*members* ``r`` in [0, K), and ``m = s / gcd(ws, s)`` classes make all anchors alike:

    o = ws*(m*q + c) - wp + r,   i = (o + p - k*d) / s = a*q + offset,   a = ws / gcd(ws, s)

so that one (class, member) reads the input at the same offsets everywhere. Inputs are kept apart
by their *residue* modulo ``a``: those of one residue lie side by side, and a tap is a shift.
"""

from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

from transfuse.backends.triton.strides import Three
from transfuse.geometry import Axis


@dataclass(frozen=True)
class AxisTaps:
    """One axis. ``entries[c*members + r]`` is ``(first, count, slot)``: tap ``t`` in [0, count)
    reads offset ``first - t*step`` with the weights in slot ``slot + t``; ``order[slot]`` is the
    kernel's own index. ``met``: the results, and those beyond that a statistic still covers.
    ``low`` and ``high`` bound ``offset // residues``.
    """

    inputs: int
    outputs: int
    results: int
    met: int
    anchors: int
    classes: int
    members: int
    residues: int
    window_stride: int
    window_padding: int
    step: int
    entries: tuple[Three, ...]
    order: tuple[int, ...]
    low: int
    high: int

    @property
    def kept(self) -> int:
        """Inputs of one residue."""
        return -(-self.inputs // self.residues)

    @cached_property
    def pitch(self) -> int:
        """Rows from one line of a flat copy to the next: zeros after a line serve the one after."""
        reach = max(
            len(range(at // self.members, self.met, self.classes)) + first // self.residues
            for at, (first, count, _) in enumerate(self.entries)
            if count or at == 0
        )
        return max(self.kept - min(self.low, 0), self.anchors, reach)

    @property
    def haloed(self) -> int:
        """Rows of a copy that holds every shift of every anchor."""
        return self.anchors + self.high - self.low

    @property
    def reads(self) -> int:
        """(anchor, member, tap) triples over all classes, those past the borders included."""
        return self.anchors * sum(count for _, count, _ in self.entries)

    @cached_property
    def found(self) -> int:
        """Those of them that find an input."""
        total = 0
        for first, count, _ in self.entries:
            for t in range(count):
                offset = first - t * self.step
                low = max(0, -(offset // self.residues))  # least q with q*residues + offset >= 0
                high = min(self.anchors - 1, (self.inputs - 1 - offset) // self.residues)
                total += max(0, high - low + 1)
        return total


def axis_taps(axis: Axis, window: Three, results: int, cover: bool) -> AxisTaps:
    """The taps of one axis; ``cover``: every output of the convolution must be met."""
    kernel, stride, padding = window
    shared = gcd(stride, axis.stride)
    classes, residues = axis.stride // shared, stride // shared
    step = axis.dilation // gcd(axis.stride, axis.dilation)
    phases: dict[int, list[int]] = {}
    for k in range(axis.k):
        phases.setdefault(k * axis.dilation % axis.stride, []).append(k)
    order = [k for phase in sorted(phases) for k in phases[phase]]
    entries = []
    for c in range(classes):
        for r in range(kernel):
            base = stride * c - padding + r + axis.padding
            taps = phases.get(base % axis.stride, [])
            if taps:
                first = (base - taps[0] * axis.dilation) // axis.stride
                entries.append((first, len(taps), order.index(taps[0])))
            else:
                entries.append((0, 0, 0))
    offsets = [
        (first - t * step) // residues for first, count, _ in entries for t in range(count)
    ] or [0]
    met = max(results, -(-axis.size // stride)) if cover else results
    return AxisTaps(
        inputs=axis.n,
        outputs=axis.size,
        results=results,
        met=met,
        anchors=-(-met // classes),
        classes=classes,
        members=kernel,
        residues=residues,
        window_stride=stride,
        window_padding=padding,
        step=step,
        entries=tuple(entries),
        order=tuple(order),
        low=min(offsets),
        high=max(offsets),
    )


ONE = axis_taps(Axis(1, 1), (1, 1, 0), 1, False)
"""The axis that a problem of lower rank lacks."""


@dataclass(frozen=True)
class TapTable:
    """Three axes, depth first; missing ones are ``ONE``."""

    depth: AxisTaps
    height: AxisTaps
    width: AxisTaps

    @classmethod
    def of(
        cls,
        axes: tuple[Axis, ...],
        windows: tuple[Three, ...],
        results: tuple[int, ...],
        cover: bool,
    ) -> "TapTable":
        taps = [axis_taps(*each, cover) for each in zip(axes, windows, results, strict=True)]
        return cls(*[ONE] * (3 - len(taps)), *taps)

    @property
    def axes(self) -> tuple[AxisTaps, AxisTaps, AxisTaps]:
        return self.depth, self.height, self.width

    def each(self, name: str) -> Three:
        """One property of the three axes."""
        d, h, w = (getattr(each, name) for each in self.axes)
        return d, h, w

    @property
    def classes(self) -> int:
        return prod(self.each("classes"))

    @property
    def residues(self) -> int:
        return prod(self.each("residues"))

    @property
    def slots(self) -> int:
        """Taps of the kernel."""
        return prod(len(each.order) for each in self.axes)

    @property
    def leaves(self) -> bool:
        """Whether any tap of any result falls outside the input."""
        return any(each.found < each.reads for each in self.axes)

    @property
    def flat(self) -> tuple[int, ...]:
        """Entries of the three axes, one after the other."""
        return tuple(n for each in self.axes for entry in each.entries for n in entry)

    def slot_of_tap(self) -> tuple[int, ...]:
        """The slot of each of the kernel's taps, in the kernel's order."""
        d, h, w = self.axes
        return tuple(
            (d.order.index(i) * len(h.order) + h.order.index(j)) * len(w.order) + w.order.index(k)
            for i in range(len(d.order))
            for j in range(len(h.order))
            for k in range(len(w.order))
        )
