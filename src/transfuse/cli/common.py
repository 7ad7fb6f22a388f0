"""The calls whose kernels come with the package: named operators, and layers that people use."""

from collections.abc import Iterator
from itertools import product

from transfuse.cases import Case
from transfuse.chain import Chain
from transfuse.operators import OPERATORS
from transfuse.stages import conv_transpose

ARCHITECTURES = (80, 90)
ARITHMETICS = ("fp32", "tf32", "fp16", "bf16")
LAYOUTS = ("contiguous", "channels_last")

KERNELS = ("k2 s2", "k4 s2 p1", "k3 s2 p1 op1", "k3 s1 p1", "k5 s1 p2", "k16 s8 p4", "k8 s4 p2")
"""Of decoders, generators, segmentation and vocoders."""
CHANNELS = ("ci128 co64", "ci512 co256")
"""Kernels know blocks of channels, not how many there are: the results of a block are 64, or 128.
"""
SIZES = {1: ("i64", "i8192"), 2: ("i16x16", "i128x128"), 3: ("i8x8x8", "i32x32x32")}
"""Small and large, by rank: tiles are chosen by how much there is to do."""


def calls() -> Iterator[tuple[Chain, Case]]:
    """Each call, on no device yet: all of it is to be compiled for every architecture."""
    for op in OPERATORS.values():
        for name in op.cases:
            yield op.bound(op.case(name)), op.case(name)
    for rank, sizes in SIZES.items():
        for size, kernel, channels in product(sizes, KERNELS, CHANNELS):
            for bias in (None, "bias"):
                chain = Chain(conv_transpose(rank, bias=bias))
                yield chain, Case.parse(f"n4 {channels} {size} {kernel}")
