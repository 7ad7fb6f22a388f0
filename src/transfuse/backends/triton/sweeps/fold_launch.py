"""The launches of ``Fold``: along which axes blocks lie, how many programs share a result."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from transfuse.backends.triton.arguments import UNREAD, At
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.segments import Node
from transfuse.backends.triton.sweeps.blocks import (
    Across,
    BlockAxis,
    Laid,
    axes,
    laid,
    merged,
    widest,
)
from transfuse.backends.triton.sweeps.launch_arguments import LaunchArguments
from transfuse.backends.triton.told import told
from transfuse.maths.expr import Expr, substituted
from transfuse.maths.expr import name as symbol
from transfuse.sweeps import Fold, View

FOLD = Kernel("sweeps.fold_kernel", "fold", static=3)
JOIN = Kernel("sweeps.fold_kernel", "join", static=3)

ELEMENTS = 2048
"""Of a block; half as many where they are twice as wide, in float64."""
FOLDED = (1024, 64)
"""Neighbours of a block where what is folded lies innermost."""
KEPT = (512, 64)
"""The same where results do."""
SHORT = 128
"""A shorter innermost axis is walked together with those around it."""
BESIDE = 32
"""Neighbours along rows that are worth to be read together, where a value lies so."""
ENOUGH = 1024
"""Programs that keep a GPU busy."""
LEAST = 8
"""Blocks that are worth a program of their own."""
JOINED = (4, 128)
"""Results of a block, and partials of each."""


@dataclass(frozen=True)
class Folding:
    """What a fold's kernels are compiled for, beside where its views lie.

    Views are the ``results``, then the ``others``, up to that number; then values, up to
    ``values``.
    """

    folding: str
    kind: str
    kept: int  # the dimension of a block along which results lie
    before: tuple[Node, ...]  # of each fold that is taken at once
    after: tuple[Node, ...]
    results: int
    others: int
    values: int
    shared: bool  # by several programs


KINDS = {"mean": "sum", "logsumexp": "peaks", "exponentials": "peaks"}
PARTIALS = {"peaks": 2, "moments": 3}


def launches(
    folds: Sequence[Fold], at: Callable[[int], int], memory: Callable[[int, torch.dtype], int]
) -> list[Launch]:
    """The launches of folds of one kind over the same axes, taken at once.

    ``at`` has the number of a slot's tensor, ``memory`` of scratch.
    """
    outs = [view for sweep in folds for view in sweep.outs]
    if 0 in outs[0].sizes:
        return []
    others = _each_once(view for sweep in folds for _, view in sweep.others)
    values = _each_once(view for sweep in folds for _, view in sweep.values)
    results = [*outs, *others]
    views = [*results, *values]
    given = LaunchArguments(views, at)
    before = tuple(_part(given, each.before, each.values, values) for each in folds)
    after = tuple(_part(given, each.after, each.others, others) for each in folds)
    kept, folded = _axes(views, len(results))
    found, dim = _laid(views, kept, folded, len(results))
    blocks, steps = (found.rows, found.cols) if dim == 0 else (found.cols, found.rows)
    run = steps
    if blocks <= ENOUGH // 2:
        run = max(LEAST, -(-steps * blocks // ENOUGH))
    shares = max(1, -(-steps // max(run, 1)))
    many, count = _count(folded), _count(kept)
    counts = tuple(map(told, (steps, run, shares, many, count * shares)))
    name = folds[0].folding
    kind = KINDS.get(name, name)
    folding = Folding(
        name, kind, dim, before, after, len(outs), len(results), len(views), shares > 1
    )
    partials = At(UNREAD)
    if shares > 1:
        planes = len(folds) * PARTIALS.get(kind, 1)
        partials = At(memory(planes * count * shares, given.dtype))

    def launch(kernel: Kernel, which: Laid, programs: int) -> Launch:
        arguments: list[Any] = [
            *given.arguments(which),
            partials,
            counts,
            which.block,
            folding,
            given.acc,
        ]
        return Launch(kernel, programs, arguments)

    whole = [launch(FOLD, found, blocks * shares)]
    if shares > 1:
        alone = laid(results, Across(kept, JOINED[0], even=False), Across([], JOINED[1]))
        whole.append(launch(JOIN, alone, alone.rows))
    return whole


def _count(found: Sequence[BlockAxis]) -> int:
    return Across(list(found), 1).count


def _each_once(views: Iterable[View]) -> list[View]:
    return list(dict.fromkeys(views))


def _part(
    given: LaunchArguments, expr: Expr, named: Sequence[tuple[str, View]], views: Sequence[View]
) -> Node:
    """An expression of named views, as one of all these views."""
    at = {name: f"v{views.index(view)}" for name, view in named}
    everywhere = substituted(expr, {name: symbol(each) for name, each in at.items()})
    return given.part(everywhere, [f"v{i}" for i in range(len(views))])


def _axes(views: Sequence[View], first: int) -> tuple[list[BlockAxis], list[BlockAxis]]:
    """The axes of results, and those that are folded, as the first value has them in memory;
    values are the views from the ``first`` on."""
    sizes, rank = views[first].sizes, len(views[0].sizes)
    strides = [(*v.strides[:rank], *(0,) * (len(sizes) - rank)) for v in views[:first]]
    strides += [v.strides for v in views[first:]]
    key = [*range(first, len(views)), *range(first)]
    kept = axes(sizes[:rank], [each[:rank] for each in strides])
    folded = axes(sizes[rank:], [each[rank:] for each in strides])
    return merged(kept, key), merged(folded, key)


def _laid(
    views: Sequence[View], kept: list[BlockAxis], folded: list[BlockAxis], first: int
) -> tuple[Laid, int]:
    """Along columns goes what lies innermost in memory; the dimension along which results lie."""
    near = _nearest(kept, first, len(views)), _nearest(folded, first, len(views))
    most = ELEMENTS // 2 if any(view.dtype is torch.float64 for view in views) else ELEMENTS
    if near[0] < near[1]:
        inner, beside = kept[-1].size, _beside(folded, kept)
        flat = len(kept) == 1 or inner < KEPT[-1] // 2
        few = _count(kept) < ENOUGH * KEPT[0]
        columns = widest(_count(kept) if flat else inner, KEPT[beside or few :])
        rows = most // columns if _count(folded) > 4 else 4
        across = Across(kept, columns, flat)
        return laid(views, Across(folded, rows, not beside, even=beside), across), 1
    flat, beside = len(folded) < 2 or folded[-1].size < SHORT, _beside(kept, folded)
    columns = widest(_count(folded) if flat else folded[-1].size, FOLDED[beside:])
    across = Across(folded, columns, flat)
    return laid(views, Across(kept, most // columns, not beside, even=beside), across), 0


def _beside(found: list[BlockAxis], across: list[BlockAxis]) -> bool:
    """Whether a view of all elements lies along the rows, so that some are to be read side by side.

    A block has few columns then: as many rows more would be more than its threads hold.
    """
    if not found or not across or found[-1].size < BESIDE:
        return False
    pairs = zip(found[-1].strides, across[-1].strides, strict=True)
    return any(own == 1 and other for own, other in pairs)


def _nearest(found: Sequence[BlockAxis], first: int, last: int) -> float:
    """How near neighbours along the innermost axis lie, in the first value that they differ in."""
    if found:
        for view in range(first, last):
            if found[-1].strides[view]:
                return found[-1].strides[view]
    return float("inf")
