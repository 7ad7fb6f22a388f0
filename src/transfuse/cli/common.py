"""The calls whose kernels come with the package: named operators, and layers that people use."""

from collections.abc import Iterator
from itertools import product

from transfuse.cases import Case
from transfuse.chain import Chain
from transfuse.operators import OPERATORS
from transfuse.stages import conv_transpose

ARCHITECTURES = (80, 90)
ARITHMETICS = ("fp32", "tf32", "fp16", "bf16")
FAST = ("tf32", "fp16", "bf16")
"""Of layers without a bias: kernels of fp32 are the largest, and all of them would pass 25 MB."""
LAYOUTS = ("contiguous", "channels_last")

KERNELS = ("k2 s2", "k4 s2 p1", "k3 s2 p1 op1", "k3 s1 p1", "k5 s1 p2", "k16 s8 p4", "k8 s4 p2")
"""Of decoders, generators, segmentation and vocoders."""
CHANNELS = "ci256 co128"
"""Kernels know blocks of channels, not how many there are."""
SIZES = {1: ("i64", "i8192"), 2: ("i16x16", "i128x128"), 3: ("i8x8x8", "i32x32x32")}
"""Small and large, by rank: tiles are chosen by how much there is to do."""


def calls() -> Iterator[tuple[Chain, Case, tuple[str, ...]]]:
    """Each call with its arithmetics, on no device yet: it is to be compiled for all architectures.

    Layers with a bias, as torch's have unless they are told otherwise, and without one, as those
    before a norm are.
    """
    for op in OPERATORS.values():
        yield op.bound(op.case("benchmark")), op.case("benchmark"), ARITHMETICS
    for rank, sizes in SIZES.items():
        for size, kernel in product(sizes, KERNELS):
            layer = Case.parse(f"n4 {CHANNELS} {size} {kernel}")
            yield Chain(conv_transpose(rank, "bias")), layer, ARITHMETICS
            yield Chain(conv_transpose(rank)), layer, FAST
