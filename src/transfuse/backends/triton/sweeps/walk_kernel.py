# mypy: ignore-errors
"""Where the elements of a block lie, for every kernel of a sweep.

``views`` are the pointers of all views, and their strides. ``B`` is a ``blocks.Block``. Sizes and
strides are integers as ``told.told`` tells them.
"""

import triton
import triton.language as tl

from transfuse.backends.triton.epilogue.arithmetic import narrow
from transfuse.backends.triton.told_kernel import parted, plain


@triton.jit
def divided(n, size):
    """``n // size`` and ``n % size``; in 32 bits by a product, far cheaper than a division."""
    if n.dtype == tl.int64:
        found = n // plain(size[0])
        return found, n - found * plain(size[0])
    else:
        return parted(n, size)


@triton.jit
def side(at, sizes, TILES: tl.constexpr, FIRST: tl.constexpr, S: tl.constexpr):
    """The coordinates of block ``at`` of a side, which of them there are, their linear index."""
    index = tl.expand_dims(tl.arange(0, S.block), 1 - S.dim)
    RANK: tl.constexpr = S.rank
    LAST: tl.constexpr = FIRST + S.rank - 1
    inner = plain(sizes[LAST][0]) * S.unit
    coordinates = ()
    if S.flat and S.rank > 1:
        UNIT: tl.constexpr = S.unit
        # Numbers of as many neighbours as are read at once: all have the same outer coordinates.
        rest = at * (S.block // UNIT) + index // UNIT
        rest, own = divided(rest, sizes[LAST])
        own = own * UNIT + index % UNIT
        coordinates = (own,)
        for i in tl.static_range(1, RANK - 1):
            rest, other = divided(rest, sizes[LAST - i])
            coordinates = (other,) + coordinates
        coordinates = (rest,) + coordinates
        live = rest < plain(sizes[FIRST][0])
        if UNIT > 1 and S.dim == 0:
            live = tl.max_constancy(live, [UNIT, 1])
        elif UNIT > 1:
            live = tl.max_constancy(live, [1, UNIT])
        return coordinates, live, at * S.block + index
    elif S.flat:
        index = at * S.block + index
        return (index,), index < inner, index
    else:
        rest, tile = divided(at, sizes[TILES])
        own = tile * S.block + index
        linear = rest * inner + own
        coordinates = (own,)
        for i in tl.static_range(1, RANK):
            rest, other = divided(rest, sizes[LAST - i])
            coordinates = (other,) + coordinates
        return coordinates, own < inner, linear


@triton.jit
def moved(to, coordinates, strides, FIRST: tl.constexpr, KIND: tl.constexpr, UNIT: tl.constexpr):
    """A pointer moved to coordinates of a side, but for those that move it by one element."""
    if KIND != "none":
        for i in tl.static_range(len(coordinates)):
            if i + 1 < len(coordinates) or KIND == "any":
                to += coordinates[i] * (plain(strides[FIRST + i]) * UNIT)
    return to


@triton.jit
def nearer(to, coordinate, S: tl.constexpr):
    """A pointer moved by a coordinate of the innermost axis.

    Of several axes in one the compiler does not see that neighbours lie side by side: it is told,
    of the very operation that gives the pointer.
    """
    to = to + coordinate
    UNIT: tl.constexpr = S.unit
    BYTES: tl.constexpr = S.unit * to.dtype.scalar.element_ty.primitive_bitwidth // 8
    if S.flat and S.rank > 1 and S.unit > 1:
        if S.dim == 0:
            to = tl.multiple_of(tl.max_contiguous(to, [UNIT, 1]), [BYTES, 1])
        else:
            to = tl.multiple_of(tl.max_contiguous(to, [1, UNIT]), [1, BYTES])
    return to


@triton.jit
def spot(views, rows, cols, V: tl.constexpr, B: tl.constexpr):
    """Pointers to a block of view ``V``; of size 1 along a side on which the view does not move."""
    ROWS: tl.constexpr = B.looks[V].rows
    COLS: tl.constexpr = B.looks[V].cols
    UNIT: tl.constexpr = B.looks[V].unit
    pointers, strides = views
    to = pointers[V] + plain(strides[V][0]).to(tl.int64) * UNIT
    to = moved(to, rows, strides[V], 1, ROWS, UNIT)
    to = moved(to, cols, strides[V], 1 + len(rows), COLS, UNIT)
    OF_ROWS: tl.constexpr = B.rows
    OF_COLS: tl.constexpr = B.cols
    if ROWS == "next":
        to = nearer(to, rows[len(rows) - 1], OF_ROWS)
    if COLS == "next":
        to = nearer(to, cols[len(cols) - 1], OF_COLS)
    return to


@triton.jit
def fetched(views, rows, cols, live, V: tl.constexpr, B: tl.constexpr):
    """A block of view ``V``; ``live`` tells which rows and columns there are."""
    ROWS: tl.constexpr = B.looks[V].rows
    COLS: tl.constexpr = B.looks[V].cols
    DOWN: tl.constexpr = ROWS == "any" or ROWS == "next"
    ALONG: tl.constexpr = COLS == "any" or COLS == "next"
    to = spot(views, rows, cols, V, B)
    if DOWN and ALONG:
        return tl.load(to, mask=live[0] & live[1], other=0.0)
    elif DOWN:
        return tl.load(to, mask=live[0], other=0.0)
    elif ALONG:
        return tl.load(to, mask=live[1], other=0.0)
    else:
        return tl.load(to)


@triton.jit
def read(
    views, rows, cols, live, FIRST: tl.constexpr, LAST: tl.constexpr,
    B: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The views from ``FIRST`` up to ``LAST`` at the elements of a block, as a tuple."""
    found = ()
    for i in tl.static_range(FIRST, LAST):
        found = found + (fetched(views, rows, cols, live, i, B).to(ACC),)
    return found


@triton.jit
def write(views, rows, cols, live, value, V: tl.constexpr, B: tl.constexpr):
    """Store a block in view ``V``; along a side on which that does not move, it has size 1."""
    KIND: tl.constexpr = views[0][V].dtype.element_ty
    if value.dtype == tl.float64 and KIND != tl.float64:
        value = value.to(tl.float32)  # as torch rounds
    to = spot(views, rows, cols, V, B)
    to, value = tl.broadcast(to, value)
    tl.store(to, narrow(value, KIND), mask=tl.broadcast_to(live, value.shape))
