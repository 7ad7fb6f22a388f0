"""Launches: buffers from torch's allocator, kernels on the caller's stream, nothing synchronised."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from transfuse.backends.triton import config as tiling
from transfuse.backends.triton.config import Config
from transfuse.backends.triton.kernels.convolve import convolve
from transfuse.backends.triton.kernels.finish import finish
from transfuse.backends.triton.kernels.prepare import prepare_input, prepare_weights
from transfuse.backends.triton.kernels.statistics import merge
from transfuse.backends.triton.lattice import Lattice, Three
from transfuse.backends.triton.lower import (
    Arguments,
    Pass,
    Program,
    Statistic,
    power,
    thirds,
)
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem, Shape
from transfuse.stages.window import AvgPool, ExtremumPool, Window

ACC = {"fp32": tl.float32, "fp16": tl.float32, "bf16": tl.float32, "fp64": tl.float64}
_epochs = count(1)


def run(
    program: Program,
    core: Problem,
    x: Tensor,
    weight: Tensor,
    operands: Mapping[str, Tensor],
    out: Tensor,
) -> None:
    """Compute ``out``; ``core`` is the convolution's own problem."""
    _Call(program, core, x, weight, operands, out).run()


@dataclass(frozen=True)
class Rows:
    """How the input lies in its copy."""

    form: str
    extent: Three
    residues: Three
    low: int
    kept: int


