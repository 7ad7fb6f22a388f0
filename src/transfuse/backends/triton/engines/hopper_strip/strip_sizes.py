"""The integers that the kernel of strips is told when it runs: the sizes of a problem."""

from transfuse.backends.triton.engines.hopper_strip.strip_geometry import StripGeometry
from transfuse.backends.triton.engines.hopper_strip.strip_layout import StripTiling, span
from transfuse.backends.triton.strides import Five
from transfuse.backends.triton.told import all_told


def divisor(number: int) -> tuple[int, int]:
    """What ``strip_store.quotient`` divides by: ``n // number`` is ``n * magic >> 32 + shift``.

    Exact for ``n`` of [0, 2**31) and numbers of at least 2. The magic number is that power of two
    over ``number``, rounded up by less than 1, so the product is too large by less than ``2**31``,
    and ``2**(32 + shift) / number``, the least that could matter, is no smaller. It has 32 bits and
    its highest is set; as Triton takes it for a signed number, it is given as one.
    """
    assert number > 1, f"{number} is no divisor"
    shift = (number - 1).bit_length() - 1
    return -(-(1 << 32 + shift) // number) - (1 << 32), shift


def sizes(geometry: StripGeometry, tiling: StripTiling, strides: Five) -> list[object]:
    """All of them, in the order in which the kernel takes them."""
    _, high, wide = geometry.extent
    tiles = geometry.tiles_of_sample(tiling.tile)
    area = high * geometry.line
    space = geometry.sample * geometry.joined
    samples, channels, *others = strides
    # First offsets are told from the lowest on, which is none of a tile's but of all rows'.
    below = [min(first for first, _, _ in axis) for axis in geometry.entries[:2]]
    low = geometry.low + (below[0] * high + below[1]) * wide
    entries = [
        n
        for axis, lowest in zip(geometry.entries, below, strict=False)
        for first, count, slot in axis
        for n in (first - lowest, count, slot)
    ]
    divided_by = (geometry.line, area, space, geometry.sample, 2 * tiles)
    divisors = [divisor(max(2, n)) for n in divided_by]
    return [
        geometry.batch, geometry.channels, geometry.kept, high, wide, geometry.sample, tiles, low,
        geometry.line, area, space, *geometry.results, *(n for each in divisors for n in each),
        samples // tiling.vector, channels // tiling.vector, *others,
        span(geometry, tiling, strides), all_told(entries),
    ]  # fmt: skip
