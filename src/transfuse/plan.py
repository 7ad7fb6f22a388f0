"""Plan: the passes a chain takes, one kernel each, with the flops and bytes of every one.

A chain is cut at its *whole* stages: the pass that produces the values also gathers the statistic,
and what crosses the cut is stored after as much reduction as possible, or recomputed, whichever
costs less on the machine in question.

``flops`` are the convolution's multiply-adds, counted twice. ``special`` are exponentials, roots
and the like, as few as the pass can do with: a GPU has few units for them, a CPU none. All else
that a pass does is paid in bytes: those of the tensors that must come from or go to memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from math import inf, prod

from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem, on_cuda
from transfuse.rewrite import rewritten
from transfuse.stages import Kind, Stage
from transfuse.sweeping import taken


@dataclass(frozen=True)
class Machine:
    """Rates by which a plan decides between storing and recomputing."""

    bandwidth: float  # bytes per second
    flops: dict[str, float]  # per second, by arithmetic
    special: float  # special functions per second
    on_chip: int  # bytes that one program can hold
    per_value: int = 0  # flops' time that a convolution's value takes beside its products
    per_instruction: int = 0  # and that of a plain instruction of a map, for a value
    gathered: float = inf  # flops per second of products whose rows lie anywhere
    keeping: int = 4  # times the time of its writing that what is kept for gradients must save

    def seconds(self, arithmetic: str, flops: int, traffic: int) -> float:
        return flops / self.flops[arithmetic] + traffic / self.bandwidth

    def least(self, arithmetic: str, each: "Pass") -> float:
        """The seconds that a pass takes at least: what it does most of, the rest meanwhile."""
        return max(
            each.flops / self.flops[arithmetic],
            each.bytes / self.bandwidth,
            each.special / self.special,
        )


# Measured: an H200 (copy, cuBLAS 8192^3, exponentials in registers; fp64 is assumed as fast as
# fp32), and two AVX2 cores (copy, sgemm, the core's exponentials). Only their ratios steer a plan,
# and only where a cut lies close. The core has those of a CPU from here (`make generate`). There a
# value is copied, stored and turned in caches: at 16 products each, convolutions take the time of
# 80 and more, and stored values won every case. An instruction of a map loads and stores what it
# works on, and rows of inputs are short: for a value 0.05 to 0.07 ns on one core. What is kept for
# gradients must save more than its writing costs, for memory has other uses: on a GPU most, where
# it is scarce. Torch keeps more on both.
MACHINES = {
    "cuda": Machine(
        4.28e12,
        {"fp32": 51e12, "tf32": 357e12, "fp16": 656e12, "bf16": 679e12, "fp64": 51e12},
        3.7e12,
        227_000,
        gathered=8e12,
    ),
    "cpu": Machine(
        2e10,
        {"fp32": 177e9, "fp16": 177e9, "bf16": 177e9, "fp64": 88e9},
        4e9,
        512_000,
        per_value=64,
        per_instruction=8,
        keeping=2,
    ),
}


def machine(device: str) -> Machine:
    """The rates for a problem's device; a CPU's where nothing better is known."""
    return MACHINES.get(device.partition(":")[0], MACHINES["cpu"])


class Choice(str, Enum):
    """What becomes of the values before a stage that applies a statistic."""

    STORE = "store"
    AGAIN = "again"  # computed again
    HOLD = "hold"  # no cut: one program holds all that the statistic covers


Choose = Callable[[Chain, Problem], Mapping[int, Choice]]
"""The choices for a rewritten chain, by the place of the stage; at the convolution, for what stands
before it: to hold is to compute that where the convolution reads it, and else it is stored."""


@dataclass(frozen=True)
class Pass:
    """One kernel launch."""

    does: str
    flops: int
    reads: int
    writes: int
    special: int = 0

    @property
    def bytes(self) -> int:
        return self.reads + self.writes


@dataclass(frozen=True)
class Plan:
    """Passes in order; ``work`` and ``least`` are what no plan of this chain can go below.

    ``work``: flops of the outputs that reach the result, each computed once. ``least``: bytes of
    every input read once and the result written once. ``scratch``: bytes of the largest set of
    temporaries alive at once. ``recomputed`` and ``resident`` are stages, by their place in the
    chain: those before which values are computed again instead of stored, and those whose
    statistic one program of a pass takes for itself. ``note``: what a reader may wonder about, such
    as why there are so many passes.
    """

    problem: Problem
    chain: Chain
    passes: tuple[Pass, ...]
    work: int
    least: int
    scratch: int
    recomputed: tuple[int, ...] = ()
    resident: tuple[int, ...] = ()
    note: str = ""

    @property
    def flops(self) -> int:
        return sum(each.flops for each in self.passes)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.passes)

    @property
    def special(self) -> int:
        return sum(each.special for each in self.passes)

    @property
    def columns(self) -> tuple[str, ...]:
        """What is printed of a pass; special functions (in 10^9) where there are any."""
        return ("GFLOP", *(("Gspecial",) if self.special else ()), "MB read", "MB written")

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Each pass with the figures of its columns, and last their total, as printed."""
        reads, writes = (sum(getattr(p, k) for p in self.passes) for k in ("reads", "writes"))
        total = Pass("total", self.flops, reads, writes, self.special)
        return [
            (
                each.does,
                figure(each.flops / 1e9),
                *((figure(each.special / 1e9),) if self.special else ()),
                figure(each.reads / 1e6),
                figure(each.writes / 1e6),
            )
            for each in (*self.passes, total)
        ]

    def __str__(self) -> str:
        rows = [("pass", *self.columns), *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        ]
        notes = [self.note] if self.note else []
        return "\n".join([str(self.problem), str(self.chain), *lines, *notes, self.bounds])

    @property
    def bounds(self) -> str:
        """What no plan can go below, and the memory that this one takes, in words."""
        least, scratch = self.least / 1e6, figure(self.scratch / 1e6)
        rounded = f"{least:.0f}" if least >= 1 else figure(least)
        return (
            f"least possible: {figure(self.work / 1e9)} GFLOP, {rounded} MB; "
            f"scratch of this plan: {scratch} MB"
        )


