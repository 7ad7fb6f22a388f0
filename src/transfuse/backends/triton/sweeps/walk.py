"""Where the elements of a block lie, for every kernel of a sweep.

``B`` is an ``axes.Block``. Sizes and strides are integers as ``axes.told`` tells them.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.kernels.numbers import narrow


@triton.jit
def plain(number):
    """What ``axes.told`` made of an integer."""
    return (number - 3) >> 1


@triton.jit
def side(at, sizes, TILES: tl.constexpr, FIRST: tl.constexpr, S: tl.constexpr):
    """The coordinates of block ``at`` of a side, which of them there are, their linear index."""
    index = tl.expand_dims(tl.arange(0, S.block), 1 - S.dim)
    LAST: tl.constexpr = FIRST + S.rank - 1
    inner = plain(sizes[LAST]) * S.unit
    coordinates = ()
    if S.flat:
        index = at * S.block + index
        rest = index
        for i in tl.static_range(S.rank - 1):
            size = plain(sizes[LAST - i])
            coordinates = (rest % size,) + coordinates  # noqa: RUF005
            rest = rest // size
        coordinates = (rest,) + coordinates  # noqa: RUF005
        if S.rank > 1:
            inner = plain(sizes[FIRST])
        return coordinates, rest < inner, index
    else:
        tiles = plain(sizes[TILES])
        own = at % tiles * S.block + index
        rest = at // tiles
        linear = rest * inner + own
        coordinates = (own,)
        for i in tl.static_range(1, S.rank):
            size = plain(sizes[LAST - i])
            coordinates = (rest % size,) + coordinates  # noqa: RUF005
            rest = rest // size
        return coordinates, own < inner, linear


@triton.jit
def moved(
    to, coordinates, strides, FIRST: tl.constexpr, KIND: tl.constexpr, UNIT: tl.constexpr
):
    """A pointer moved to coordinates of a side."""
    if KIND != "none":
        for i in tl.static_range(len(coordinates)):
            if i + 1 < len(coordinates) or KIND == "any":
                to += coordinates[i] * (plain(strides[FIRST + i]) * UNIT)
            elif KIND == "next":
                to += coordinates[i]
    return to


@triton.jit
def spot(pointer, strides, rows, cols, L: tl.constexpr):
    """Pointers to the elements of a block; of size 1 along a side that a view does not move on."""
    ROWS: tl.constexpr = L.rows
    COLS: tl.constexpr = L.cols
    to = pointer + plain(strides[0]).to(tl.int64) * L.unit
    to = moved(to, rows, strides, 1, ROWS, L.unit)
    return moved(to, cols, strides, 1 + len(rows), COLS, L.unit)


@triton.jit
def fetched(to, live, L: tl.constexpr, ACC: tl.constexpr):
    """What pointers point to; ``live`` tells which rows and columns there are."""
    ROWS: tl.constexpr = L.rows == "any" or L.rows == "next"
    COLS: tl.constexpr = L.cols == "any" or L.cols == "next"
    if ROWS and COLS:
        return tl.load(to, mask=live[0] & live[1], other=0.0).to(ACC)
    elif ROWS:
        return tl.load(to, mask=live[0], other=0.0).to(ACC)
    elif COLS:
        return tl.load(to, mask=live[1], other=0.0).to(ACC)
    else:
        return tl.load(to).to(ACC)


@triton.jit
def read(
    pointers, strides, rows, cols, live, FIRST: tl.constexpr, LAST: tl.constexpr,
    B: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The views from ``FIRST`` up to ``LAST`` at the elements of a block, as a tuple."""
    found = ()
    for i in tl.static_range(FIRST, LAST):
        LOOK: tl.constexpr = B.looks[i]
        to = spot(pointers[i], strides[i], rows, cols, LOOK)
        found = found + (fetched(to, live, LOOK, ACC),)  # noqa: RUF005
    return found


@triton.jit
def write(pointer, strides, rows, cols, live, value, L: tl.constexpr):
    """Store a block; along a side that the view does not move on, it has size 1."""
    KIND: tl.constexpr = pointer.dtype.element_ty
    if value.dtype == tl.float64 and KIND != tl.float64:
        value = value.to(tl.float32)  # as torch rounds
    to = spot(pointer, strides, rows, cols, L)
    to, value = tl.broadcast(to, value)
    tl.store(to, narrow(value, KIND), mask=tl.broadcast_to(live, value.shape))
