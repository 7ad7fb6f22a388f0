"""How a segment is cut into tiles: valid by construction, the best of what was counted or tuned."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from transfuse.backends.triton.engines.workload import Workload
from transfuse.backends.triton.gpu import MULTIPROCESSORS, SHARED
from transfuse.backends.triton.segments import power
from transfuse.backends.triton.strides import Box, Three
from transfuse.backends.triton.tap_table import TapTable

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
class Tiling:
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


def joined(tap_table: TapTable, form: str) -> int:
    """Width classes of one tile: all of them, where they can be stored side by side."""
    classes = tap_table.width.classes
    return classes if form != "batch" and classes in (1, 2, 4, 8) else 1


def _held(work: Workload, form: str) -> int:
    """Width classes of a tile whose results are held at once."""
    return 1 if work.only_gathers else joined(work.tap_table, form)


def tiles(work: Workload, form: str, box: Box, cross: bool) -> int:
    """How many tiles cover the anchors of all samples."""
    anchors = work.tap_table.each("anchors")
    if form == "batch":
        counts = [-(-n // b) for n, b in zip((*anchors, work.batch), box, strict=True)]
        return prod(counts)
    if form == "box":
        counts = [-(-n // b) for n, b in zip(anchors, box[1:], strict=True)]
        return work.batch * prod(counts)
    pitch = work.tap_table.each("pitch")
    if cross:
        return -(-work.batch * prod(pitch) // box[3])
    return work.batch * -(-used_rows(anchors, pitch) // box[3])


def used_rows(anchors: Three, pitch: Three) -> int:
    """Rows of a sample from its first anchor to its last."""
    return ((anchors[0] - 1) * pitch[1] + anchors[1] - 1) * pitch[2] + anchors[2]


def crosses(work: Workload, box: Box) -> bool:
    """Whether tiles of rows should run on from one sample into the next."""
    if work.per_sample:
        return False
    return tiles(work, "rows", box, True) < 0.97 * tiles(work, "rows", box, False)


def heuristic(work: Workload, capability: int, form: str | None = None) -> Tiling:
    """The tiles that waste the least, of a form if one is asked for.

    A kernel is built for each, so there are few to choose from for all batches and sizes: rows, and
    for a window also the samples of one position. By what ``_cost`` counts, other forms and
    boxes would save 1 to 4 % over drawn sizes, and up to 40 % before a window of three axes.
    """
    found = (each for each in few(work, capability) if form in (None, each.form))
    return min(found, key=lambda config: _cost(work, config, capability))


def few(work: Workload, capability: int) -> Iterator[Tiling]:
    """Those of all candidates that the heuristic chooses from: the same for all sizes, as far as
    samples fill them. Programs that share a window's members make no kernels of their own.
    """
    for form in ("rows", "batch") if work.windowed and not work.depthwise else ("rows",):
        largest, middle, least = _positions(work, form)
        sizes = {largest, least} if work.windowed or work.only_gathers else {largest, middle, least}
        for positions in sorted(sizes, reverse=True):
            box = 1, 1, 1, positions
            if box not in _boxes(work, form, positions):
                continue
            if form == "rows" or not work.per_sample:
                for each in _tilings(work, form, box, capability):
                    # Members are shared where there are few programs: small tiles come first.
                    if each.split == 1 or positions == least:
                        yield each


def candidates(work: Workload, capability: int) -> Iterator[Tiling]:
    """Every form and box of the usual size."""
    for form in ("rows",) if work.depthwise else ("box", "rows", "batch"):
        if form != "batch" or not work.per_sample:
            for positions in sorted(set(_positions(work, form)), reverse=True):
                for box in _boxes(work, form, positions):
                    yield from _tilings(work, form, box, capability)


def _positions(work: Workload, form: str) -> Three:
    """The usual sizes of a tile: as much as registers hold, half of it, and a quarter."""
    channels, warps = _channels(work), _warps(work)
    room = 4096 * warps // channels // (2 if work.windowed and warps == 8 else 1)
    if work.thrice and warps == 4:
        room //= 2
    most = max(16, min(256, power(room // _held(work, form) + 1) // 2))
    return most, max(16, most // 2), max(16, most // 4)


def _tilings(work: Workload, form: str, box: Box, capability: int) -> Iterator[Tiling]:
    """Tiles of a form and a box, by the programs that share the members of a window."""
    channels, depth, warps = _channels(work), depth_of(work), _warps(work)
    stages = _stages(channels, prod(box), depth, work, capability, warps)
    for split in _splits(work):
        yield Tiling(form, box, channels, depth, warps, stages, split)


def _warps(work: Workload) -> int:
    return 4 if _channels(work) <= 64 else 8


def space(work: Workload, capability: int) -> Iterator[Tiling]:
    """Every choice that could be worth a measurement, the likely ones first."""
    first = list(few(work, capability))
    usual = {*first, *candidates(work, capability)}
    for some in (first, usual.difference(first)):
        yield from sorted(some, key=lambda config: _cost(work, config, capability))
    for form, positions in product(FORMS, [2**i for i in range(4, 10)]):
        for box in _boxes(work, form, positions):
            for config in around(work, form, box, capability):
                if config not in usual:
                    yield config


def around(work: Workload, form: str, box: Box, capability: int) -> Iterator[Tiling]:
    """Every valid choice with this form and box."""
    widest = min(MOST_BOX, _most_channels(work))
    channels = [widest >> i for i in range(3)]
    depths = [LINE // work.item >> i for i in range(3)]
    for rest in product(channels, depths, (4, 8, 16), range(2, 7), _splits(work)):
        config = Tiling(form, box, *rest)
        if valid(work, config, capability):
            yield config


def valid(work: Workload, config: Tiling, capability: int) -> bool:
    """Whether a kernel of these tiles computes this work, without gross waste."""
    return not fault(work, config, capability)


def fault(work: Workload, config: Tiling, capability: int) -> str:
    """Why ``config`` is not valid for ``work``; empty where it is."""
    box, form = config.box, config.form
    for name in ("channels", "depth", "warps"):
        if not _is_power(getattr(config, name)):
            return f"{name} {getattr(config, name)} is not a power of two"
    if len(box) != 4 or not all(map(_is_power, box)):
        return f"a box is four powers of two, not {box}"
    if max(box) > MOST_BOX or config.channels > MOST_BOX:
        return f"a box of {box} and {config.channels} channels passes {MOST_BOX}"
    return _misfit(work, config, form) or _overflow(work, config, capability)


def _misfit(work: Workload, config: Tiling, form: str) -> str:
    """Where the form, the box, the channels or the split do not suit the work."""
    anchors = work.tap_table.each("anchors")
    if form not in ("rows",) if work.depthwise else form not in FORMS:
        return f"no kernel for tiles of the form {form!r}"
    if form == "batch" and work.per_sample:
        return "a statistic of each sample needs tiles of one sample"
    limits = {"rows": (1, 1, 1, None), "box": (1, *anchors), "batch": (*anchors, work.batch)}
    for size, most in zip(config.box, limits[form], strict=True):
        if most is not None and size > power(most):
            return f"a box of {config.box} is larger than what it tiles"
    most = _most_channels(work)
    if config.channels > most or (work.all_channels and config.channels != most):
        return f"{config.channels} channels where a tile takes {most}"
    if min(config.channels, config.positions, config.depth) < LEAST:
        return f"channels, positions and depth are at least {LEAST}"
    if config.depth * work.item > LINE:
        return f"{config.depth} channels of {work.item} bytes pass a line of {LINE}"
    if config.depth > LEAST and _padded(work, config.depth) > PADDING * work.channels:
        return f"blocks of {config.depth} pad {work.channels} channels too far"
    if config.split not in _splits(work):
        return f"{config.split} programs do not share the members of this window"
    return ""


def _overflow(work: Workload, config: Tiling, capability: int) -> str:
    """Where registers or shared memory are too small."""
    if not 1 <= config.warps <= 16 or not 1 <= config.stages <= 8:
        return f"{config.warps} warps in {config.stages} stages"
    held = config.channels * config.positions * _held(work, config.form)
    each, all_ = ACCUMULATORS
    if held > min(all_, each * 32 * config.warps):
        return f"{config.warps} warps do not hold {held} sums"
    taken, room = _shared(work, config, capability), SHARED.get(capability, 99_000)
    if taken > room:
        return f"{config.stages} stages take {taken} bytes of shared memory, of {room}"
    return ""


def _shared(work: Workload, config: Tiling, capability: int) -> int:
    """Bytes of shared memory, as compiled kernels have them, but for a few barriers."""
    if work.depthwise:
        return 0
    row = config.depth * work.item
    block = last = (config.channels + config.positions) * row
    if work.thrice and 90 <= capability < 120 and config.channels >= 64:
        last = max(block, 2 * config.positions * row)  # both parts of what is multiplied
    return (config.stages - 1) * block + last


def _is_power(n: int) -> bool:
    return n >= 1 and n & (n - 1) == 0


def _boxes(work: Workload, form: str, positions: int) -> Iterator[Box]:
    if form == "rows":
        yield 1, 1, 1, positions
        return
    sizes = [2**i for i in range(positions.bit_length())]
    limits = work.tap_table.each("anchors")
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
                and n < 2 * power(work.batch)
                and all(b < 2 * power(m) for b, m in zip((d, h, w), limits, strict=True))
            ):
                yield d, h, w, n


def _cost(work: Workload, config: Tiling, capability: int = 90) -> float:
    """Positions computed, weighted by the taps that are skipped, and by how results lie."""
    cross = config.form == "rows" and crosses(work, config.box)
    count = tiles(work, config.form, config.box, cross)
    together = joined(work.tap_table, config.form)
    outputs = work.outputs * (work.groups if work.depthwise else 1)
    blocks = -(-outputs // config.channels) * (1 if work.depthwise else work.groups)
    programs = count * (work.tap_table.classes // together) * blocks * config.split
    at_once = MULTIPROCESSORS.get(capability, 108) * residents(work, config.warps)
    waves = max(programs, 1) / at_once
    # The last wave may be nearly empty; small tiles read more for what they compute.
    cost = count * config.positions * (-(-programs // at_once) / waves)
    cost *= 1 + 64 / config.channels + 64 / config.positions + 0.01 * (config.split - 1)
    if config.form == "batch":
        cost *= 1.1 if work.windowed else 2.0  # results of one sample lie far apart
        if config.lone:
            for each in work.tap_table.axes:
                cost *= each.found / max(1, each.reads)
    elif config.form == "rows":
        cost *= 1.02
    # Long rows are read and written best.
    return cost * (1 + 1e-3 / config.box[3])


def _splits(work: Workload) -> tuple[int, ...]:
    """Ways to share out the members of a window, along its first axis that has several."""
    members = next((n for n in work.tap_table.each("members") if n > 1), 1)
    return tuple(n for n in range(1, min(members, 8) + 1) if members % n == 0)


def _channels(work: Workload) -> int:
    most = _most_channels(work)
    return most if work.all_channels else min(most, 128)


def _most_channels(work: Workload) -> int:
    """The power of two that holds all channels a tile may divide."""
    return max(LEAST, power(work.outputs * (work.groups if work.depthwise else 1)))


def _padded(work: Workload, depth: int) -> int:
    return -(-work.channels // depth) * depth


def depth_of(work: Workload) -> int:
    """Channels summed over at a time: a full line of shared memory, if that pads little."""
    depth = LINE // work.item
    while depth > LEAST and _padded(work, depth) > PADDING * work.channels:
        depth //= 2
    return depth


def residents(work: Workload, warps: int) -> int:
    """Programs that share a multiprocessor: registers decide, a window's extremum among them."""
    return 1 if warps == 8 else 2 if work.windowed else 3


def _stages(
    channels: int, positions: int, depth: int, work: Workload, capability: int, warps: int
) -> int:
    """As many as fit beside the other programs of a multiprocessor."""
    room = SHARED.get(capability, 99_000) // residents(work, warps)
    one = (channels + positions) * depth * work.item
    # A short sum does not fill a long pipeline.
    steps = -(-work.channels // depth) * work.tap_table.slots // work.tap_table.classes
    return max(2, min(6, steps, (room - 1024) // one))
