"""A program as launches made ready once: what is left for a call is memory and addresses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from transfuse.backends.triton import config as tiling
from transfuse.backends.triton import hopper, hopper_window
from transfuse.backends.triton.copies import Five, InputCopy, WeightCopy
from transfuse.backends.triton.frame import Frames, watched
from transfuse.backends.triton.kernels.convolve import convolve
from transfuse.backends.triton.kernels.finish import finish
from transfuse.backends.triton.kernels.hopper import convolve_hopper
from transfuse.backends.triton.kernels.hopper_window import convolve_window
from transfuse.backends.triton.kernels.prepare import prepare
from transfuse.backends.triton.kernels.statistics import merge
from transfuse.backends.triton.lattice import Lattice, Three
from transfuse.backends.triton.launch import FLAG, NEVER, All, At, Boxes, Epoch, Launch
from transfuse.backends.triton.lower import (
    Arguments,
    Pass,
    Program,
    Step,
    Table,
    power,
    thirds,
)
from transfuse.backends.triton.tile import After, Tile
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem, Shape
from transfuse.stages.window import AvgPool, ExtremumPool, Window

ACC = {"fp32": tl.float32, "fp16": tl.float32, "bf16": tl.float32, "fp64": tl.float64}
X, WEIGHT, OUT, _, OPERANDS = range(5)
"""Tensors of a call by number; operands follow in the order of their names, then the scratch."""

SHORT, LONG = 256, 1024
"""Products of a sum: few, so that what follows takes longer; many, so that programs take long."""

_epochs = count(2**32)
"""The calls, by number. Triton takes numbers from here on as 64 bits: no call is one too many."""


@dataclass(frozen=True)
class Gpu:
    """What kernels are chosen by; not real in the interpreter."""

    capability: int
    multiprocessors: int
    real: bool = True


@dataclass(frozen=True)
class Finish:
    """What the kernel ``finish`` knows when it is compiled."""

    sizes: Three
    channels: int
    group: int
    block_c: int
    block_p: int
    source_strides: Five
    source_linear: bool
    strides: Five
    linear: bool
    wide: bool
    steps: Table
    late: str
    over_batch: bool
    counted: int
    summed: bool
    stored: bool
    window: str
    sign: int
    parts: int
    part: int

    @property
    def positions(self) -> int:
        return prod(self.sizes)

    @property
    def tiles(self) -> int:
        return -(-self.positions // self.block_p)

    @property
    def groups(self) -> int:
        return -(-self.channels // self.group)


@dataclass(frozen=True)
class Place:
    """A tensor between two passes: its number, and how it lies."""

    number: int
    strides: Five
    parts: int = 1
    part: int = 0
    """Results of shares of a window's members, and how far these lie apart."""


@dataclass(frozen=True)
class Partials:
    """Partials of a statistic: where they lie, from one of their three numbers to the next, how
    many tiles share one and how many partials that makes for a channel."""

    partials: int
    plane: int
    tiles: int
    run: int


