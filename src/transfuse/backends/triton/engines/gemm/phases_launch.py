"""Weights as the rows of a product: where they lie, or a launch that packs them."""

from dataclasses import dataclass

import torch

from transfuse.backends.triton.arguments import At, Boxes
from transfuse.backends.triton.draft import WEIGHT, Draft
from transfuse.backends.triton.engines.gemm.gemm_geometry import Anchors
from transfuse.backends.triton.engines.gemm.gemm_records import (
    GemmTile,
    PhaseWeights,
    PhaseWeightSizes,
)
from transfuse.backends.triton.engines.gemm.gemm_tiling import GemmTiling
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.packing.packed_layout import PADDED
from transfuse.backends.triton.told import all_told, divisor, told
from transfuse.elements import ELEMENTS

PACK = Kernel("engines.gemm.phases_kernel", "pack_phases", static=1)


def weights_in_place(draft: Draft, anchors: Anchors, tiles: GemmTiling, last: bool) -> bool:
    """Whether weights lie as the rows of the product, ready for tensor cores.

    Those of tf32 do not: they are rounded, and tensor cores take them along the sum alone.
    """
    outputs, strides = draft.core.out_channels, draft.weight_strides
    if draft.item != 2 or anchors.taps > 1 or anchors.leaves or WEIGHT in draft.unaligned:
        return False
    phases = [*zip(anchors.each("stride"), strides[2:], strict=True)]
    order = [*phases, (outputs, strides[1])] if last else [(outputs, strides[1]), *phases]
    dense = 1
    for size, stride in reversed(order):
        if size > 1 and stride != dense:
            return False
        dense *= size
    whole = not last or outputs % tiles.channels == 0
    return whole and strides[0] % (16 // draft.item) == 0


def weights_as_given(draft: Draft, anchors: Anchors, tile: GemmTile) -> Boxes:
    """The weights where they lie, by channels summed over."""
    sizes = draft.core.in_channels, draft.core.out_channels * anchors.phases
    strides = draft.weight_strides[0], 1
    return Boxes(WEIGHT, sizes, (tile.depth, tile.rows), own_strides=strides)


@dataclass(frozen=True)
class PackedPhases:
    """The weights as rows of a product: where they lie, what was found in them."""

    layout: PhaseWeights
    boxes: Boxes
    wild: int
    programs: int


def packed(draft: Draft, anchors: Anchors, tile: GemmTile) -> PackedPhases:
    """The launch that packs weights for tiles."""
    core, tf32 = draft.core, draft.core.arithmetic == "tf32"
    layout = PhaseWeights(tile.phases, tile.taps, tile.channels_inner, tf32)
    kept = -(-core.in_channels // PADDED) * PADDED
    padded = -(-core.out_channels // tile.channels) * tile.channels
    rows = padded * anchors.phases
    depths = -(-kept // layout.depth)
    programs = -(-rows // layout.block) * depths * anchors.taps
    memory = draft.memory(rows * anchors.taps * kept, ELEMENTS[core.dtype].dtype)
    wild = draft.memory(1 + programs, torch.int32)
    sizes = PhaseWeightSizes(
        depths=divisor(depths),
        outputs=told(core.out_channels),
        padded=divisor(padded),
        channels=told(core.in_channels),
        kept=told(kept // PADDED),
        rows=told(rows),
    )
    given = [At(WEIGHT), At(memory), At(wild), sizes, all_told(draft.weight_strides), layout]
    draft.add(PACK, programs, given, num_warps=4)
    draft.copied.add("weights")
    boxes = Boxes(memory, (anchors.taps, rows, kept), (1, tile.rows, tile.depth))
    return PackedPhases(layout, boxes, wild, programs)
