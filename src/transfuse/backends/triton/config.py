"""How a pass is cut into tiles: valid by construction, the best of what was counted or tuned."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from transfuse.backends.triton.lattice import Lattice, Three
from transfuse.backends.triton.lower import Pass, Program, Statistic, power
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem

Box = tuple[int, int, int, int]

SHARED = {80: 163_000, 86: 99_000, 87: 163_000, 89: 99_000, 90: 227_000, 100: 227_000}
"""Shared memory of one program, in bytes, by compute capability."""

MULTIPROCESSORS = {80: 108, 86: 84, 89: 128, 90: 132, 100: 148}
"""Programs that run at once, one on each; by compute capability, of the largest GPU."""


FORMS = ("rows", "box", "batch")
MOST_BOX = 256
"""Rows or channels along one side of a box that is copied to shared memory."""
LINE = 128
"""Bytes of one row of such a box."""
LEAST = 16
"""Rows and columns of the smallest product of tensor cores that serves every element type."""
ACCUMULATORS = 128, 2**15
"""Sums that one thread holds, and one program: half of all registers, of which more threads have
fewer each."""
PADDING = 1.25
"""How far blocks of channels may pad a group's, unless they are the smallest."""


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
    only_gathers: bool
    thrice: bool  # float32 as three products, its parts made in registers

    @property
    def depthwise(self) -> bool:
        return self.channels == 1


def shape_of(program: Program, core: Problem, each: Pass) -> Shape:
    """What the tiles of a pass that convolves depend on."""
    windows = ((1, 1, 0),) * core.rank
    if each.window is not None:
        windows = each.window.windows(core.rank)
    lattice = Lattice.of(core.axes, windows, each.result.spatial, cover=each.early is not None)
    return describe(lattice, core, each, program.statistics, ELEMENTS[core.dtype].itemsize)


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
        each.only_gathers,
        problem.arithmetic == "fp32",
    )


def joined(lattice: Lattice, form: str) -> int:
    """Width classes of one tile: all of them, where they can be stored side by side."""
    classes = lattice.width.classes
    return classes if form != "batch" and classes in (1, 2, 4, 8) else 1


def _held(shape: Shape, form: str) -> int:
    """Width classes of a tile whose results are held at once."""
    return 1 if shape.only_gathers else joined(shape.lattice, form)


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
        most = max(16, min(256, power(room // _held(shape, form) + 1) // 2))
        for positions in {most, max(16, most // 2), max(16, most // 4)}:
            stages = _stages(channels, positions, depth, shape, capability, warps)
            for box, split in product(_boxes(shape, form, positions), _splits(shape)):
                yield Config(form, box, channels, depth, warps, stages, split)


def space(shape: Shape, capability: int) -> Iterator[Config]:
    """Every choice that could be worth a measurement, the likely ones first."""
    usual = set(candidates(shape, capability))
    yield from sorted(usual, key=lambda config: _cost(shape, config, capability))
    for form, positions in product(FORMS, [2**i for i in range(4, 10)]):
        for box in _boxes(shape, form, positions):
            for config in around(shape, form, box, capability):
                if config not in usual:
                    yield config


def around(shape: Shape, form: str, box: Box, capability: int) -> Iterator[Config]:
    """Every valid choice with this form and box."""
    widest = min(MOST_BOX, _most_channels(shape))
    channels = [widest >> i for i in range(3)]
    depths = [LINE // shape.item >> i for i in range(3)]
    for rest in product(channels, depths, (4, 8, 16), range(2, 7), _splits(shape)):
        config = Config(form, box, *rest)
        if valid(shape, config, capability):
            yield config


def valid(shape: Shape, config: Config, capability: int) -> bool:
    """Whether a kernel of these tiles computes this shape, without gross waste."""
    return not fault(shape, config, capability)


def fault(shape: Shape, config: Config, capability: int) -> str:
    """Why ``config`` is not valid for ``shape``; empty where it is."""
    box, form = config.box, config.form
    for name in ("channels", "depth", "warps"):
        if not _is_power(getattr(config, name)):
            return f"{name} {getattr(config, name)} is not a power of two"
    if len(box) != 4 or not all(map(_is_power, box)):
        return f"a box is four powers of two, not {box}"
    if max(box) > MOST_BOX or config.channels > MOST_BOX:
        return f"a box of {box} and {config.channels} channels passes {MOST_BOX}"
    return _misfit(shape, config, form) or _overflow(shape, config, capability)


def _misfit(shape: Shape, config: Config, form: str) -> str:
    """Where the form, the box, the channels or the split do not suit the shape."""
    anchors = shape.lattice.each("anchors")
    if form not in ("rows",) if shape.depthwise else form not in FORMS:
        return f"no kernel for tiles of the form {form!r}"
    if form == "batch" and shape.per_sample:
        return "a statistic of each sample needs tiles of one sample"
    limits = {"rows": (1, 1, 1, None), "box": (1, *anchors), "batch": (*anchors, shape.batch)}
    for size, most in zip(config.box, limits[form], strict=True):
        if most is not None and size > power(most):
            return f"a box of {config.box} is larger than what it tiles"
    most = _most_channels(shape)
    if config.channels > most or (shape.all_channels and config.channels != most):
        return f"{config.channels} channels where a tile takes {most}"
    if min(config.channels, config.positions, config.depth) < LEAST:
        return f"channels, positions and depth are at least {LEAST}"
    if config.depth * shape.item > LINE:
        return f"{config.depth} channels of {shape.item} bytes pass a line of {LINE}"
    if config.depth > LEAST and _padded(shape, config.depth) > PADDING * shape.channels:
        return f"blocks of {config.depth} pad {shape.channels} channels too far"
    if config.split not in _splits(shape):
        return f"{config.split} programs do not share the members of this window"
    return ""


def _overflow(shape: Shape, config: Config, capability: int) -> str:
    """Where registers or shared memory are too small."""
    if not 1 <= config.warps <= 16 or not 1 <= config.stages <= 8:
        return f"{config.warps} warps in {config.stages} stages"
    held = config.channels * config.positions * _held(shape, config.form)
    each, all_ = ACCUMULATORS
    if held > min(all_, each * 32 * config.warps):
        return f"{config.warps} warps do not hold {held} sums"
    taken, room = _shared(shape, config, capability), SHARED.get(capability, 99_000)
    if taken > room:
        return f"{config.stages} stages take {taken} bytes of shared memory, of {room}"
    return ""


def _shared(shape: Shape, config: Config, capability: int) -> int:
    """Bytes of shared memory, as compiled kernels have them, but for a few barriers."""
    if shape.depthwise:
        return 0
    row = config.depth * shape.item
    block = last = (config.channels + config.positions) * row
    if shape.thrice and 90 <= capability < 120 and config.channels >= 64:
        last = max(block, 2 * config.positions * row)  # both parts of what is multiplied
    return (config.stages - 1) * block + last


def _is_power(n: int) -> bool:
    return n >= 1 and n & (n - 1) == 0


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
    most = _most_channels(shape)
    return most if shape.all_channels else min(most, 128)


def _most_channels(shape: Shape) -> int:
    """The power of two that holds all channels a tile may divide."""
    return max(LEAST, power(shape.outputs * (shape.groups if shape.depthwise else 1)))


def _padded(shape: Shape, depth: int) -> int:
    return -(-shape.channels // depth) * depth


def depth_of(shape: Shape) -> int:
    """Channels summed over at a time: a full line of shared memory, if that pads little."""
    depth = LINE // shape.item
    while depth > LEAST and _padded(shape, depth) > PADDING * shape.channels:
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
