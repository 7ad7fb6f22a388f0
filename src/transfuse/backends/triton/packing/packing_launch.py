"""The copies of input and weights, in the order in which tiles read them."""

from math import prod

import torch

from transfuse.backends.triton.arguments import At
from transfuse.backends.triton.draft import WEIGHT, Draft, PackedCopies, X, kind_of, numbers
from transfuse.backends.triton.epilogue.op_table import OpArguments
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.packing.packed_layout import (
    PADDED,
    Copies,
    InputSizes,
    PackedInput,
    PackedWeights,
    WeightSizes,
    block_of,
    unit_of,
)
from transfuse.backends.triton.segments import TileOp, power
from transfuse.backends.triton.strides import CHANNELS, inner, three, wide
from transfuse.backends.triton.tap_table import TapTable
from transfuse.backends.triton.told import all_told, divisor, told
from transfuse.elements import ELEMENTS
from transfuse.problem import Shape

PACK = Kernel("packing.packing_kernel", "pack", static=3)

REGISTERS = 80
"""Of a thread: with more, too few programs share a multiprocessor to keep its memory busy."""


def add(draft: Draft, tap_table: TapTable, copies: Copies) -> PackedCopies:
    """The copies of input and weights, made by now; the same ones only once."""
    if copies in draft.packed:
        return draft.packed[copies]
    core = draft.core
    draft.copied |= {"input", "weights"} if copies.rows else {"input"}
    arguments = OpArguments()
    source, source_sizes, count = _input(draft, copies, arguments)
    weights, weight_sizes, programs = _weights(draft, copies)
    dtype = ELEMENTS[core.dtype].dtype
    rows = draft.memory(copies.input_rows(core.batch) * copies.channels, dtype)
    packed = draft.memory(prod(copies.weight_sizes), dtype)
    wild = draft.memory(1 + programs, torch.int32)
    made = draft.packed[copies] = PackedCopies(rows, packed, wild, programs)
    given = [
        At(X), At(rows), At(WEIGHT), At(packed), draft.constant(tap_table.slot_of_tap()), At(wild),
        draft.tensors(arguments), numbers(arguments), source_sizes, weight_sizes, source, weights,
        draft.acc,
    ]  # fmt: skip
    # A pool reads much for what it writes: more warps wait for more of it at once.
    warps = 8 if draft.lowered.pool is not None else 4
    draft.add(PACK, programs + count, given, num_warps=warps, maxnreg=REGISTERS)
    return made


def _input(
    draft: Draft, copies: Copies, arguments: OpArguments
) -> tuple[PackedInput, InputSizes, int]:
    """How the input is copied, and by how many programs."""
    core, lowered = draft.core, draft.lowered
    windows = ((1, 1, 0),) * core.rank
    if lowered.pool is not None:
        windows = lowered.pool.windows
    kernel, stride, padding = (three(each, 1) for each in zip(*windows, strict=True))
    padding = padding if core.rank == 3 else three(padding[3 - core.rank :], 0)
    after = lowered.after_pool
    if lowered.factor != 1.0:
        after = (TileOp("scale_number", numbers=(lowered.factor,)), *after)
    inputs, batch = three(core.spatial, 1), core.batch
    # A window's elements of one line can be loaded at once where they share none.
    apart = kernel[2] == stride[2] and padding[2] == 0 and prod(copies.residues) == 1
    whole = apart and inputs[2] * kernel[2] <= draft.source[2]
    run = kernel[2] if whole and kernel[2] in (2, 4) else 1
    axis, unit = inner(draft.x_strides), 1
    if lowered.pool is None or run > 1 or axis == CHANNELS:
        unit = unit_of(copies, draft.x_strides, inputs[2], run, 16 // draft.item)
    block_c, block_p = block_of(copies.channels)
    padded = copies.channels % PADDED == 0
    what = PackedInput(
        inner=axis,
        unit=unit,
        pool=kind_of(lowered.pool),
        kernel=kernel,
        stride=stride,
        padding=padding,
        run=run,
        residues=copies.residues,
        low=copies.low,
        samples_last=copies.samples_last,
        padded=padded,
        grouped=copies.groups > 1,
        whole=copies.channels % block_c == 0 and copies.group_channels == copies.kept,
        block_c=block_c,
        block_p=block_p,
        before=arguments.table(lowered.prologue),
        after=arguments.table(after),
        tf32=core.arithmetic == "tf32",
        wide=wide(Shape(1, core.in_channels, draft.source), draft.x_strides),
        far=copies.plane * copies.channels * (batch if copies.samples_last else 1) >= 2**31,
    )
    blocks = -(-copies.channels // block_c), -(-copies.plane // block_p), -(-batch // what.samples)
    sizes = InputSizes(
        batch=told(batch),
        block=told(block_p),
        strides=all_told(draft.x_strides),
        source=all_told(draft.source),
        inputs=all_told(inputs),
        channel_blocks=divisor(blocks[0]),
        plane_blocks=divisor(blocks[1]),
        deep=divisor(copies.extent[0]),
        sample_blocks=divisor(blocks[2]),
        plane=told(copies.plane),
        line=divisor(copies.extent[2]),
        kept=divisor(copies.kept),
        group_channels=told(copies.group_channels),
        width=told(copies.channels // PADDED if padded else copies.channels),
    )
    return what, sizes, prod(copies.residues) * copies.extent[0] * prod(blocks)


def _weights(draft: Draft, copies: Copies) -> tuple[PackedWeights, WeightSizes, int]:
    """How the weights are copied, and by how many programs."""
    padded = copies.kept % PADDED == 0
    what = PackedWeights(
        taps=copies.taps,
        padded=padded,
        block_t=min(64, power(copies.slots)),
        block_c=min(64, power(copies.kept)),
        tf32=draft.core.arithmetic == "tf32",
    )
    blocks = -(-copies.kept // what.block_c)
    programs = copies.groups * copies.rows * what.tap_blocks * blocks
    sizes = WeightSizes(
        programs=told(programs),
        strides=all_told(draft.weight_strides),
        channel_blocks=divisor(blocks),
        rows=divisor(max(1, copies.rows)),
        group_channels=told(copies.group_channels),
        group_outputs=told(copies.group_outputs),
        kept=told(copies.kept // PADDED if padded else copies.kept),
    )
    return what, sizes, programs
