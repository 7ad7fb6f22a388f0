"""The copies of input and weights, in the order in which tiles read them."""

from math import prod

import torch

from transfuse.backends.triton.draft import WEIGHT, Draft, PackedCopies, X, kind_of, numbers
from transfuse.backends.triton.engines.portable.tile import Tile
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.launch import At
from transfuse.backends.triton.lower import TileOp
from transfuse.backends.triton.packing.packed_layout import PackedInput, PackedWeights
from transfuse.backends.triton.packing.packing_kernel import pack
from transfuse.backends.triton.strides import three, wide
from transfuse.backends.triton.tap_table import TapTable
from transfuse.elements import ELEMENTS
from transfuse.problem import Shape


def add(draft: Draft, tap_table: TapTable, tile: Tile) -> PackedCopies:
    """The copies of input and weights, made by now; the same ones only once."""
    core, lowered = draft.core, draft.lowered
    arguments = OpArguments()
    windows = ((1, 1, 0),) * core.rank
    if lowered.pool is not None:
        windows = lowered.pool.windows
    kernel, stride, padding = (three(each, 1) for each in zip(*windows, strict=True))
    after = lowered.after_pool
    if lowered.factor != 1.0:
        after = (TileOp("scale_number", numbers=(lowered.factor,)), *after)
    source = PackedInput(
        strides=draft.x_strides,
        source=draft.source,
        inputs=three(core.spatial, 1),
        pool=kind_of(lowered.pool),
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
        before=arguments.table(lowered.prologue),
        after=arguments.table(after),
        tf32=core.arithmetic == "tf32",
        wide=wide(Shape(1, 1, draft.source), draft.x_strides),
    )
    weights = PackedWeights(
        strides=draft.weight_strides,
        taps=tile.taps,
        groups=tile.groups,
        group_channels=tile.group_channels,
        group_outputs=tile.group_outputs,
        kept=tile.kept,
        rows=tile.rows,
        tf32=core.arithmetic == "tf32",
    )
    if (source, weights) in draft.packed:
        return draft.packed[source, weights]
    dtype = ELEMENTS[core.dtype].dtype
    rows = draft.memory(source.rows(core.batch) * source.channels, dtype)
    packed = draft.memory(weights.groups * weights.rows * weights.slots * weights.kept, dtype)
    wild = draft.memory(1 + weights.programs, torch.int32)
    made = draft.packed[source, weights] = PackedCopies(rows, packed, wild, weights.programs)
    given = [
        At(X), At(rows), At(WEIGHT), At(packed), draft.constant(tap_table.slot_of_tap()), At(wild),
        core.batch, source.block_p, draft.tensors(arguments), numbers(arguments), source, weights,
        draft.acc,
    ]  # fmt: skip
    programs = weights.programs + source.programs(core.batch)
    # A pool reads much for what it writes: more warps wait for more of it at once.
    draft.add(pack, programs, given, num_warps=8 if lowered.pool is not None else 4)
    return made


def sizes(tile: Tile, batch: int) -> tuple[int, ...]:
    """A copy of the input as the five axes that a form reads."""
    residues, channels = prod(tile.apart), tile.groups * tile.kept
    if tile.form == "rows":
        return 1, 1, 1, residues * batch * prod(tile.extent), channels
    if tile.form == "box":
        return residues * batch, *tile.extent, channels
    return residues * tile.extent[0], tile.extent[1], tile.extent[2], batch, channels
