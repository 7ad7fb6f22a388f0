"""Tape: a walk that keeps what stages said, so that it can be read backwards.

The values of a chain lie in one buffer after another. A *region* is all that was said of those of
one buffer: maps wait as one expression, folds were taken of it on the way, and a word at its end
made the values of the next buffer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from transfuse.maths.expr import Expr, X
from transfuse.stages import Stage
from transfuse.stages.walk import Given, Statistic, Value
from transfuse.sweeping import Buffer, Sweeping, _Open
from transfuse.sweeps import Folding


@dataclass(frozen=True)
class Taken:
    """Statistics of a region's values as the expression had them then."""

    folding: Folding
    expr: Expr
    statistics: tuple[Statistic, ...]
    axes: tuple[int, ...]
    groups: int


@dataclass(frozen=True)
class Reduced:
    folding: Folding
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Slid:
    folding: Literal["max", "sum", "mean", "sign"]
    options: dict[str, Any]
    sign: Value | None


@dataclass(frozen=True)
class Shuffled:
    factor: int


@dataclass(frozen=True)
class Joined:
    other: Given
    channels: int
    first: bool


Word = Reduced | Slid | Shuffled | Joined
"""What made the next values; None where they were only stored, or are the last."""


@dataclass
class Region:
    """The values of a buffer, and what became of them."""

    buffer: Buffer
    values: dict[str, Value]
    taken: list[Taken] = field(default_factory=list)
    expr: Expr = X
    word: Word | None = None
    stages: list[str] = field(default_factory=list)


@dataclass
class Tape(Sweeping):
    """Sweeps over the values of ``buffer``, each result kept as it is, and the regions they make.

    Nothing is stored behind a fold or window that would hide its result: derivatives need it.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.regions = [Region(self.buffer, self.values)]
        self._hearing = ""

    def hear(self, stage: Stage) -> None:
        first, self._hearing = len(self.regions) - 1, str(stage)
        super().hear(stage)
        touched = self.regions[first:]
        untouched = self.expr is X and not touched[-1].taken
        for region in touched[:-1] if untouched and len(touched) > 1 else touched:
            region.stages.append(str(stage))

    def end(self) -> None:
        """The values as they are now are the last; they need not be stored."""
        self.regions[-1].expr = self.expr

    def fold(self, folding: Folding, axes: Sequence[int], groups: int = 1) -> tuple[Statistic, ...]:
        found = super().fold(folding, axes, groups)
        self.regions[-1].taken.append(Taken(folding, self.expr, found, tuple(axes), groups))
        return found

    def reduce(self, folding: Folding, axes: Sequence[int]) -> None:
        super().reduce(folding, axes)
        self.regions[-2].word = Reduced(folding, tuple(axes))

    def slide(
        self,
        folding: Literal["max", "sum", "mean", "sign"],
        outputs: Sequence[int],
        *,
        sign: Value | None = None,
        **options: Any,
    ) -> None:
        super().slide(folding, outputs, sign=sign, **options)
        self.regions[-2].word = Slid(folding, options, sign)

    def shuffle(self, factor: int) -> None:
        super().shuffle(factor)
        self.regions[-2].word = Shuffled(factor)

    def cat(self, other: Given, channels: int, first: bool) -> None:
        super().cat(other, channels, first)
        self._turn(X)
        self.regions[-2].word = Joined(other, channels, first)

    def store(self) -> None:
        expr = self.expr
        super().store()
        self._turn(expr)

    def _owned(self) -> None:
        super()._owned()
        self._turn(X)

    def _wait(self, opened: _Open) -> None:
        expr = self.expr
        super()._wait(opened)
        super().store()
        self._turn(expr)

    def _does(self, more: str = "") -> str:
        # Results are written down at once, before their stage has said all.
        if self._hearing not in self.words:
            self.words.append(self._hearing)
        return super()._does(more)

    def _turn(self, expr: Expr) -> None:
        """Begin a region where the values lie in another buffer now; the last ended so."""
        if self.buffer is not self.regions[-1].buffer:
            self.regions[-1].expr = expr
            self.regions.append(Region(self.buffer, self.values))
