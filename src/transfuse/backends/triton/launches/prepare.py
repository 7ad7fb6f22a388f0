"""The copies of input and weights, in the order in which tiles read them."""

from math import prod

import torch

from transfuse.backends.triton.copies import InputCopy, WeightCopy
from transfuse.backends.triton.draft import WEIGHT, Copies, Draft, X, kind_of, numbers, three, wide
from transfuse.backends.triton.kernels.prepare import prepare
from transfuse.backends.triton.lattice import Lattice
from transfuse.backends.triton.launch import At
from transfuse.backends.triton.lower import Arguments, Step
from transfuse.backends.triton.tile import Tile
from transfuse.elements import ELEMENTS
from transfuse.problem import Shape


def add(draft: Draft, lattice: Lattice, tile: Tile) -> Copies:
    """The copies of input and weights, made by now; the same ones only once."""
    core, program = draft.core, draft.program
    arguments = Arguments()
    windows = ((1, 1, 0),) * core.rank
    if program.pool is not None:
        windows = program.pool.windows(core.rank)
    kernel, stride, padding = (three(each, 1) for each in zip(*windows, strict=True))
    after = program.after_pool
    if program.factor != 1.0:
        after = (Step("scale_number", numbers=(program.factor,)), *after)
    source = InputCopy(
        strides=draft.x_strides,
        source=draft.source,
        inputs=three(core.spatial, 1),
        pool=kind_of(program.pool),
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
        wide=wide(Shape(1, 1, draft.source), draft.x_strides),
    )
    weights = WeightCopy(
        strides=draft.weight_strides,
        taps=tile.taps,
        groups=tile.groups,
        group_channels=tile.group_channels,
        group_outputs=tile.group_outputs,
        kept=tile.kept,
        rows=tile.rows,
        tf32=core.arithmetic == "tf32",
    )
    if (source, weights) in draft.copies:
        return draft.copies[source, weights]
    dtype = ELEMENTS[core.dtype].dtype
    rows = draft.memory(source.rows(core.batch) * source.channels, dtype)
    packed = draft.memory(weights.groups * weights.rows * weights.slots * weights.kept, dtype)
    wild = draft.memory(1 + weights.programs, torch.int32)
    made = draft.copies[source, weights] = Copies(rows, packed, wild, weights.programs)
    given = [
        At(X), At(rows), At(WEIGHT), At(packed), draft.constant(lattice.slot_of_tap()), At(wild),
        core.batch, source.block_p, draft.tensors(arguments), numbers(arguments), source, weights,
        draft.acc,
    ]  # fmt: skip
    programs = weights.programs + source.programs(core.batch)
    # A pool reads much for what it writes: more warps wait for more of it at once.
    draft.add(prepare, programs, given, num_warps=8 if program.pool is not None else 4)
    return made


def sizes(tile: Tile, batch: int) -> tuple[int, ...]:
    """A copy of the input as the five axes that a form reads."""
    residues, channels = prod(tile.apart), tile.groups * tile.kept
    if tile.form == "rows":
        return 1, 1, 1, residues * batch * prod(tile.extent), channels
    if tile.form == "box":
        return residues * batch, *tile.extent, channels
    return residues * tile.extent[0], tile.extent[1], tile.extent[2], batch, channels
