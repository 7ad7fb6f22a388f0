"""How a pass is cut into tiles: valid by construction, the best of what was counted or tuned."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from transfuse.backends.triton.lattice import Lattice, Three
from transfuse.backends.triton.lower import Pass, Statistic, power
from transfuse.problem import Problem

Box = tuple[int, int, int, int]

SHARED = {80: 163_000, 86: 99_000, 87: 163_000, 89: 99_000, 90: 227_000, 100: 227_000}
"""Shared memory of one program, in bytes, by compute capability."""

MULTIPROCESSORS = {80: 108, 86: 84, 89: 128, 90: 132, 100: 148}
"""Programs that run at once, one on each; by compute capability, of the largest GPU."""


@dataclass(frozen=True)
class Config:
    """A tile of a convolution: ``box`` positions of a ``form``, ``channels``, ``depth`` of the
    channels summed over at a time; warps and pipeline stages."""

    form: str
    box: Box
    channels: int
    depth: int
    warps: int
    stages: int
    split: int = 1
    """Programs that share the members of a window along its first axis."""

    @property
    def positions(self) -> int:
        return prod(self.box)

    @property
    def lone(self) -> bool:
        """Whether a tile is one position of many samples: taps outside the input are left out."""
        return self.form == "batch" and self.positions == self.box[3]


@dataclass(frozen=True)
class Shape:
    """What a choice of tiles depends on."""

    lattice: Lattice
    batch: int
    channels: int  # of one group
    outputs: int  # of one group
    groups: int
    item: int
    all_channels: bool
    per_sample: bool
    windowed: bool
    thrice: bool  # float32 as three products, its parts made in registers

    @property
    def depthwise(self) -> bool:
        return self.channels == 1


def describe(
    lattice: Lattice, problem: Problem, each: Pass, statistics: tuple[Statistic, ...], item: int
) -> Shape:
    numbers = {at for step in (*each.before, *each.after) for at in step.tensors}
    used = {at[0] for at in numbers if isinstance(at, tuple)}
    used |= {at for at in (each.early, each.late) if at is not None}
    return Shape(
        lattice,
        problem.batch,
        problem.in_channels // problem.groups,
        problem.out_channels // problem.groups,
        problem.groups,
        item,
        each.channel_stage,
        any(not statistics[at].over_batch for at in used),
        each.window is not None,
        problem.arithmetic == "fp32",
    )


def joined(lattice: Lattice, form: str) -> int:
    """Width classes of one tile: all of them, where they can be stored side by side."""
    classes = lattice.width.classes
    return classes if form != "batch" and classes in (1, 2, 4, 8) else 1


def tiles(shape: Shape, form: str, box: Box, cross: bool) -> int:
    """How many tiles cover the anchors of all samples."""
    anchors = shape.lattice.each("anchors")
    if form == "batch":
        counts = [-(-n // b) for n, b in zip((*anchors, shape.batch), box, strict=True)]
        return prod(counts)
    if form == "box":
        counts = [-(-n // b) for n, b in zip(anchors, box[1:], strict=True)]
        return shape.batch * prod(counts)
    pitch = shape.lattice.each("pitch")
    if cross:
        return -(-shape.batch * prod(pitch) // box[3])
    return shape.batch * -(-used_rows(anchors, pitch) // box[3])


def used_rows(anchors: Three, pitch: Three) -> int:
    """Rows of a sample from its first anchor to its last."""
    return ((anchors[0] - 1) * pitch[1] + anchors[1] - 1) * pitch[2] + anchors[2]


def crosses(shape: Shape, box: Box) -> bool:
    """Whether tiles of rows should run on from one sample into the next."""
    if shape.per_sample:
        return False
    return tiles(shape, "rows", box, True) < 0.97 * tiles(shape, "rows", box, False)


@lru_cache(maxsize=4096)
def heuristic(shape: Shape, capability: int, form: str | None = None) -> Config:
    """The tiles that waste the least, of a form if one is asked for."""
    found = (each for each in candidates(shape, capability) if form in (None, each.form))
    return min(found, key=lambda config: _cost(shape, config, capability))


def candidates(shape: Shape, capability: int) -> Iterator[Config]:
    """Every form and box of the usual size."""
    channels = _channels(shape)
    depth = depth_of(shape)
    warps = 4 if channels <= 64 else 8
    room = 4096 * warps // channels // (2 if shape.windowed and warps == 8 else 1)
    if shape.thrice and warps == 4:
        room //= 2
    for form in ("rows",) if shape.depthwise else ("box", "rows", "batch"):
        if form == "batch" and shape.per_sample:
            continue
        together = joined(shape.lattice, form)
        most = max(16, min(256, power(room // together + 1) // 2))
        for positions in {most, max(16, most // 2), max(16, most // 4)}:
            stages = _stages(channels, positions, depth, shape, capability, warps)
            for box, split in product(_boxes(shape, form, positions), _splits(shape)):
                yield Config(form, box, channels, depth, warps, stages, split)


def _boxes(shape: Shape, form: str, positions: int) -> Iterator[Box]:
    if form == "rows":
        yield 1, 1, 1, positions
        return
    sizes = [2**i for i in range(positions.bit_length())]
    limits = shape.lattice.each("anchors")
    if form == "box":
        for d, h in product(sizes, sizes):
            w = positions // (d * h)
            if w and all(b < 2 * power(n) for b, n in zip((d, h, w), limits, strict=True)):
                yield 1, d, h, w
    else:
        for d, h, w in product(sizes, sizes, sizes):
            n = positions // (d * h * w)
            if (
                n
                and n < 2 * power(shape.batch)
                and all(b < 2 * power(m) for b, m in zip((d, h, w), limits, strict=True))
            ):
                yield d, h, w, n


def _cost(shape: Shape, config: Config, capability: int = 90) -> float:
    """Positions computed, weighted by the taps that are skipped, and by how results lie."""
    cross = config.form == "rows" and crosses(shape, config.box)
    count = tiles(shape, config.form, config.box, cross)
    together = joined(shape.lattice, config.form)
    outputs = shape.outputs * (shape.groups if shape.depthwise else 1)
    blocks = -(-outputs // config.channels) * (1 if shape.depthwise else shape.groups)
    programs = count * (shape.lattice.classes // together) * blocks * config.split
    at_once = MULTIPROCESSORS.get(capability, 108) * _residents(shape, config.warps)
    waves = max(programs, 1) / at_once
    # The last wave may be nearly empty; small tiles read more for what they compute.
    cost = count * config.positions * (-(-programs // at_once) / waves)
    cost *= 1 + 64 / config.channels + 64 / config.positions + 0.01 * (config.split - 1)
    if config.form == "batch":
        cost *= 1.1 if shape.windowed else 2.0  # results of one sample lie far apart
        if config.lone:
            for each in shape.lattice.lines:
                cost *= each.found / max(1, each.reads)
    elif config.form == "rows":
        cost *= 1.02
    # Long rows are read and written best.
    return cost * (1 + 1e-3 / config.box[3])


def _splits(shape: Shape) -> tuple[int, ...]:
    """Ways to share out the members of a window, along its first axis that has several."""
    members = next((n for n in shape.lattice.each("members") if n > 1), 1)
    return tuple(n for n in range(1, min(members, 8) + 1) if members % n == 0)


def _channels(shape: Shape) -> int:
    outputs = shape.outputs * (shape.groups if shape.depthwise else 1)
    most = power(outputs) if shape.all_channels else 128
    return max(16, min(most, power(outputs)))


def depth_of(shape: Shape) -> int:
    """Channels summed over at a time: a full line of shared memory, if that pads little."""
    depth = 128 // shape.item
    while depth > 16 and -(-shape.channels // depth) * depth > 1.25 * shape.channels:
        depth //= 2
    return depth


def _residents(shape: Shape, warps: int) -> int:
    """Programs that share a multiprocessor: registers decide, a window's extremum among them."""
    return 1 if warps == 8 else 2 if shape.windowed else 3


def _stages(
    channels: int, positions: int, depth: int, shape: Shape, capability: int, warps: int
) -> int:
    """As many as fit beside the other programs of a multiprocessor."""
    room = SHARED.get(capability, 99_000) // _residents(shape, warps)
    one = (channels + positions) * depth * shape.item
    # A short sum does not fill a long pipeline.
    steps = -(-shape.channels // depth) * shape.lattice.slots // shape.lattice.classes
    return max(2, min(6, steps, (room - 1024) // one))
