"""Tile ops as a kernel takes them: a table of names and numbers, and the launch's arguments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from transfuse.backends.triton.segments import RESIDENT, Node, TileOp
from transfuse.backends.triton.store.key import sources
from transfuse.backends.triton.strides import Five, inner
from transfuse.backends.triton.told import all_told
from transfuse.stages.actions import Pool

SOURCES = sources()
"""Stands for the code that describes kernels: Triton knows a kernel by its own code only."""


class OperandLayout(NamedTuple):
    """How a tensor lies that has more than a value per channel: which of the launch's strides are
    its own, the axis along which elements lie side by side, and how many of them at a time."""

    at: int
    inner: int
    unit: int


@dataclass(frozen=True)
class OpTable:
    """Tile ops as a kernel takes them: names and numbers in flat tuples, one entry for each op."""

    ops: tuple[str, ...] = ()
    at: tuple[int, ...] = ()
    number: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    count: tuple[int, ...] = ()
    factor: tuple[int, ...] = ()  # where it stands; -1: none
    expr: tuple[Node | None, ...] = ()  # of maps
    tensors: tuple[int, ...] = ()  # how many
    places: tuple[tuple[OperandLayout | None, ...], ...] = ()
    """Of maps: each tensor that has more than a value per channel."""
    sources: str = SOURCES

    @property
    def resident(self) -> bool:
        """Whether the first op takes every position of a sample."""
        return self.ops[0] in RESIDENT

    @property
    def runs(self) -> "tuple[OpTable, ...]":
        """The same ops, each that takes every position by itself."""
        borders = [i for i, op in enumerate(self.ops) if op in RESIDENT]
        cuts = sorted({0, len(self.ops), *borders, *(i + 1 for i in borders)})
        return tuple(self.part(*each) for each in pairwise(cuts))

    def part(self, first: int, end: int | None = None) -> "OpTable":
        """The ops from ``first`` on, up to ``end``."""
        columns = (self.ops, self.at, self.number, self.size, self.count, self.factor, self.expr)
        part = (each[first:end] for each in (*columns, self.tensors, self.places))
        return OpTable(*part)  # type: ignore[arg-type]


class OpArguments:
    """Tensors and numbers of one launch, each op told where its own begin."""

    def __init__(
        self,
        strides: Mapping[str, Five] | None = None,
        unit: Callable[[Five], int] = lambda strides: 1,
    ) -> None:
        """``strides`` has those of tensors with more than a value per channel, by name; ``unit``
        says how many neighbours of such a tensor are one aligned piece of it.
        """
        self.spread, self.unit = strides or {}, unit
        self.tensors: list[str | tuple[int, int]] = []
        self.numbers: list[float] = []
        self.strides: list[tuple[int, ...]] = []

    def table(self, ops: tuple[TileOp, ...]) -> OpTable:
        at, firsts, factors = [], [], []
        for op in ops:
            at.append(len(self.tensors) if op.tensors else len(self.numbers))
            firsts.append(len(self.numbers))
            self.tensors.extend(op.tensors)
            for number in op.numbers:
                self.numbers.extend(thirds(number))
            factors.append(-1 if op.factor == 1 else len(self.numbers))
            self.numbers.extend(() if op.factor == 1 else thirds(op.factor))
        return OpTable(
            tuple(op.op for op in ops),
            tuple(at),
            tuple(firsts),
            tuple(op.size for op in ops),
            tuple(op.count for op in ops),
            tuple(factors),
            tuple(op.expr for op in ops),
            tuple(len(op.tensors) for op in ops),
            tuple(tuple(map(self._place, op.tensors, op.spread)) for op in ops),
        )

    def _place(self, tensor: str | tuple[int, int], spread: bool) -> OperandLayout | None:
        if not spread or not isinstance(tensor, str):
            return None
        strides = self.spread[tensor]
        self.strides.append(all_told(strides))
        return OperandLayout(len(self.strides) - 1, inner(strides), self.unit(strides))

    def sign(self, window: Pool | None) -> int:
        """Where the operand stands by whose sign a window takes its extremum."""
        if window is None or window.sign is None:
            return 0
        self.tensors.append(window.sign)
        return len(self.tensors) - 1


def thirds(number: float) -> tuple[float, float, float]:
    """A float64 as three float32 that add up to it."""
    parts = []
    for _ in range(3):
        part = float(np.float32(number))
        parts.append(part)
        number = number - part if abs(part) != float("inf") and part == part else 0.0
    return parts[0], parts[1], parts[2]