class Recipe:
    """The launches of one program for tensors that lie in one way."""

    def __init__(
        self,
        program: Program,
        core: Problem,
        source: Three,
        strides: tuple[Five, Five, Five],
        operands: Sequence[str],
        device: torch.device,
        gpu: Gpu,
        choose: Callable[[Pass, tiling.Shape], tiling.Config],
    ) -> None:
        self.program, self.core, self.source, self.device = program, core, source, device
        self.x_strides, self.weight_strides, self.out_strides = strides
        self.names = {name: OPERANDS + at for at, name in enumerate(operands)}
        self.scratch: list[tuple[int, int, torch.dtype]] = []
        self.bytes = 0
        self.ready = False
        self.frames: Frames | None = None
        self.launches: list[Launch] = []
        self.engines: list[str] = []  # of the passes that convolve
        self.statistics: dict[int, tuple[int, int]] = {}
        self.copies: dict[InputCopy | WeightCopy, int] = {}
        self.choose, self.capability = choose, gpu.capability
        self.hopper = gpu.multiprocessors if gpu.capability == 90 and gpu.real else None
        self.acc = ACC[core.dtype]
        self.wide = torch.float64 if core.dtype == "fp64" else torch.float32
        self._build()

    def __call__(self, tensors: list[Tensor]) -> None:
        """Run on x, weight, out, flag and the operands."""
        scratch = torch.empty(self.bytes, dtype=torch.uint8, device=self.device)
        epoch = next(_epochs)
        given = [tensor.data_ptr() for tensor in tensors]
        if not self.ready:
            self._first(tensors, scratch, epoch)
            return
        stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        if self.frames is not None and not watched():
            self.frames(given, epoch, scratch.data_ptr(), stream)
            return
        base = scratch.data_ptr()
        memory = [*given, *(base + at for at, _, _ in self.scratch)]
        for launch in self.launches:
            launch.again(memory, epoch, stream)

    def _first(self, tensors: list[Tensor], scratch: Tensor, epoch: int) -> None:
        """The first call compiles, from tensors; later ones need no more than addresses."""
        memory = list(tensors)
        for at, size, dtype in self.scratch:
            memory.append(scratch[at : at + size * dtype.itemsize].view(dtype))
        for launch in self.launches:
            launch.first(memory, epoch)
        if self.device.type == "cuda":
            given, offsets = [t.data_ptr() for t in tensors], [at for at, _, _ in self.scratch]
            self.frames = Frames.of(self.launches, given, offsets, scratch.data_ptr())
            self.ready = True

    def _build(self) -> None:
        stored = Place(X, self.x_strides)
        for at, each in enumerate(self.program.passes):
            out = Place(OUT, self.out_strides)
            between = each.stores and at + 1 < len(self.program.passes)
            if not each.convolves:
                if between:
                    out = self._between(each.result)
                self._finish(each, stored, out)
            elif self._window(each, out, between):
                self.engines.append("hopper")
            else:
                config = self._config(each)
                if between:
                    out = self._between(each.result, config.form)
                if config.split > 1:
                    self._share(each, out, config)
                else:
                    self._convolve(each, out, config)
            if each.stores:
                stored = out

    def _share(self, each: Pass, out: Place, config: tiling.Config) -> None:
        """Several programs meet the members of a window; their results meet in a second pass."""
        alone, rest = self._apart(each)
        shares = self._between(alone.result, config.form, config.split)
        self._convolve(alone, shares, config)
        self._finish(rest, shares, out)

    def _apart(self, each: Pass) -> tuple[Pass, Pass]:
        """A pass up to its window, and what is left of it."""
        shape = each.result._replace(c=self.core.out_channels)
        alone = replace(each, result=shape, after=(), late=None, stores=True)
        return alone, replace(each, convolves=False, source=shape, before=(), early=None)

    def _window(self, each: Pass, out: Place, between: bool) -> bool:
        """The kernel for Hopper that takes a window's members in pairs, where it serves."""
        core, item = self.core, ELEMENTS[self.core.dtype].itemsize
        kind = _kind(each.window)
        if self.hopper is None or core.arithmetic not in ("tf32", "fp16", "bf16") or between:
            return False
        shape = tiling.shape_of(self.program, core, each)
        lattice, before = shape.lattice, bool(each.before) or each.early is not None
        if hopper_window.verdict(lattice, core.out_channels, core.groups, kind, before):
            return False
        depth = tiling.depth_of(shape)
        kept = -(-shape.channels // depth) * depth
        found = hopper_window.choose(
            lattice, core.batch, core.out_channels, kept, depth, item, kind, self.hopper
        )
        if found is None or shape.per_sample or shape.depthwise:
            return False
        geometry, rings = found
        config = tiling.Config("batch", geometry.box, geometry.padded, depth, 8, 2, geometry.split)
        if config.lone:
            return False
        alone, rest = self._apart(each)
        shares = self._between(alone.result, "batch", geometry.split)
        tile = Tile.of(shape, config, kind)
        rows, packed = self._copies(lattice, tile)
        layout = hopper.swizzled(rings.swizzle, item, 5)
        weights = tile.rows, tile.slots * tile.kept
        programs = geometry.tiles * geometry.split
        arguments = Arguments()
        arguments_ = [
            Boxes(rows, _copy_sizes(tile, core.batch), (*geometry.box, depth), layout),
            Boxes(packed, weights, (geometry.padded, depth), hopper.swizzled(rings.swizzle, item)),
            At(shares.number), At(FLAG), Epoch if lattice.leaves else NEVER, core.batch, programs,
            self._tensors(arguments), _numbers(arguments), geometry, rings,
            self._after(alone, shares, arguments, False),
        ]  # fmt: skip
        launched = min(self.hopper, programs)
        self.launches.append(Launch(convolve_window, launched, arguments_, {"num_warps": 4}))
        if lattice.leaves:
            self._tiles(alone, shares, shape, config, tile, careful=True)
        self._finish(rest, shares, out)
        return True

    def _config(self, each: Pass) -> tiling.Config:
        return self.choose(each, tiling.shape_of(self.program, self.core, each))

    def _convolve(self, each: Pass, out: Place, config: tiling.Config) -> None:
        """The convolution and what follows; once more for weights that are not finite."""
        shape = tiling.shape_of(self.program, self.core, each)
        fast = self._hopper(each, out, shape)
        self.engines.append("portable" if fast is None else "hopper")
        if fast is None:
            tile = Tile.of(shape, config, _kind(each.window))
            again = shape.lattice.leaves and not tile.depthwise
            fast = careful = self._tiles(each, out, shape, config, tile, careful=False)
        else:
            config = tiling.heuristic(shape, self.capability, "rows")
            tile = Tile.of(shape, config, "")
            again = _again(shape, tile)
            apart = again and fast.partials != FLAG
            careful = self._gather(each, shape, config, tile) if apart else fast
        if again:
            self._tiles(each, out, shape, config, tile, careful=True, gathered=careful)
        gathered = each.early if each.early is not None else each.late
        if gathered is not None:
            self._merge(gathered, fast, careful)

    def _gather(
        self, each: Pass, shape: tiling.Shape, config: tiling.Config, tile: Tile
    ) -> Partials:
        """Memory for the partials of a pass."""
        gathered = each.early if each.early is not None else each.late
        tiles = tiling.tiles(shape, config.form, config.box, tile.cross)
        if gathered is None:
            return Partials(FLAG, 0, tiles, 0)
        statistic = self.program.statistics[gathered]
        counted = tiles if statistic.over_batch else tiles // self.core.batch
        plane = tiles * tile.of_tile * statistic.channels
        return Partials(self._scratch(3 * plane), plane, counted, counted * tile.of_tile)

    def _tiles(
        self,
        each: Pass,
        out: Place,
        shape: tiling.Shape,
        config: tiling.Config,
        tile: Tile,
        careful: bool,
        gathered: Partials | None = None,
    ) -> Partials:
        """The portable kernel, for all tiles or as the second, careful launch."""
        core, batch = self.core, self.core.batch
        rows, packed = self._copies(shape.lattice, tile)
        arguments = Arguments()
        rest = self._after(each, out, arguments, tile.ordered)
        if gathered is None:
            gathered = self._gather(each, shape, config, tile)
        x: At | Boxes = At(rows)
        w: At | Boxes = At(packed)
        if not tile.depthwise:
            x = Boxes(rows, _copy_sizes(tile, batch), (*config.box, config.depth))
            sizes = tile.groups * tile.rows, tile.slots * tile.kept
            w = Boxes(packed, sizes, (config.channels, config.depth))
        tiles = tiling.tiles(shape, config.form, config.box, tile.cross)
        programs = tiles * tile.of_tile * tile.channel_blocks
        arguments_ = [
            x, w, At(rows), At(packed), At(out.number), self._constant(shape.lattice.table),
            At(FLAG), Epoch, batch, self._tensors(arguments), _numbers(arguments),
            At(gathered.partials), gathered.plane, gathered.tiles, programs, tile, rest, self.acc,
            _dot(core), careful,
        ]  # fmt: skip
        options = {"num_warps": config.warps, "num_stages": config.stages}
        if careful:
            options = {"num_warps": 32, "num_stages": 1}
        launched = min(programs, 128) if careful else programs
        self.launches.append(Launch(convolve, launched, arguments_, options))
        return gathered

    def _hopper(self, each: Pass, out: Place, shape: tiling.Shape) -> Partials | None:
        """The kernel for Hopper, where it serves."""
        core = self.core
        if self.hopper is None or core.arithmetic not in ("tf32", "fp16", "bf16"):
            return None
        lattice, item = shape.lattice, ELEMENTS[core.dtype].itemsize
        # Short sums before a statistic: what follows takes longer, and wants more warps.
        if shape.per_sample and shape.channels * lattice.slots < SHORT * lattice.classes:
            return None
        window = each.window is not None
        if hopper.verdict(lattice, core.out_channels, item, core.groups, window):
            return None
        tile = Tile.of(shape, tiling.heuristic(shape, self.capability, "rows"), "")
        if tile.depthwise:
            return None
        arguments = Arguments()
        geometry = hopper.Geometry.of(lattice, core.batch, core.out_channels, tile.kept, False)
        rest = self._after(each, out, arguments, linear=False)
        stored = (ELEMENTS[core.dtype].dtype if out.number == OUT else self.wide).itemsize
        config = hopper.choose(geometry, item, rest, stored)
        if config is None:
            return None
        cross = tiling.crosses(shape, (1, 1, 1, config.tile))
        geometry = replace(geometry, cross=cross)
        rest = self._after(each, out, Arguments(), geometry.ordered)
        config = hopper.choose(geometry, item, rest, stored) or config
        tiles = geometry.tiles(config.tile)
        # Few large tiles with long sums: smaller ones reach more multiprocessors.
        long = shape.channels * lattice.slots > LONG * lattice.classes
        if long and 2 * tiles * config.tiles_of_block(geometry) < self.hopper:
            return None
        rows, packed = self._copies(lattice, tile)
        gathered = Partials(FLAG, 0, tiles, 0)
        if each.late is not None:
            statistic = self.program.statistics[each.late]
            counted = tiles if statistic.over_batch else tiles // core.batch
            parts = config.partials(geometry)
            plane = tiles * parts * statistic.channels
            gathered = Partials(self._scratch(3 * plane), plane, counted, counted * parts)
        sizes = core.batch * geometry.sample, tile.kept
        weights = tile.rows, tile.slots * tile.kept
        tiles *= config.tiles_of_block(geometry)
        arguments_ = [
            Boxes(rows, sizes, (config.box, config.depth), config.layout),
            Boxes(rows, sizes, (config.halo or config.box, config.depth), config.layout),
            Boxes(packed, weights, (config.channels, config.depth), config.layout),
            At(out.number), At(FLAG), Epoch if _again(shape, tile) else NEVER, core.batch, tiles,
            self._tensors(arguments), _numbers(arguments), At(gathered.partials), gathered.plane,
            gathered.tiles, geometry, config, rest,
        ]  # fmt: skip
        options: dict[str, Any] = {"num_warps": 4}
        if config.consumers == 1:
            options["maxnreg"] = 128
        programs = config.programs(geometry, self.hopper)
        self.launches.append(
            Launch(convolve_hopper, max(1, min(programs, tiles)), arguments_, options)
        )
        return gathered

    def _after(self, each: Pass, out: Place, arguments: Arguments, linear: bool) -> After:
        program = self.program
        before, after = arguments.table(each.before), arguments.table(each.after)
        gathered = each.early if each.early is not None else each.late
        return After(
            before=before,
            after=after,
            sign=arguments.sign(each.window),
            early=_gathers(program, each.early),
            late=_gathers(program, each.late),
            counted=1 if gathered is None else program.statistics[gathered].channels,
            summed=each.summed,
            stored=each.stores,
            linear=linear and _linear(three(each.result.spatial, 1), out.strides),
            wide=_wide(each.result, out.strides),
            strides=out.strides,
            part=out.part,
            only_gathers=each.only_gathers,
        )

    def _finish(self, each: Pass, source: Place, out: Place) -> None:
        batch, channels = self.core.batch, each.source.c
        sizes = three(each.source.spatial, 1)
        resident = each.resident
        group = channels
        if not each.channel_stage:
            group = resident.size if resident is not None else min(channels, 16)
        block_c = max(2, power(group))  # a tile of one is what a sum over channels leaves
        block_p = power(prod(sizes))
        if resident is None:
            block_p = min(block_p, max(16, 8192 // block_c))
        arguments = Arguments()
        table = arguments.table(each.after)
        sign = arguments.sign(each.window) if source.parts > 1 else 0
        statistic = None if each.late is None else self.program.statistics[each.late]
        what = Finish(
            sizes=sizes,
            channels=channels,
            group=group,
            block_c=block_c,
            block_p=block_p,
            source_strides=source.strides,
            source_linear=_linear(sizes, source.strides),
            strides=out.strides,
            linear=_linear(sizes, out.strides),
            wide=_wide(each.source, source.strides) or _wide(each.result, out.strides),
            steps=table,
            late=_gathers(self.program, each.late),
            over_batch=statistic is not None and statistic.over_batch,
            counted=1 if statistic is None else statistic.channels,
            summed=each.summed,
            stored=each.stores,
            window=_kind(each.window),
            sign=sign,
            parts=source.parts,
            part=source.part,
        )
        partials, plane = FLAG, 0
        if statistic is not None:
            plane = batch * statistic.channels * what.tiles
            partials = self._scratch(3 * plane)
        arguments_ = [
            At(source.number), At(out.number), batch, self._tensors(arguments),
            _numbers(arguments), At(partials), plane, what, self.acc,
        ]  # fmt: skip
        warps = min(32, max(1, block_c * block_p // 1024))
        programs = batch * what.groups * what.tiles
        self.launches.append(Launch(finish, programs, arguments_, {"num_warps": warps}))
        if statistic is not None and each.late is not None:
            runs = what.tiles * (batch if statistic.over_batch else 1)
            gathered = Partials(partials, plane, runs, runs)
            self._merge(each.late, gathered, gathered)

    def _merge(self, at: int, fast: Partials, careful: Partials) -> None:
        statistic = self.program.statistics[at]
        run, careful_run = fast.run * statistic.size, careful.run * statistic.size
        count = fast.plane // run
        halves = self._scratch(count), self._scratch(count)
        block = min(1024, power(run))
        arguments = [
            At(fast.partials), run, fast.plane, At(careful.partials), careful_run, careful.plane,
            At(FLAG), Epoch, At(halves[0]), At(halves[1]), thirds(statistic.eps),
            statistic.kind, block,
        ]  # fmt: skip
        warps = max(1, min(4, block // 64))
        self.launches.append(Launch(merge, count, arguments, {"num_warps": warps}))
        self.statistics[at] = halves

    def _copies(self, lattice: Lattice, tile: Tile) -> tuple[int, int]:
        """The numbers of the copies of input and weights, made by now."""
        core, program = self.core, self.program
        arguments = Arguments()
        windows = ((1, 1, 0),) * core.rank
        if program.pool is not None:
            windows = program.pool.windows(core.rank)
        kernel, stride, padding = (three(each, 1) for each in zip(*windows, strict=True))
        after = program.after_pool
        if program.factor != 1.0:
            after = (Step("scale_number", numbers=(program.factor,)), *after)
        source = InputCopy(
            strides=self.x_strides,
            source=self.source,
            inputs=three(core.spatial, 1),
            pool=_kind(program.pool),
            kernel=kernel,
            stride=stride,
            padding=(padding if core.rank == 3 else three(padding[3 - core.rank :], 0)),
            residues=tile.apart,
            extent=tile.extent,
            low=tile.low,
            batch_last=tile.form == "batch",
            groups=tile.groups,
            group_channels=tile.group_channels,
            kept=tile.kept,
            before=arguments.table(program.prologue),
            after=arguments.table(after),
            tf32=core.arithmetic == "tf32",
            wide=_wide(Shape(1, 1, self.source), self.x_strides),
        )
        weights = WeightCopy(
            strides=self.weight_strides,
            taps=tile.taps,
            groups=tile.groups,
            group_channels=tile.group_channels,
            group_outputs=tile.group_outputs,
            kept=tile.kept,
            rows=tile.rows,
            tf32=core.arithmetic == "tf32",
        )
        if source in self.copies and weights in self.copies:
            return self.copies[source], self.copies[weights]
        dtype = ELEMENTS[core.dtype].dtype
        rows = self._scratch(source.rows(core.batch) * source.channels, dtype)
        packed = self._scratch(weights.groups * weights.rows * weights.slots * weights.kept, dtype)
        self.copies |= {source: rows, weights: packed}
        arguments_ = [
            At(X), At(rows), At(WEIGHT), At(packed), self._constant(lattice.slot_of_tap()),
            At(FLAG), Epoch, core.batch, source.block_p, self._tensors(arguments),
            _numbers(arguments), source, weights, self.acc,
        ]  # fmt: skip
        programs = weights.programs + source.programs(core.batch)
        # A pool reads much for what it writes: more warps wait for more of it at once.
        warps = 8 if program.pool is not None else 4
        self.launches.append(Launch(prepare, programs, arguments_, {"num_warps": warps}))
        return rows, packed

    def _tensors(self, arguments: Arguments) -> All:
        numbers = [
            self.names[each] if isinstance(each, str) else self.statistics[each[0]][each[1]]
            for each in arguments.tensors
        ]
        return All(tuple(numbers))

    def _scratch(self, elements: int, dtype: torch.dtype | None = None) -> int:
        dtype = dtype or self.wide
        self.scratch.append((self.bytes, max(1, elements), dtype))
        self.bytes += -(-max(1, elements) * dtype.itemsize // 512) * 512
        return OPERANDS + len(self.names) + len(self.scratch) - 1

    def _between(self, shape: Shape, form: str = "box", parts: int = 1) -> Place:
        """A tensor between two passes; channels innermost where tiles are of samples."""
        d, h, w = three(shape.spatial, 1)
        n, c = shape.n, shape.c
        strides: Five = (c * d * h * w, d * h * w, h * w, w, 1)
        if form == "batch":
            strides = (c, 1, h * w * n * c, w * n * c, n * c)
        return Place(self._scratch(parts * shape.numel), strides, parts, shape.numel)

    def _constant(self, values: tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)


def three(values: Sequence[int], missing: int) -> Three:
    """One value per axis, missing axes first."""
    a, b, c = (missing,) * (3 - len(values)) + tuple(values)
    return a, b, c


def five(strides: Sequence[int]) -> Five:
    """The strides of a tensor, those of missing axes 0."""
    n, c, *space = strides
    return n, c, *three(space, 0)


def _again(shape: tiling.Shape, tile: Tile) -> bool:
    """Whether weights that are not finite may meet zeros in Hopper's kernel, and are left by it."""
    # A block of channels may read on into the next tap's weights, and multiply by zero.
    reads_on = tile.slots > 1 and tile.kept % hopper.depth_of(tile.kept, shape.item) > 0
    return shape.lattice.leaves or reads_on


def _copy_sizes(tile: Tile, batch: int) -> tuple[int, ...]:
    """A copy of the input as the five axes that a form reads."""
    residues, channels = prod(tile.apart), tile.groups * tile.kept
    if tile.form == "rows":
        return 1, 1, 1, residues * batch * prod(tile.extent), channels
    if tile.form == "box":
        return residues * batch, *tile.extent, channels
    return residues * tile.extent[0], tile.extent[1], tile.extent[2], batch, channels


def _linear(sizes: Three, strides: Five) -> bool:
    """Whether positions follow each other at one stride."""
    expected = strides[4]
    for size, stride in zip(reversed(sizes), reversed(strides[2:]), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _wide(shape: Shape, strides: Five) -> bool:
    """Whether offsets within a tile may pass 32 bits."""
    sizes = (shape.n, 1, *three(shape.spatial, 1))
    return sum((n - 1) * abs(s) for n, s in zip(sizes, strides, strict=True)) >= 2**31


def _kind(window: Window | None) -> str:
    if window is None:
        return ""
    if isinstance(window, ExtremumPool):
        return "sign"
    return "sum" if isinstance(window, AvgPool) else "max"


def _gathers(program: Program, at: int | None) -> str:
    return "" if at is None else program.statistics[at].kind


def _numbers(arguments: Arguments) -> tuple[float, ...]:
    return tuple(arguments.numbers) or (0.0,)


def _dot(core: Problem) -> str:
    """How Triton multiplies: three products of tf32 make one of float32."""
    if core.dtype == "fp64":
        return "ieee"
    return "tf32x3" if core.arithmetic == "fp32" else "tf32"
