"""Route: which stages of a chain run where, in legs one after another.

The *core* is the convolution with as many stages around it as a backend's kernel for it takes.
What stands before and after becomes sweeps; from the first stage on that has none, torch runs the
rest.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.plan import Pass, Plan
from transfuse.problem import Problem, on_cuda
from transfuse.stages import Stage
from transfuse.sweeping import Buffer, Leg, Sweeping, taken

Refuses = Callable[[Chain, Problem], str]
"""Why a backend's kernel for the convolution does not take a chain; empty where it does."""


class NoRoute(Exception):
    """Why a backend takes no part of a chain."""


@dataclass(frozen=True)
class Route:
    """The legs of a chain: sweeps, the core on its own problem, sweeps, and what torch runs.

    ``reason``: why the core does not hold the whole chain, where it does not.
    """

    chain: Chain
    problem: Problem
    head: tuple[Stage, ...]
    core: Chain
    tail: tuple[Stage, ...]
    rest: tuple[Stage, ...]
    reason: str

    @property
    def alone(self) -> bool:
        """Whether the core is all there is."""
        return not (self.head or self.tail or self.rest)

    @property
    def inner(self) -> Problem:
        """The core's problem: dense, and of the size that the stages before it leave."""
        shape = self.chain.shapes(self.problem)[len(self.head)]
        layout = "contiguous" if self.problem.layout == "strided" else self.problem.layout
        inner = replace(self.problem, layout=layout) if self.head else self.problem
        return inner.at(shape.spatial)

    def sweeps(self) -> tuple[Sweeping, Buffer, Sweeping]:
        """The sweeps before the core, the core's result, and the sweeps after it."""
        shapes = self.chain.shapes(self.problem)
        before = Sweeping(Buffer(shapes[0].dims, input=True))
        before.follow(self.head)
        before.store()
        result = Buffer(shapes[self._end].dims)
        after = Sweeping(result)
        after.follow(self.tail)
        after.store()
        return before, result, after

    def plan(self, core: Plan, between: int) -> Plan:
        """The plan of all legs, where the core's own is given; ``between``: bytes of an element."""
        if self.alone:
            return core
        before, _, after = self.sweeps()
        item = ELEMENTS[self.problem.dtype].itemsize
        sizes = {name: prod(dims) for name, dims in self.chain.dims(self.problem)}
        shapes = self.chain.shapes(self.problem)
        cpu = not on_cuda(self.problem.device)
        last = after.legs[-1] if after.legs and not self.rest else None

        def swept(leg: Leg) -> Pass:
            read = {id(seen.buffer): seen.buffer for _, seen in leg.reads}.values()
            reads = sum(
                prod(each.dims) * (item if each.foreign else between)
                if each.dims
                else sizes[each.given] * item
                for each in read
            )
            written = sum(prod(seen.buffer.dims) for seen in leg.writes)
            writes = written * (item if leg is last else between)
            return Pass(leg.does, 0, reads, writes, leg.specials(cpu))

        torchs = len(shapes) - 1 - len(self.rest)
        own = core.passes
        if after.legs or self.rest:  # its result is stored as sweeps read it
            own = (*own[:-1], replace(own[-1], writes=shapes[self._end].numel * between))
        passes = (
            *map(swept, before.legs),
            *own,
            *map(swept, after.legs),
            *(
                Pass(
                    f"{stage} · in torch",
                    0,
                    shapes[at].numel * between,
                    shapes[at + 1].numel * between,
                    taken(stage, shapes[at].dims, cpu),
                )
                for at, stage in enumerate(self.rest, torchs)
            ),
        )
        stored = [each.writes for each in passes[:-1]]
        alive = max((sum(stored[i : i + 2]) for i in range(len(stored))), default=0)
        weight = prod(self.problem.weight)
        return replace(
            core,
            problem=self.problem,
            chain=self.chain,
            passes=passes,
            least=(shapes[0].numel + weight + sum(sizes.values()) + shapes[-1].numel) * item,
            scratch=max(core.scratch, alive),
            note=self._note(),
        )

    @property
    def _end(self) -> int:
        """The stage that follows the core."""
        return len(self.chain.stages) - len(self.tail) - len(self.rest)

    def _note(self) -> str:
        notes = [f"stored around the convolution: {self.reason}"]
        if self.rest:
            notes.append(f"from {self.rest[0]} on torch runs it: no other kernel has that stage")
        return "; ".join(notes)


def route(chain: Chain, problem: Problem, refuses: Refuses) -> Route:
    """The legs of a chain: the largest core that a backend takes, and what is left around it.

    Raises ``NoRoute`` where it takes none.
    """
    chain = chain.typed(problem)
    whole = reason = refuses(chain, problem)
    if not whole:
        return Route(chain, problem, (), chain, (), (), "")
    shapes = chain.shapes(problem)
    before, after = chain.prologue, chain.epilogue
    for first in range(len(before) + 1):
        inner = problem.at(shapes[first].spatial)
        if not (reason := refuses(Chain(*before[first:], chain.conv), inner)):
            break
    else:
        raise NoRoute(reason)
    served = Sweeping(Buffer(shapes[0].dims, input=True)).follow(before[:first])
    if served < first:
        raise NoRoute(f"before the convolution it has no kernel for {before[served]}")
    for end in reversed(range(len(after) + 1)):
        core = Chain(*before[first:], chain.conv, *after[:end])
        if not refuses(core, inner):
            break
    left = after[end:]
    swept = Sweeping(Buffer(shapes[chain.at + 1 + end].dims)).follow(left)
    return Route(chain, problem, before[:first], core, left[:swept], left[swept:], whole)
