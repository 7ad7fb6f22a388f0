"""The launches of gradients from winners."""

from collections.abc import Sequence as Some
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from transfuse.backends.triton.arguments import All, At
from transfuse.backends.triton.draft import ACC, WIDE
from transfuse.backends.triton.kernel import Kernel
from transfuse.backends.triton.launch import Launch
from transfuse.backends.triton.segments import power
from transfuse.backends.triton.sequence import Sequence
from transfuse.backends.triton.strides import Five, five, inner, three
from transfuse.backends.triton.told import all_told, divisor
from transfuse.backends.triton.winners.pattern import (
    LEAST,
    AxisPattern,
    Listing,
    Pattern,
    Turn,
    sizes_of,
)
from transfuse.problem import Problem
from transfuse.reverse.axes import AxisWindows

TURN = Kernel("winners.copy_kernel", "turn", static=1)
COUNT = Kernel("winners.list_kernel", "count", static=2)
ENLIST = Kernel("winners.list_kernel", "enlist", static=2)
FIND = Kernel("winners.find_kernel", "find", static=2)
BY_WEIGHT = Kernel("winners.weight_kernel", "by_weight", static=2)
BY_INPUT = Kernel("winners.input_kernel", "by_input", static=2)


@dataclass(frozen=True)
class WinnersTiling:
    """Winners at once, warps and stages of a kernel; programs that keep a GPU busy."""

    rows: int
    warps: int
    stages: int
    programs: int = 0


TILINGS = {
    FIND: WinnersTiling(128, 4, 3, 2112),
    BY_WEIGHT: WinnersTiling(64, 2, 3, 4096),
    BY_INPUT: WinnersTiling(64, 2, 2),
}
"""By instructions counted in code for sm_90. Two warps: of a narrow matrix more would compute the
same parts."""
LINE = 32
"""Windows of a line that are looked through at once, and inputs of a line that are summed."""
ROW = 128
"""Bytes of the input's channels at once, at most."""
FEW_COLUMNS, FEW_TAPS = 32, 3
"""More of these, and fewer rows are at hand at a time, or none that wait for their turn: there are
GPUs whose programs have 99 KB of shared memory."""
MOST_SHARES = 64


