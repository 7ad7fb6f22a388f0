"""The forward call of a step of training that keeps what its gradients would compute again.

Its steps are those by which ``Backward`` begins: the convolution, then sweeps over its output. What
the steps back read of them is kept, where two convolutions of a step and a result in one kernel
cost more than one convolution and its output in memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from transfuse.backends.backward import KERNEL, Backward, keeps, written
from transfuse.backends.base import Backend
from transfuse.backends.memory import INPUT as READ
from transfuse.backends.memory import RESULT
from transfuse.backends.schedule import Schedule, alive
from transfuse.chain import Chain
from transfuse.maths.expr import X
from transfuse.plan import Pass, Plan, figure, machine
from transfuse.problem import Problem
from transfuse.reverse.steps import Step, each_leg, same
from transfuse.sweeping import Buffer, Seen


@dataclass(frozen=True)
class KeptTensor:
    """A tensor that is kept; ``last``: channels innermost."""

    dims: tuple[int, ...]
    dtype: torch.dtype
    last: bool

    @property
    def nbytes(self) -> int:
        return prod(self.dims) * self.dtype.itemsize


class Keeping:
    """A chain's forward call, and what it keeps for the gradients by its tensors of these names.

    ``kept``: by number, of the buffers that its steps fill; ``forms``: the tensors beside the
    result, what the convolution reads first where stages stand before it.
    """

    def __init__(
        self, backend: Backend, chain: Chain, problem: Problem, names: frozenset[str]
    ) -> None:
        self.backend, self.problem, self.names = backend, problem, names
        self.again = again = Backward(backend, chain, problem, names)
        self.result = chain.result(problem)
        self.kept = again.needs
        _, first, tape = again.forward(backend)
        made = written([*first, *tape.legs])
        held = [made[i] for i in self.kept]
        tape.store()
        steps: list[Step] = [*first, *tape.legs]
        result = tape.buffer
        if any(result is each for each in held):
            result = Buffer(result.dims)
            copied = {"x": Seen(tape.buffer, same)}
            steps.append(each_leg("copy the result", Seen(result, same), X, copied))
        result.given = RESULT
        self.moves = tape.moves
        moved = [each for move in tape.moves for each in (move.mean, move.var)]
        filled = [i for i, each in enumerate(made) if i in self.kept or each in moved]
        for i in filled:
            made[i].given = keeps(i)
        self.places = [(keeps(made.index(m.mean)), keeps(made.index(m.var))) for m in tape.moves]
        self.steps = alive(steps, [result, *held, *moved])
        between = again.kernels.between(problem)
        self.rooms = {
            i: KeptTensor(made[i].dims, between, again.after_last and not made[i].statistic)
            for i in filled
        }
        self.forms = [self.rooms[i] for i in self.kept]
        if again.head:
            read = KeptTensor(again.dims[again.chain.at], again.source, again.last)
            self.forms.insert(0, read)
        self.schedule = Schedule(self.steps, again.kernels, between, again.after_last)

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """The result, and what is kept."""
        again, empty = self.again, self.again.kernels.empty
        read = [again.read(x, operands)] if again.head else []
        source = read[0] if read else x
        # Whose axes are left out or joined is made so: in a view torch forbids writes.
        dims, whole = again.dims[-1], self.result == again.dims[-1]
        y = empty(self.result, x.dtype, again.last and whole, x.device)
        held = {keeps(i): empty(f.dims, f.dtype, f.last, x.device) for i, f in self.rooms.items()}
        self.schedule(
            {READ: source, KERNEL: weight, **operands, RESULT: y if whole else y.view(dims), **held}
        )
        for move, (mean, var) in zip(self.moves, self.places, strict=True):
            move.write(operands, held[mean], held[var])
        return y, [*read, *(held[keeps(i)] for i in self.kept)]

    @cached_property
    def backward(self) -> Backward:
        """The gradients from what is kept."""
        again = self.again
        return Backward(self.backend, again.chain, self.problem, self.names, self.kept)

    @property
    def passes(self) -> list[Pass]:
        head = self.again.head.steps if self.again.head else ()
        return [*self.again.passes([*head, *self.steps])]

    @property
    def seconds(self) -> tuple[float, float]:
        """What a step takes by the rates of the machine: so, and where nothing is kept."""
        plain = self.backend.plan(self.again.chain, self.problem).passes
        kept, again = self.backward.plan().passes, self.again.plan().passes
        return self._seconds([*self.passes, *kept]), self._seconds([*plain, *again])

    @property
    def cheaper(self) -> bool:
        """Whether what is kept is worth its memory."""
        so, otherwise = self.seconds
        rates = machine(self.problem.device)
        written = rates.seconds(self.problem.arithmetic, 0, self.nbytes)
        return so + rates.keeping * written < otherwise

    @property
    def nbytes(self) -> int:
        """Of all that is kept."""
        return sum(form.nbytes for form in self.forms)

    def plan(self) -> Plan:
        """That of the gradients, with what is kept and why."""
        plan, (so, otherwise) = self.backward.plan(), self.seconds
        size = figure(self.nbytes / 1e6)
        note = (
            f"the forward call keeps {size} MB for it: by the rates of this machine a step takes "
            f"{_milliseconds(so)}, and {_milliseconds(otherwise)} where all is computed again"
        )
        return replace(plan, note="; ".join(filter(None, (note, plan.note))))

    def _seconds(self, passes: Sequence[Pass]) -> float:
        rates, values = machine(self.problem.device), prod(self.again.dims[self.again.chain.at + 1])
        convolves = sum(1 for each in passes if each.flops)
        flops = sum(each.flops for each in passes) + convolves * rates.per_value * values
        traffic = sum(each.bytes for each in passes)
        return rates.seconds(self.problem.arithmetic, flops, traffic)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
