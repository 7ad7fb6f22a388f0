"""The launches of sweeps that became one: a walk over all rows, and what it left of columns."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from transfuse.backends.triton.arguments import UNREAD, At
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.segments import Node
from transfuse.backends.triton.sweeps import fold_launch
from transfuse.backends.triton.sweeps.blocks import Across, BlockAxis, Laid, laid, merged
from transfuse.backends.triton.sweeps.fold_launch import KINDS
from transfuse.backends.triton.sweeps.launch_arguments import LaunchArguments
from transfuse.backends.triton.sweeps.together import Group, Member, Placed
from transfuse.backends.triton.told import told
from transfuse.maths.expr import X, substituted
from transfuse.sweeps import Fold, View

Named = tuple[tuple[str, View], ...]

WALK = Kernel("sweeps.together_kernel", "walk", static=3)

ELEMENTS = 2048
"""Of a block; half as many where they are twice as wide, in float64."""
BESIDE = 16
"""Rows of a block where a view lies across them: so many neighbours are worth to be read."""
PROGRAMS = 2048
"""At most: each leaves a partial of every column."""
EACH = 8
"""Of a thread, of each view: many are at hand at a time."""
MOST_WARPS = 16
PARTIALS = -1
"""The slot of what programs leave of columns: none of a sweep's own."""


@dataclass(frozen=True)
class Doing:
    """What one sweep does with a block.

    ``takes`` and ``others``: of the values at hand, those that it reads. These are first those
    loaded, then what each sweep leaves of elements and rows, in order. ``writes``: the first of its
    views.
    """

    role: str
    folding: str
    kind: str
    before: Node
    takes: tuple[int, ...]
    after: Node
    others: tuple[int, ...]
    writes: int
    column: int  # which of the sums it adds to


@dataclass(frozen=True)
class TogetherWalk:
    """What the kernel is compiled for, beside where its views lie: the first are ``loaded``."""

    loaded: int
    doings: tuple[Doing, ...]
    columns: int


def launches(
    group: Group, at: Callable[[int], int], memory: Callable[[int, torch.dtype], int]
) -> list[Launch]:
    """``at`` has the number of a slot's tensor, ``memory`` of scratch."""
    assert group.along is not None
    loaded, written = _views(group)
    views = [*loaded, *written]
    given = LaunchArguments([each.view for each in views], at)
    walk = _walk(group, loaded, len(loaded), given)
    found = _laid(group, views)
    steps = found.rows
    run = -(-steps // PROGRAMS)
    programs = -(-steps // run)
    length = group.sizes[group.along]
    sums = At(UNREAD)
    if walk.columns:
        number = memory(walk.columns * programs * length, given.dtype)
        sums = At(number)
    counts = tuple(map(told, (steps, run, length, programs)))
    arguments: list[Any] = [
        *given.arguments(found), sums, counts, found.block, walk, given.acc,
    ]  # fmt: skip
    warps = min(found.block.rows.block * found.block.cols.block // (32 * EACH), MOST_WARPS)
    # Two programs of eight warps share a multiprocessor: one computes while the other waits.
    options = {"num_warps": max(warps, 1), "maxnreg": 128}
    made = [Launch(WALK, programs, arguments, options)]
    columns = [member for member in group.members if member.role == "column"]
    joined = [_joined(each, i, programs, length, given.dtype) for i, each in enumerate(columns)]
    for fold in joined:
        made += fold_launch.launches(
            [fold], lambda slot: number if slot == PARTIALS else at(slot), memory
        )
    return made


def _views(group: Group) -> tuple[list[Placed], list[Placed]]:
    """What is read from memory, each once; what is written to it."""
    made = {each.key for m in group.members for each in m.outs}
    reads = (each for m in group.members for each in (*m.values, *m.others))
    loaded = {each.key: each for each in reads if each.key not in made}
    stored = (each for m in group.members if m.role != "column" for each in m.outs)
    return list(loaded.values()), list(stored)


def _walk(group: Group, loaded: list[Placed], view: int, given: LaunchArguments) -> TogetherWalk:
    """What is done to a block; ``view``: the number of the first that is written."""
    at_hand = {each.key: i for i, each in enumerate(loaded)}
    doings, columns = [], 0
    for member in group.members:
        sweep = member.sweep
        others: tuple[int, ...] = ()
        before, after = (sweep.before, sweep.after) if isinstance(sweep, Fold) else (sweep.expr, X)
        first, last = given.part(before, _names(sweep.values)), Node("x")
        if isinstance(sweep, Fold) and member.role == "row":
            others = tuple(at_hand[each.key] for each in member.others)
            last = given.part(after, _names(sweep.others))
        takes = tuple(at_hand[each.key] for each in member.values)
        folding = sweep.folding if isinstance(sweep, Fold) else ""
        writes = view
        if member.role != "column":
            view += len(member.outs)
            for each in member.outs:
                at_hand[each.key] = len(at_hand)
        kind = KINDS.get(folding, folding)
        doings.append(
            Doing(
                member.role, folding, kind, first, takes, last, others, writes, columns,
            )
        )  # fmt: skip
        columns += member.role == "column"
    return TogetherWalk(len(loaded), tuple(doings), columns)


def _names(named: Named) -> list[str]:
    return [name for name, _ in named]


def _laid(group: Group, views: list[Placed]) -> Laid:
    """Rows of the group along the rows of a block, so many that views across them lie together."""
    along = group.along
    assert along is not None
    found = [
        BlockAxis(size, tuple(each.strides[axis] for each in views))
        for axis, size in enumerate(group.sizes)
    ]
    inner = found.pop(along)
    outer = merged(found, range(len(views))) or [BlockAxis(1, (0,) * len(views))]
    columns = 1 << (inner.size - 1).bit_length()
    most = ELEMENTS
    if any(each.view.dtype is torch.float64 for each in views):
        most //= 2
    rows = min(max(most // columns, 4), 128)
    # The innermost axis of rows is walked by itself where something lies along it.
    lies = [i for i, axis in enumerate(outer) if axis.size >= BESIDE and 1 in axis.strides]
    if lies:
        outer.append(outer.pop(lies[0]))
        across = Across(outer, max(rows, BESIDE), flat=False)
    else:
        across = Across(outer, rows, even=False)
    return laid([each.view for each in views], across, Across([inner], columns))


def _joined(member: Member, at: int, programs: int, length: int, dtype: torch.dtype) -> Fold:
    """The sum of what each program left of the columns of a member, the ``at``-th that has some."""
    sweep = member.sweep
    assert isinstance(sweep, Fold)
    (axis,) = (i for i, size in enumerate(sweep.outs[0].sizes) if size > 1)
    rank = len(sweep.outs[0].sizes)
    many = prod(sweep.values[0][1].sizes[rank:])
    strides = [0] * rank
    strides[axis] = 1
    partial = View(
        PARTIALS,
        dtype,
        (*sweep.outs[0].sizes, programs),
        (*strides, length),
        at * programs * length,
    )
    after = sweep.after
    if sweep.folding == "mean":
        after = substituted(after, {"x": X / float(many)})
    return replace(sweep, folding="sum", values=(("x", partial),), before=X, after=after)
