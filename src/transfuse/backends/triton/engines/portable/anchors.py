# mypy: ignore-errors
"""Where a tile lies: its anchors among the rows that are read, its results among those written.

Three *forms*. ``rows``: consecutive rows of a flat copy, halos between the lines; every shift is
one offset. ``box``: a box of depth, height, width of one sample. ``batch``: a box of depth,
height, width and samples, samples innermost; a box of one position skips taps that fall outside.
"""

import triton
import triton.language as tl


@triton.jit
def anchors(tile, p, batch, T: tl.constexpr, JOINED: tl.constexpr = False):
    """Sample and anchor of each position ``p`` of a tile: n, d, h, w. Positions may be numbers.

    ``JOINED``: positions are results, the width classes of an anchor side by side.
    """
    BOX: tl.constexpr = T.joined_box if JOINED else T.box
    ANCHORS: tl.constexpr = T.joined_anchors if JOINED else T.anchors
    EXTENT: tl.constexpr = T.joined_extent if JOINED else T.extent
    if T.form == "rows":
        LINE: tl.constexpr = EXTENT[2]
        PLANE: tl.constexpr = EXTENT[1] * LINE
        if T.cross:  # tiles run on from one sample into the next
            at = tile * BOX[3] + p
            n = at // (EXTENT[0] * PLANE)
            at = at % (EXTENT[0] * PLANE)
        else:
            n = tile // T.tiles_of_sample + 0 * p
            at = tile % T.tiles_of_sample * BOX[3] + p
        return n, at // PLANE, at // LINE % EXTENT[1], at % LINE
    elif T.form == "box":
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
        samples = (batch + BOX[3] - 1) // BOX[3]
        WIDE: tl.constexpr = (ANCHORS[2] + BOX[2] - 1) // BOX[2]
        HIGH: tl.constexpr = (ANCHORS[1] + BOX[1] - 1) // BOX[1]
        n = tile % samples * BOX[3] + p % BOX[3]
        tile = tile // samples
        w = tile % WIDE * BOX[2] + p // BOX[3] % BOX[2]
        tile = tile // WIDE
        h = tile % HIGH * BOX[1] + p // (BOX[3] * BOX[2]) % BOX[1]
        return n, tile // HIGH * BOX[0] + p // (BOX[3] * BOX[2] * BOX[1]), h, w


@triton.jit
def row_of(n, d, h, w, batch, residue, T: tl.constexpr):
    """The row of the copy that holds an input."""
    if T.form == "batch":
        deep = residue * T.extent[0] + d - T.low
        return ((deep * T.extent[1] + h) * T.extent[2] + w) * batch + n
    else:
        sample = (residue * batch + n) * T.extent[0] + d
        return (sample * T.extent[1] + h) * T.extent[2] + w


@triton.jit
def divided(offset, residue, AXIS: tl.constexpr, T: tl.constexpr):
    """An offset in inputs as one in rows, and the residue with that of this axis."""
    if T.apart[AXIS] > 1:
        # Offsets may be negative: a multiple of the residues keeps division in the positive.
        positive = offset + T.apart[AXIS] * T.lift[AXIS]
        residue = residue * T.apart[AXIS] + positive % T.apart[AXIS]
        offset = positive // T.apart[AXIS] - T.lift[AXIS]
    return offset, residue


@triton.jit
def load_rows(x, first, batch, offset, channel, T: tl.constexpr):
    """The tile of input at an offset from the anchors that start at ``first``: [P, depth].

    ``first`` is n, d, h, w; ``offset`` is in inputs along depth, height and width.
    """
    n, d, h, w = first
    od, oh, ow = offset
    residue = 0
    if T.lone:
        d = d * T.residues[0]
        h = h * T.residues[1]
        w = w * T.residues[2]
    od, residue = divided(od, residue, 0, T)
    oh, residue = divided(oh, residue, 1, T)
    ow, residue = divided(ow, residue, 2, T)
    if T.form == "rows":
        row = row_of(n, d + od, h + oh, w + ow, batch, residue, T)
        tile = x.load([0, 0, 0, row, channel])
    elif T.form == "box":
        tile = x.load([residue * batch + n, d + od, h + oh, w + ow, channel])
    else:
        deep = residue * T.extent[0] + d + od - T.low
        tile = x.load([deep, h + oh, w + ow, n, channel])
    POSITIONS: tl.constexpr = T.positions
    DEPTH: tl.constexpr = T.depth
    return tile.reshape(POSITIONS, DEPTH)
