# mypy: ignore-errors
"""Where a tile lies: its anchors among the rows that are read, its results among those written.

Three *forms*. ``rows``: consecutive rows of a flat copy, halos between the lines; every shift is
one offset. ``box``: a box of depth, height, width of one sample. ``batch``: a box of depth,
height, width and samples, samples innermost; a box of one position skips taps that fall outside.

``S`` are ``TileSizes``, ``T`` is a ``Tile``.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.told_kernel import parted, plain


@triton.jit
def anchors(tile, p, S, T: tl.constexpr):
    """Sample and anchor of each position ``p`` of a tile: n, d, h, w. Positions may be numbers.

    What is the same for all positions of a tile stays a number: comparisons with it cost nothing.
    """
    BOX: tl.constexpr = T.box
    if T.form == "rows":
        n, tile = parted(tile, S.grid[0])
        more, at = parted(tile * BOX[3] + p, S.grid[1])
        d, at = parted(at, S.grid[2])
        h, w = parted(at, S.grid[3])
        return n + more, d, h, w
    elif T.form == "box":
        tile, w = parted(tile, S.grid[0])
        tile, h = parted(tile, S.grid[1])
        n, d = parted(tile, S.grid[2])
        w = w * BOX[3] + p % BOX[3]
        if BOX[2] > 1:
            h = h * BOX[2] + p // BOX[3] % BOX[2]
        if BOX[1] > 1:
            d = d * BOX[1] + p // (BOX[3] * BOX[2])
        return n, d, h, w
    else:
        tile, n = parted(tile, S.grid[0])
        tile, w = parted(tile, S.grid[1])
        d, h = parted(tile, S.grid[2])
        n = n * BOX[3] + p % BOX[3]
        if BOX[2] > 1:
            w = w * BOX[2] + p // BOX[3] % BOX[2]
        if BOX[1] > 1:
            h = h * BOX[1] + p // (BOX[3] * BOX[2]) % BOX[1]
        if BOX[0] > 1:
            d = d * BOX[0] + p // (BOX[3] * BOX[2] * BOX[1])
        return n, d, h, w


@triton.jit
def row_of(n, d, h, w, residue, S, T: tl.constexpr):
    """The row of the copy that holds an input."""
    row = residue * plain(S.copy[0]) + n * plain(S.copy[1]) + (d - T.low) * plain(S.copy[2])
    return row + h * plain(S.copy[3]) + w * plain(S.copy[4])


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
def load_rows(x, first, offset, channel, S, T: tl.constexpr):
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
        tile = x.load([0, 0, 0, row_of(n, d + od, h + oh, w + ow, residue, S, T), channel])
    elif T.form == "box":
        tile = x.load([residue * plain(S.batch) + n, d + od, h + oh, w + ow, channel])
    else:
        deep = residue * plain(S.deep) + d + od - T.low
        tile = x.load([deep, h + oh, w + ow, n, channel])
    POSITIONS: tl.constexpr = T.positions
    DEPTH: tl.constexpr = T.depth
    return tile.reshape(POSITIONS, DEPTH)