class _Call:
    def __init__(
        self,
        program: Program,
        core: Problem,
        x: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        out: Tensor,
    ) -> None:
        self.program, self.core, self.x, self.weight = program, core, x, weight
        self.operands, self.out = operands, out
        self.epoch = next(_epochs)
        self.flag = _flag(x.device)
        self.acc = ACC[core.dtype]
        self.statistics: dict[int, tuple[Tensor, Tensor]] = {}
        self.rows: dict[Rows, Tensor] = {}
        self.packed: dict[tuple[int, int], Tensor] = {}

    def run(self) -> None:
        stored = self.x
        for at, each in enumerate(self.program.passes):
            last = at + 1 == len(self.program.passes)
            target = self.out if last or not each.stores else None
            stored = self._convolve(each, target) if each.convolves else self._finish(
                each, stored, target
            )

    def _convolve(self, each: Pass, target: Tensor | None) -> Tensor:
        core, program = self.core, self.program
        lattice = lattice_of(core, each)
        shape = tiling.describe(
            lattice, core, each, program.statistics, ELEMENTS[core.dtype].itemsize
        )
        config = tiling.heuristic(shape, _capability(self.x.device))
        depthwise = shape.depthwise
        kept = 1 if depthwise else -(-shape.channels // config.depth) * config.depth
        padded = shape.outputs if depthwise else -(-shape.outputs // config.channels) * config.channels
        rows = self._rows(Rows(config.form, *_copied(lattice, config.form), kept))
        packed = self._weights(lattice, kept, padded)
        out = self._scratch(each.result, config.form) if target is None else target
        arguments = Arguments()
        before, after = arguments.table(each.before), arguments.table(each.after)
        sign = arguments.sign(each.window)
        cross = config.form == "rows" and tiling.crosses(shape, config.box)
        together = tiling.joined(lattice, config.form, shape.windowed)
        tiles = tiling.tiles(shape, config.form, config.box, cross)
        of_tile = lattice.classes // together
        gathered = each.early if each.early is not None else each.late
        partials, plane, counted = self.flag, 0, tiles
        if gathered is not None:
            statistic = program.statistics[gathered]
            counted = tiles if statistic.over_batch else tiles // core.batch
            plane = tiles * of_tile * statistic.channels
            partials = self._empty(3 * plane)
        strides = _strides(out)
        extent = _copied(lattice, config.form)[0]
        box, channels = config.box, config.channels
        results = _three(each.result.spatial, 1)
        blocks = (
            -(-core.out_channels // channels)
            if depthwise
            else core.groups * -(-shape.outputs // channels)
        )
        window = _kind(each.window)
        x_argument: Any = rows
        w_argument: Any = packed
        if not depthwise:
            x_argument = _descriptor(rows, config, lattice, core.batch, core.groups * kept)
            w_argument = TensorDescriptor(
                packed, list(packed.shape), list(packed.stride()), [channels, config.depth]
            )
        arguments_ = (
            x_argument,
            w_argument,
            rows,
            packed,
            out,
            _constant(lattice.table, self.x.device),
            self.flag,
            self.epoch,
            core.batch,
            self._tensors(arguments),
            tuple(arguments.numbers) or (0.0,),
            partials,
            plane,
            counted,
            tiles * of_tile * blocks,
        )
        static = dict(
            FORM=config.form,
            BOX=box,
            ANCHORS=lattice.each("anchors"),
            EXTENT=extent,
            CROSS=cross,
            ORDER=_bit_reversed(together),
            JOINED_BOX=(*box[:3], box[3] * together),
            JOINED_ANCHORS=_widened(lattice.each("anchors"), together),
            JOINED_EXTENT=_widened(extent, together),
            CLASSES=lattice.each("classes"),
            MEMBERS=lattice.each("members"),
            RESIDUES=lattice.each("residues"),
            STEP=lattice.each("step"),
            LOW=lattice.depth.low,
            INPUTS=lattice.each("inputs"),
            OUTPUTS=lattice.each("outputs"),
            RESULTS=results,
            TAPS=tuple(len(line.order) for line in lattice.lines),
            WINDOW=window,
            WINDOW_STRIDE=lattice.each("window_stride"),
            WINDOW_PADDING=lattice.each("window_padding"),
            SIGN=sign,
            DEPTHWISE=depthwise,
            GROUPS=core.groups,
            GROUP_CHANNELS=shape.channels,
            GROUP_OUTPUTS=shape.outputs,
            KEPT=kept,
            ROWS=padded,
            CHANNELS=channels,
            DEPTH=config.depth,
            ACC=self.acc,
            DOT=_dot(core),
            BEFORE=before.ops,
            BEFORE_AT=before.at,
            BEFORE_SIZE=before.size,
            BEFORE_COUNT=before.count,
            AFTER=after.ops,
            AFTER_AT=after.at,
            AFTER_SIZE=after.size,
            AFTER_COUNT=after.count,
            EARLY=_gathers(program, each.early),
            LATE=_gathers(program, each.late),
            SUMMED=each.summed,
            STORED=each.stores,
            LINEAR=config.form == "rows"
            and not cross
            and lattice.classes == together
            and _widened(extent, together)[1:] == results[1:]
            and _linear(results, strides),
            STRIDES=strides,
            WIDE=_wide(each.result, strides),
        )
        programs = tiles * of_tile * blocks
        convolve[(programs,)](
            *arguments_, **static, CAREFUL=False, num_warps=config.warps, num_stages=config.stages
        )
        if not depthwise:
            convolve[(min(programs, 128),)](*arguments_, **static, CAREFUL=True, num_warps=32, num_stages=1)
        if gathered is not None:
            self._merge(gathered, partials, plane, counted * of_tile)
        return out

    def _finish(self, each: Pass, source: Tensor, target: Tensor | None) -> Tensor:
        out = self._scratch(each.result, "box") if target is None else target
        sizes, channels = _three(each.source.spatial, 1), each.source.c
        positions = prod(sizes)
        resident = each.resident
        group = channels
        if not each.channel_stage:
            group = resident.size if resident is not None else min(channels, 16)
        block_c = max(2, power(group))  # a tile of one is what a sum over channels leaves
        block_p = power(positions)
        if resident is None:
            block_p = min(block_p, max(16, 8192 // block_c))
        tiles = -(-positions // block_p)
        arguments = Arguments()
        table = arguments.table(each.after)
        partials, plane = self.flag, 0
        statistic = None
        if each.late is not None:
            statistic = self.program.statistics[each.late]
            plane = self.core.batch * statistic.channels * tiles
            partials = self._empty(3 * plane)
        source_strides, strides = _strides(source), _strides(out)
        elements = block_c * block_p
        finish[(self.core.batch * -(-channels // group) * tiles,)](
            source,
            out,
            self.core.batch,
            self._tensors(arguments),
            tuple(arguments.numbers) or (0.0,),
            partials,
            plane,
            SIZES=sizes,
            CHANNELS=channels,
            GROUP=group,
            SOURCE_STRIDES=source_strides,
            SOURCE_LINEAR=_linear(sizes, source_strides),
            STRIDES=strides,
            LINEAR=_linear(sizes, strides),
            WIDE=_wide(each.source, source_strides) or _wide(each.result, strides),
            OPS=table.ops,
            AT=table.at,
            SIZE=table.size,
            COUNT=table.count,
            LATE=_gathers(self.program, each.late),
            OVER_BATCH=statistic is not None and statistic.over_batch,
            SUMMED=each.summed,
            STORED=each.stores,
            ACC=self.acc,
            BLOCK_C=block_c,
            BLOCK_P=block_p,
            num_warps=min(32, max(1, elements // 1024)),
        )
        if statistic is not None and each.late is not None:
            runs = tiles * (self.core.batch if statistic.over_batch else 1)
            self._merge(each.late, partials, plane, runs)
        return out

    def _merge(self, at: int, partials: Tensor, plane: int, tiles: int) -> None:
        statistic = self.program.statistics[at]
        run = tiles * statistic.size
        halves = self._empty(plane // run), self._empty(plane // run)
        block = min(1024, power(run))
        merge[(plane // run,)](
            partials,
            *halves,
            run,
            plane,
            thirds(statistic.eps),
            KIND=statistic.kind,
            BLOCK=block,
            num_warps=max(1, min(4, block // 64)),
        )
        self.statistics[at] = halves

    def _rows(self, key: Rows) -> Tensor:
        if key in self.rows:
            return self.rows[key]
        core, program, x = self.core, self.program, self.x
        channels = core.groups * key.kept
        plane = key.extent[1] * key.extent[2]
        samples = prod(key.residues) * core.batch * key.extent[0]
        rows = torch.empty((samples * plane, channels), dtype=x.dtype, device=x.device)
        rank = core.rank
        arguments = Arguments()
        before, after = arguments.table(program.prologue), arguments.table(program.after_pool)
        windows = program.pool.windows(rank) if program.pool is not None else ((1, 1, 0),) * rank
        kernel, stride, padding = zip(*windows, strict=True)
        block_c = min(power(channels), 64)
        block_p = max(16, min(4096 // block_c, power(plane)))
        source = tuple(x.shape[2:])
        prepare_input[(samples * -(-plane // block_p) * -(-channels // block_c),)](
            x,
            rows,
            *_strides(x),
            core.batch,
            self._tensors(arguments),
            tuple(arguments.numbers) or (0.0,),
            program.factor,
            SOURCE=_three(source, 1),
            INPUTS=_three(core.spatial, 1),
            POOL=_kind(program.pool),
            KERNEL=_three(kernel, 1),
            STRIDE=_three(stride, 1),
            PADDING=_three(padding, 0),
            RESIDUES=key.residues,
            EXTENT=key.extent,
            FROM=key.low if key.form == "batch" else 0,
            BATCH_LAST=key.form == "batch",
            GROUPS=core.groups,
            GROUP_CHANNELS=core.in_channels // core.groups,
            KEPT=key.kept,
            BEFORE=before.ops,
            BEFORE_AT=before.at,
            AFTER=after.ops,
            AFTER_AT=after.at,
            TF32=_tf32(core),
            WIDE=_wide(Shape(1, 1, source), _strides(x)),
            ACC=self.acc,
            BLOCK_C=block_c,
            BLOCK_P=block_p,
            num_warps=4,
        )
        self.rows[key] = rows
        return rows

    def _weights(self, lattice: Lattice, kept: int, padded: int) -> Tensor:
        key = kept, padded
        if key in self.packed:
            return self.packed[key]
        core, weight = self.core, self.weight
        slots = lattice.slots
        packed = torch.empty(
            (core.groups * padded, slots * kept), dtype=weight.dtype, device=weight.device
        )
        ci, co, *taps = weight.stride()
        block_t, block_c = min(64, power(slots)), min(64, power(kept))
        grid = core.groups * padded * -(-kept // block_c), -(-slots // block_t)
        prepare_weights[grid](
            weight,
            packed,
            _constant(lattice.slot_of_tap(), weight.device),
            self.flag,
            self.epoch,
            ci,
            co,
            *_three(tuple(taps), 0),
            TAPS=_three(core.kernel, 1),
            GROUPS=core.groups,
            GROUP_CHANNELS=core.in_channels // core.groups,
            GROUP_OUTPUTS=core.out_channels // core.groups,
            KEPT=kept,
            ROWS=padded,
            TF32=_tf32(core),
            BLOCK_T=block_t,
            BLOCK_C=block_c,
            num_warps=4,
        )
        self.packed[key] = packed
        return packed

    def _tensors(self, arguments: Arguments) -> tuple[Tensor, ...]:
        found = [
            self.operands[each] if isinstance(each, str) else self.statistics[each[0]][each[1]]
            for each in arguments.tensors
        ]
        return tuple(found) or (self.flag,)

    def _empty(self, elements: int) -> Tensor:
        wide = torch.float64 if self.core.dtype == "fp64" else torch.float32
        return torch.empty(max(1, elements), dtype=wide, device=self.x.device)

    def _scratch(self, shape: Shape, form: str) -> Tensor:
        flat = self._empty(shape.numel)
        if form != "batch":
            return flat[: shape.numel].view(shape.dims)
        axes = len(shape.spatial)
        last = flat[: shape.numel].view(*shape.spatial, shape.n, shape.c)
        return last.permute(axes, axes + 1, *range(axes))


@lru_cache(maxsize=4096)
def lattice_of(core: Problem, each: Pass) -> Lattice:
    """The lattice of a pass that convolves."""
    none = ((1, 1, 0),) * core.rank
    windows = none if each.window is None else each.window.windows(core.rank)
    return Lattice.of(core.axes, windows, each.result.spatial, cover=each.early is not None)


def _copied(lattice: Lattice, form: str) -> tuple[Three, Three, int]:
    """Extent, residues and first depth of the copy that a form reads."""
    extent = lattice.each("pitch" if form == "rows" else "kept")
    if form == "batch":
        extent = (lattice.depth.haloed, *extent[1:])
    return extent, lattice.each("residues"), lattice.depth.low if form == "batch" else 0


def _descriptor(
    rows: Tensor, config: Config, lattice: Lattice, batch: int, channels: int
) -> TensorDescriptor:
    extent, residues, _ = _copied(lattice, config.form)
    if config.form == "rows":
        dims = [1, 1, 1, rows.shape[0], channels]
    elif config.form == "box":
        dims = [prod(residues) * batch, *extent, channels]
    else:
        dims = [prod(residues) * extent[0], extent[1], extent[2], batch, channels]
    view = rows.view(dims)
    return TensorDescriptor(view, dims, list(view.stride()), [*config.box, config.depth])


def _strides(tensor: Tensor) -> tuple[int, int, int, int, int]:
    n, c, *space = tensor.stride()
    return n, c, *_three(tuple(space), 0)


def _three(values: tuple[int, ...], missing: int) -> Three:
    a, b, c = (missing,) * (3 - len(values)) + tuple(values)
    return a, b, c


def _widened(values: Three, together: int) -> Three:
    return values[0], values[1], values[2] * together


def _linear(sizes: Three, strides: tuple[int, ...]) -> bool:
    """Whether positions follow each other at one stride."""
    d, h, w = strides[2:]
    return (sizes[1] == 1 or h == w * sizes[2]) and (
        sizes[0] == 1 or d == (h if sizes[1] > 1 else w * sizes[2]) * sizes[1]
    )


def _wide(shape: Shape, strides: tuple[int, ...]) -> bool:
    """Whether offsets within a tile may pass 32 bits."""
    sizes = (shape.n, 1, *_three(shape.spatial, 1))
    return sum((n - 1) * abs(s) for n, s in zip(sizes, strides, strict=True)) >= 2**31


def _bit_reversed(count: int) -> tuple[int, ...]:
    bits = count.bit_length() - 1
    return tuple(int(f"{i:0{bits}b}"[::-1], 2) if bits else 0 for i in range(count))


def _kind(window: Window | None) -> str:
    if window is None:
        return ""
    if isinstance(window, ExtremumPool):
        return "sign"
    return "sum" if isinstance(window, AvgPool) else "max"


def _gathers(program: Program, at: int | None) -> str:
    return "" if at is None else program.statistics[at].kind


def _tf32(core: Problem) -> bool:
    return core.arithmetic == "tf32"


def _dot(core: Problem) -> str:
    if core.dtype == "fp64":
        return "ieee"
    return "tf32" if core.dtype != "fp32" or _tf32(core) else "tf32x3"


@lru_cache(maxsize=64)
def _flag(device: torch.device) -> Tensor:
    return torch.zeros(1, dtype=torch.int64, device=device)


@lru_cache(maxsize=4096)
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


@lru_cache(maxsize=64)
def _capability(device: torch.device) -> int:
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


INTERPRETED = bool(triton.knobs.runtime.interpret)