@dataclass(frozen=True)
class Facts:
    """A convolution, the windows that see it, and at most how many of its outputs win."""

    problem: Problem
    windows: tuple[AxisWindows, ...]
    axes: tuple[AxisPattern, AxisPattern, AxisPattern]
    most: int

    @property
    def lines(self) -> int:
        """Blocks of lines of windows."""
        z, y, x = three([axis.outputs for axis in self.windows], 1)
        return self.problem.batch * z * y * -(-x // LINE)

    @property
    def groups(self) -> int:
        return self.lines * self.problem.out_channels

    @property
    def inner(self) -> int:
        return self.problem.in_channels // self.problem.groups


class Made:
    """The launches of a call on tensors that lie so, around two sums that torch takes."""

    def __init__(
        self,
        facts: Facts,
        g: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        dx: Tensor | None,
        by_weight: bool,
    ) -> None:
        self.facts, p = facts, facts.problem
        self.tf32 = p.arithmetic == "tf32"
        double = x.dtype == torch.float64
        self.acc, self.wide = (WIDE, torch.float64) if double else (ACC, torch.float32)
        # Channels side by side are read where they are, unless they are to be rounded.
        self.turned = not x.movedim(1, -1).is_contiguous()
        self.copied = self.turned or self.tf32
        channels = min(ROW // x.dtype.itemsize, max(LEAST, power(facts.inner)))
        unit = 16 // x.dtype.itemsize
        unit = 1 if facts.inner % unit else unit
        self.pattern = Pattern(
            *facts.axes,
            rows=0,
            channels=channels,
            line=LINE,
            unit=unit,
            grouped=p.groups > 1,
            biased=bias is not None,
            dot="tf32x3" if p.arithmetic == "fp32" else "tf32",
        )
        self.blocks = -(-facts.inner // channels)
        self.sizes = sizes_of(p, facts.windows, LINE, unit, facts.most)
        self.shares = self._shares(BY_WEIGHT, self.blocks * self.pattern.met) if by_weight else 0
        self.before = Sequence(x.device, self._before(five(g.stride())), [], 0)
        self.after = self._after(five(g.stride()), x.device, dx)

    def __call__(
        self,
        g: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        dx: Tensor | None,
        dw: Tensor | None,
    ) -> None:
        p, facts = self.facts.problem, self.facts
        empty = x.new_empty
        x = x.contiguous() if self.turned else x
        rows, packed = empty(x.numel()) if self.copied else x, empty(weight.numel())
        counts = empty(2, facts.groups, dtype=torch.int32)
        self.before([x, weight.contiguous(), g, rows, packed, *counts])
        ends = [torch.cumsum(each, 0, dtype=torch.int32) for each in counts]
        partials = empty(max(self.shares * weight.numel(), 1), dtype=self.wide)
        out = dx if self.direct else None
        if out is None:
            out = empty(p.input.dims if dx is not None else 1)
        added = rows if bias is None else bias.contiguous()
        self.after([rows, packed, added, g, *ends, out, partials])
        if dx is not None and not self.direct:
            dx.copy_(out)
        if dw is not None:
            taps = self.pattern.taps
            total = partials.view(self.shares, p.groups, -1, taps, facts.inner).sum(0)
            dw.copy_(total.permute(0, 3, 1, 2).reshape(dw.shape))

    def _shares(self, kernel: Kernel, each: int) -> int:
        """Programs that share a channel's list."""
        wanted = -(-TILINGS[kernel].programs // (each * self.facts.problem.out_channels))
        return min(wanted, MOST_SHARES)

    def _listing(self, strides: Five) -> tuple[Listing, int]:
        """How gradients are looked through, and blocks of their channels."""
        many = self.facts.problem.out_channels
        channels = min(32, power(many))
        return Listing(channels, LINE, inner(strides), self.tf32), -(-many // channels)

    def _before(self, strides: Five) -> list[Launch]:
        x, weight, g, rows, packed, by_channel, by_place = map(At, range(7))
        p, facts = self.facts.problem, self.facts
        listing, blocks = self._listing(strides)
        ints = (all_told(strides), divisor(blocks), self.sizes)
        given = [g, by_channel, by_place, *ints, listing, self.acc]
        taps = self.pattern.taps * p.out_channels // p.groups
        found = [self._turn(weight, packed, p.groups, facts.inner, taps)]
        if self.copied:
            sizes = p.batch, p.in_channels, prod(p.spatial)
            found.append(self._turn(x, rows, *sizes, self.turned))
        return [*found, Launch(COUNT, facts.lines * blocks, given)]

    def _turn(self, x: At, out: At, outer: int, a: int, b: int, turned: bool = True) -> Launch:
        """Copy a tensor with its axis ``a`` innermost; where it is already, it is not turned."""
        turn = Turn(min(32, power(a)), 64, "b" if turned else "a", self.tf32)
        blocks = -(-a // turn.block_a), -(-b // turn.block_b)
        sizes = tuple(map(divisor, (*blocks, a, b)))
        strides = all_told((a * b, b, 1) if turned else (a * b, 1, a))
        return Launch(TURN, outer * prod(blocks), [x, out, sizes, strides, turn])

    def _after(self, strides: Five, device: torch.device, dx: Tensor | None) -> Sequence:
        rows, packed, bias, g, by_channel, by_place, out, partials = map(At, range(8))
        p, facts, many = self.facts.problem, self.facts, self.facts.most
        pieces: list[tuple[int, int, torch.dtype]] = []
        end = 0

        def memory(dtype: torch.dtype) -> At:
            nonlocal end
            pieces.append((end, max(many, 1), dtype))
            end += -(-max(many, 1) * dtype.itemsize // 512) * 512
            return At(7 + len(pieces))

        windows, gradient, places = memory(torch.int32), memory(self.wide), memory(torch.int32)
        there = memory(torch.int32), memory(self.wide), memory(torch.int32)
        listing, blocks = self._listing(strides)
        ints = (all_told(strides), divisor(blocks), self.sizes)
        given = [g, by_channel, windows, gradient, *ints, listing, self.acc]
        launches = [Launch(ENLIST, facts.lines * blocks, given)]
        shares = self._shares(FIND, 1)
        lists = _all(windows, gradient, places, *there)
        ends = _all(by_channel, by_place)
        found = [rows, packed, bias, lists, ends, divisor(shares), self.sizes]
        launches.append(self._launch(FIND, shares * p.out_channels, found))
        if self.shares:
            each = p.out_channels * self.pattern.met * self.blocks
            parts = (divisor(self.shares), divisor(self.blocks), self.sizes)
            taken = [rows, by_channel, places, gradient, partials, *parts]
            launches.append(self._launch(BY_WEIGHT, self.shares * each, taken))
        self.direct = True
        if dx is not None:
            to = five(dx.stride())
            self.direct = to[1] == 1 or to[4] == 1
            if not self.direct:
                to = five(torch.empty(p.input.dims, device="meta").stride())
            z, y, x = three(p.spatial, 1)
            tiles = self.blocks, self.blocks * p.groups, -(-x // LINE), z, y
            lines = (all_told(to), tuple(map(divisor, tiles)), self.sizes)
            summed = [packed, by_place, _all(*there), out, *lines]
            last = replace(self.pattern, last=to[1] == 1)
            programs = p.batch * prod(tiles[1:])
            launches.append(self._launch(BY_INPUT, programs, summed, last))
        return Sequence(device, launches, pieces, end)

    def _launch(
        self, kernel: Kernel, programs: int, given: Some[Any], pattern: Pattern | None = None
    ) -> Launch:
        tiling = TILINGS[kernel]
        if kernel is FIND and self.pattern.columns > FEW_COLUMNS:
            tiling = replace(tiling, rows=min(tiling.rows, 64), stages=1)
        elif kernel is not FIND and self.pattern.x.taps > FEW_TAPS:
            tiling = replace(tiling, stages=1)
        found = replace(pattern or self.pattern, rows=tiling.rows)
        options = {"num_warps": tiling.warps, "num_stages": tiling.stages}
        return Launch(kernel, programs, [*given, found, self.acc], options)


def _all(*given: At) -> All:
    return All(tuple(each.number for each in given))