def figure(value: float) -> str:
    """A number as tables print it: one digit after the point, two that count where that is 0."""
    return f"{value:.1f}" if value == 0 or value >= 0.1 else f"{value:.2g}"


def milliseconds(seconds: float) -> str:
    """Milliseconds to three digits."""
    return f"{1e3 * seconds:.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"


def staged(chain: Chain, problem: Problem, temporary: int) -> Plan:
    """The plan of a framework: every stage is a pass of its own and stores its result.

    ``temporary`` is the size of one element between two stages.
    """
    costs = Costs(chain, problem, temporary)
    passes = []
    for i, stage in enumerate(chain.stages):
        flops = costs.core.flops() if i == chain.at else 0
        moved = costs.reads(i, i + 1), costs.tensor(i + 1)
        passes.append(Pass(str(stage), flops, *moved, costs.special(i)))
    return costs.plan(passes, stored=range(1, len(chain.stages)))


def fused(
    chain: Chain, problem: Problem, assume: bool = True, choose: Choose | None = None
) -> Plan:
    """The plan of the rewritten chain: as few passes as its whole stages allow.

    ``assume`` is for ``rewrite``: whether values are what some rewrites take them to be.
    ``choose`` says what becomes of values at a cut; by default the rates of the machine do.
    """
    chain.shapes(problem)  # what a stage refuses, no rewrite may hide
    better = rewritten(chain.typed(problem), assume)
    return _Fusion(better, problem, choose and choose(better, problem)).plan()


