"""What launches are made of: segments of tile ops, and the statistics between them, as records."""

from dataclasses import dataclass

from transfuse.problem import Shape
from transfuse.stages.actions import Pool
from transfuse.stages.running import Running

RESIDENT = ("group_norm", "space_softmax")
"""Ops that take every position of a sample at once."""


@dataclass(frozen=True)
class Node:
    """A part of an expression, as ``epilogue/expressions.py`` takes it.

    ``"x"`` is the running value; ``"number"`` and ``"tensor"`` are arguments of the launch, the one
    ``at`` so many after the first of the op; all else is a primitive with its arguments.
    """

    op: str
    at: int = 0
    parts: tuple["Node", ...] = ()


@dataclass(frozen=True)
class TileOp:
    """What is done to a tile in registers. ``tensors``: operands by name, or (statistic, half).

    ``factor`` multiplies its result: a softmax takes it into the shares, an addition into its term
    (what it is added to was multiplied before).
    """

    op: str
    tensors: tuple[str | tuple[int, int], ...] = ()
    numbers: tuple[float, ...] = ()
    size: int = 1
    count: int = 1
    factor: float = 1.0
    expr: Node | None = None  # of a map
    spread: tuple[bool, ...] = ()  # of a map: which tensors have more than a value per channel

    @property
    def per_channel(self) -> bool:
        return not any(self.spread)


@dataclass(frozen=True)
class SegmentStatistic:
    """A statistic of a sample or the batch, one for ``size`` neighbouring of ``channels``."""

    kind: str  # "moments", "peaks" or "exponentials"
    channels: int
    size: int = 1
    over_batch: bool = False
    eps: float = 0.0
    running: Running | None = None


@dataclass(frozen=True)
class Segment:
    """One kernel over all tiles. ``late`` and ``early`` name the statistic gathered, by number."""

    convolves: bool
    source: Shape
    result: Shape
    before: tuple[TileOp, ...]
    window: Pool | None
    after: tuple[TileOp, ...]
    early: int | None
    late: int | None
    stores: bool

    @property
    def channel_stage(self) -> bool:
        """Whether a tile must hold all channels."""
        return any(step.op in ("softmax", "sum") for step in (*self.before, *self.after))

    @property
    def summed(self) -> bool:
        return any(step.op == "sum" for step in self.after)

    @property
    def only_gathers(self) -> bool:
        """Whether a statistic is all that is left of a tile, so that its parts need not meet."""
        return not (self.late is None or self.stores or self.summed or self.resident)

    @property
    def resident(self) -> TileOp | None:
        """The norm whose statistic a tile takes for itself."""
        found = [step for step in self.after if step.op in RESIDENT]
        return found[0] if found else None


@dataclass(frozen=True)
class Lowered:
    """What a backend launches: prologue, segments in order, and the statistics between them.

    ``passes``: which pass of the plan each segment is of, from that of the convolution on.
    """

    prologue: tuple[TileOp, ...]
    pool: Pool | None
    after_pool: tuple[TileOp, ...]
    factor: float
    segments: tuple[Segment, ...]
    statistics: tuple[SegmentStatistic, ...]
    passes: tuple[int, ...]


def power(n: int) -> int:
    """The power of two that holds ``n``."""
    return 1 << max(0, n - 1).bit_length()


PIECES, FEW = 8, 5
"""Pieces of a tile, and how many of them are taken where these hold all of it."""


def in_pieces(n: int, most: int) -> tuple[int, int]:
    """How many pieces hold ``n``, and their size: one of few, as each takes a build."""
    tile = stepped(n, most)
    return (PIECES, tile // PIECES) if n > most // 64 else (1, tile)


def stepped(n: int, most: int) -> int:
    """``most``, or what holds ``n`` of an eighth or a 64th of it: a kernel is built for few."""
    return next((most // down for down in (64, 8) if n <= most // down), most)
