"""Where a tile lies: its anchors among the rows that are read, its results among those written.

Three *forms*. ``rows``: consecutive rows of a flat copy, halos between the lines; every shift is
one offset. ``box``: a box of depth, height, width of one sample. ``batch``: a box of depth,
height, width and samples, samples innermost; a box of one position skips taps that fall outside.
"""

import triton
import triton.language as tl


@triton.jit
def anchors(
    tile,
    p,
    batch,
    FORM: tl.constexpr,
    BOX: tl.constexpr,
    ANCHORS: tl.constexpr,
    EXTENT: tl.constexpr,
    CROSS: tl.constexpr,
):
    """Sample and anchor of each position ``p`` of a tile: n, d, h, w. Positions may be numbers."""
    if FORM == "rows":
        LINE: tl.constexpr = EXTENT[2]
        PLANE: tl.constexpr = EXTENT[1] * LINE
        SAMPLE: tl.constexpr = EXTENT[0] * PLANE
        if CROSS:  # tiles run on from one sample into the next
            at = tile * BOX[3] + p
            n = at // SAMPLE
            at = at % SAMPLE
        else:
            USED: tl.constexpr = (ANCHORS[0] - 1) * PLANE + (ANCHORS[1] - 1) * LINE + ANCHORS[2]
            TILES: tl.constexpr = (USED + BOX[3] - 1) // BOX[3]
            n = tile // TILES + 0 * p
            at = tile % TILES * BOX[3] + p
        return n, at // PLANE, at // LINE % EXTENT[1], at % LINE
    elif FORM == "box":
        WIDE: tl.constexpr = (ANCHORS[2] + BOX[3] - 1) // BOX[3]
        HIGH: tl.constexpr = (ANCHORS[1] + BOX[2] - 1) // BOX[2]
        DEEP: tl.constexpr = (ANCHORS[0] + BOX[1] - 1) // BOX[1]
        w = tile % WIDE * BOX[3] + p % BOX[3]
        tile = tile // WIDE
        h = tile % HIGH * BOX[2] + p // BOX[3] % BOX[2]
        tile = tile // HIGH
        d = tile % DEEP * BOX[1] + p // (BOX[3] * BOX[2])
        return tile // DEEP + 0 * p, d, h, w
    else:
        SAMPLES = (batch + BOX[3] - 1) // BOX[3]
        WIDE: tl.constexpr = (ANCHORS[2] + BOX[2] - 1) // BOX[2]
        HIGH: tl.constexpr = (ANCHORS[1] + BOX[1] - 1) // BOX[1]
        n = tile % SAMPLES * BOX[3] + p % BOX[3]
        tile = tile // SAMPLES
        w = tile % WIDE * BOX[2] + p // BOX[3] % BOX[2]
        tile = tile // WIDE
        h = tile % HIGH * BOX[1] + p // (BOX[3] * BOX[2]) % BOX[1]
        return n, tile // HIGH * BOX[0] + p // (BOX[3] * BOX[2] * BOX[1]), h, w


@triton.jit
def row_of(
    n, d, h, w, batch, residue, FORM: tl.constexpr, EXTENT: tl.constexpr, LOW: tl.constexpr
):
    """The row of the copy that holds an input."""
    if FORM == "batch":
        deep = residue * EXTENT[0] + d - LOW
        return ((deep * EXTENT[1] + h) * EXTENT[2] + w) * batch + n
    else:
        sample = (residue * batch + n) * EXTENT[0] + d
        return (sample * EXTENT[1] + h) * EXTENT[2] + w


@triton.jit
def load_rows(
    x,
    n,
    d,
    h,
    w,
    batch,
    od,
    oh,
    ow,
    channel,
    FORM: tl.constexpr,
    BOX: tl.constexpr,
    EXTENT: tl.constexpr,
    RESIDUES: tl.constexpr,
    LOW: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The tile of input at an offset from the anchors that start at (n, d, h, w): [P, DEPTH]."""
    POSITIONS: tl.constexpr = BOX[0] * BOX[1] * BOX[2] * BOX[3]
    # Offsets may be negative: a multiple of the residues keeps division in the positive.
    SAFE: tl.constexpr = 1 << 16
    residue = od % 1
    if RESIDUES[0] > 1:
        residue = (od + SAFE * RESIDUES[0]) % RESIDUES[0]
        od = (od + SAFE * RESIDUES[0]) // RESIDUES[0] - SAFE
    if RESIDUES[1] > 1:
        residue = residue * RESIDUES[1] + (oh + SAFE * RESIDUES[1]) % RESIDUES[1]
        oh = (oh + SAFE * RESIDUES[1]) // RESIDUES[1] - SAFE
    if RESIDUES[2] > 1:
        residue = residue * RESIDUES[2] + (ow + SAFE * RESIDUES[2]) % RESIDUES[2]
        ow = (ow + SAFE * RESIDUES[2]) // RESIDUES[2] - SAFE
    if FORM == "rows":
        row = row_of(n, d + od, h + oh, w + ow, batch, residue, FORM, EXTENT, LOW)
        return x.load([0, 0, 0, row, channel]).reshape(POSITIONS, DEPTH)
    elif FORM == "box":
        return x.load([residue * batch + n, d + od, h + oh, w + ow, channel]).reshape(
            POSITIONS, DEPTH
        )
    else:
        deep = residue * EXTENT[0] + d + od - LOW
        return x.load([deep, h + oh, w + ow, n, channel]).reshape(POSITIONS, DEPTH)


@triton.jit
def place_in_sample(tile, BOX: tl.constexpr, RESULTS: tl.constexpr):
    """The first result of a tile of rows that lie as results do."""
    SAMPLE: tl.constexpr = RESULTS[0] * RESULTS[1] * RESULTS[2]
    TILES: tl.constexpr = (SAMPLE + BOX[3] - 1) // BOX[3]
    return tile % TILES * BOX[3]