class Costs:
    """What passes over the stages of a chain compute, read and write.

    ``temporary``: bytes of one element between two stages.
    """

    def __init__(self, chain: Chain, problem: Problem, temporary: int) -> None:
        self.chain, self.problem, self.temporary = chain, problem, temporary
        self.shapes = chain.shapes(problem)
        self.core = chain.core(problem)
        self.work = self.core.flops(chain.needed(problem))
        self.item = ELEMENTS[problem.dtype].itemsize
        self.weight = prod(problem.weight) * self.item
        self.operands = {name: prod(n) * self.item for name, n in chain.dims(problem)}

    def tensor(self, i: int) -> int:
        """The values after ``i`` stages."""
        outer = i in (0, len(self.chain.stages))
        return self.shapes[i].numel * (self.item if outer else self.temporary)

    def reads(self, start: int, end: int) -> int:
        """What a pass of the stages from ``start`` to before ``end`` reads."""
        stages = self.chain.stages[start:end]
        # Statistics between two halves of a stage are named like operands, and are none.
        named = {name for stage in stages for name in stage.operands if name in self.operands}
        weight = self.weight if start <= self.chain.at < end else 0
        return self.tensor(start) + weight + sum(self.operands[name] for name in named)

    def flops(self, start: int, end: int) -> int:
        """The convolution's, of a pass of the stages from ``start`` to before ``end``."""
        return self.work if start <= self.chain.at < end else 0

    def special(self, i: int) -> int:
        """The special functions of stage ``i``."""
        return taken(self.chain.stages[i], self.shapes[i].dims, not on_cuda(self.problem.device))

    def cuts(self, i: int) -> bool:
        """Whether stage ``i`` needs a statistic of more than a tile before it gives a value."""
        return self.whole(i) and self.chain.stages[i].applies

    def whole(self, i: int) -> bool:
        return self.chain.stages[i].sees(self.chain.conv.rank) is Kind.WHOLE

    def gathers(self, i: int) -> bool:
        """Whether there is a stage ``i`` that needs a statistic, and it takes that itself."""
        stages = self.chain.stages
        return i < len(stages) and self.whole(i) and stages[i].gathers

    def passed(self, start: int, end: int, writes: int, note: str = "") -> Pass:
        """A pass over the stages from ``start``, whose input lies in memory, to before ``end``.

        It gathers what stage ``end`` needs. A softmax takes its exponentials there, so that they
        need not be taken again where it starts from what was stored.
        """
        stages = self.chain.stages
        gathered = [end] if self.gathers(end) else []
        does = [*map(str, stages[start:end]), *(f"gather for {stages[i]}" for i in gathered)]
        stored = start > 0 and start != self.chain.at and self.gathers(start)
        special = sum(map(self.special, [*range(start + stored, end), *gathered]))
        reads = self.reads(start, end)
        return Pass(" · ".join(does) + note, self.flops(start, end), reads, writes, special)

    def plan(self, passes: Sequence[Pass], stored: Sequence[int]) -> Plan:
        """The plan whose passes store the values after each of the ``stored`` stages."""
        operands = sum(self.operands.values())
        least = self.tensor(0) + self.weight + operands + self.tensor(len(self.chain.stages))
        temporaries = [self.tensor(i) for i in stored]
        # While a pass runs, what it reads and what it stores are both alive.
        alive = [sum(temporaries[i : i + 2]) for i in range(len(temporaries))]
        scratch = max(alive, default=0)
        return Plan(self.problem, self.chain, tuple(passes), self.work, least, scratch)


class _Fusion:
    """One walk along a chain: stages gather into passes, cut where a statistic is due.

    ``start`` is the stage whose input lies in memory; the pass under way begins there.
    """

    def __init__(
        self, chain: Chain, problem: Problem, choices: Mapping[int, Choice] | None
    ) -> None:
        self.chain, self.problem, self.choices = chain, problem, choices
        self.costs = Costs(chain, problem, ELEMENTS[problem.dtype].compute.itemsize)
        self.machine = machine(problem.device)
        self.passes: list[Pass] = []
        self.start = 0
        self.stored: list[int] = []
        self.recomputed: list[int] = []
        self.resident: list[int] = []

    def plan(self) -> Plan:
        stages = self.chain.stages
        for i, stage in enumerate(stages):
            if i == self.chain.at > 0:
                if not self._read_so():
                    self._store(i)
            elif self.costs.cuts(i):
                choice = self._choice(stage, i) if self.choices is None else self.choices[i]
                if choice is Choice.HOLD:
                    self.resident.append(i)
                elif choice is Choice.AGAIN:
                    self._pass(i, writes=0, note=" · keep only the statistic")
                    self.recomputed.append(i)
                else:
                    self._store(i)
        self._pass(len(stages), writes=self.costs.tensor(len(stages)))
        plan = self.costs.plan(self.passes, self.stored)
        return replace(plan, recomputed=tuple(self.recomputed), resident=tuple(self.resident))

    def _read_so(self) -> bool:
        """Whether what stands before the convolution is computed where that reads it.

        A GPU's convolution reads a copy of its input: what makes that does these stages, too.
        """
        if self.choices is not None:
            return self.choices.get(self.chain.at) is Choice.HOLD
        prologue = all(each.elementwise is not None for each in self.chain.prologue)
        return prologue and not on_cuda(self.problem.device)

    def _choice(self, stage: Stage, i: int) -> Choice:
        """What takes the least time before stage ``i`` applies its statistic."""
        held = stage.scope(self.costs.shapes[i]) * self.costs.temporary
        if stage.gathers and self.start != self.chain.at and held <= self.machine.on_chip:
            return Choice.HOLD
        store = 2 * self.costs.tensor(i)
        again = self.costs.reads(self.start, i)
        cost = partial(self.machine.seconds, self.problem.arithmetic)
        flops = self.costs.flops(self.start, i)
        if flops:
            flops += self.machine.per_value * self.costs.shapes[self.chain.at + 1].numel
        return Choice.AGAIN if cost(flops, again) < cost(0, store) else Choice.STORE

    def _store(self, i: int) -> None:
        """End the pass after ``i`` stages; the next one starts from what it stored."""
        self._pass(i, writes=self.costs.tensor(i))
        self.stored.append(i)
        self.start = i

    def _pass(self, end: int, writes: int, note: str = "") -> None:
        self.passes.append(self.costs.passed(self.start, end, writes, note))
