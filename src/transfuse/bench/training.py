"""A step of training: a chain's result, and then its gradients by all tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf, sqrt

import torch
from torch import Tensor

from transfuse import front
from transfuse.accuracy import SAFETY, Accuracy, longest_sum
from transfuse.backends.backward import INPUT, WEIGHT
from transfuse.bench.peers import Missing, Peer, Runner, Work
from transfuse.bench.peers.torch_compile import PEERS as COMPILERS
from transfuse.bench.peers.torch_compile import TorchCompile
from transfuse.bench.peers.torch_eager import CHANNELS_LAST, as_written
from transfuse.bench.record import BASELINE, OURS
from transfuse.dispatch import choose
from transfuse.elements import ELEMENTS
from transfuse.gradients import gradients
from transfuse.reference import evaluate


def incoming(work: Work) -> Tensor:
    """The gradient by the result that every variant starts from."""
    generator = torch.Generator(work.x.device).manual_seed(0)
    sizes = work.chain.result(work.problem)
    return work.x.new_empty(sizes).normal_(generator=generator)


def joined(found: Sequence[Tensor]) -> Tensor:
    """Gradients one after another, to be judged."""
    return torch.cat([each.detach().double().reshape(-1) for each in found])


@dataclass(frozen=True)
class OurStep:
    """transfuse itself: the forward call, which keeps nothing, and ``gradients``."""

    name: str = OURS

    def build(self, work: Work) -> Runner:
        grad, given = incoming(work), (work.weight, work.operands)
        names = (INPUT, WEIGHT, *work.operands)

        def run(x: Tensor) -> Sequence[Tensor]:
            front.run(work.chain, work.problem, x, *given)
            return tuple(gradients(work.chain, work.problem, grad, x, *given, names).values())

        return Runner(run, collect=joined, note=choose(work.chain, work.problem).name)


@dataclass(frozen=True)
class TorchStep:
    """torch's autograd, ``other``: in the other layout, ``made``: of what this makes of a chain."""

    name: str
    other: bool = False
    made: Callable[[Work], Runner] | None = None

    def build(self, work: Work) -> Runner:
        form = torch.contiguous_format
        if self.other:
            if work.problem.rank not in CHANNELS_LAST:
                raise Missing("torch has no channels_last for one spatial axis")
            if work.problem.layout == "contiguous":
                form = CHANNELS_LAST[work.problem.rank]
        grad = incoming(work)
        weight = work.weight.contiguous(memory_format=form) if self.other else work.weight
        weight = weight.detach().requires_grad_()
        operands = {name: each.detach().requires_grad_() for name, each in work.operands.items()}
        mine = replace(work, weight=weight, operands=operands)
        forward = as_written(mine) if self.made is None else self.made(mine).run
        leaves = (weight, *operands.values())

        def run(x: Tensor) -> Sequence[Tensor]:
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                y = forward(leaf.contiguous(memory_format=form) if self.other else leaf)
            return torch.autograd.grad(y, (leaf, *leaves), grad)

        return Runner(run, collect=joined)


def steps() -> dict[str, Peer]:
    """Ours and torch's, by name."""
    compiled = (each for each in COMPILERS if isinstance(each, TorchCompile))
    every: tuple[Peer, ...] = (
        OurStep(),
        TorchStep(BASELINE),
        TorchStep("torch other layout", other=True),
        *(TorchStep(each.name, made=each.build) for each in compiled),
    )
    return {each.name: each for each in every}


class GradientOracle:
    """Gradients in float64, and how far others may be from them: as far as they move themselves
    when every tensor moves by an ulp, over so many terms (see ``accuracy``)."""

    def __init__(self, work: Work, ulp: float) -> None:
        element = ELEMENTS[work.problem.dtype]
        generator = torch.Generator(work.x.device).manual_seed(0)

        def nudged(tensor: Tensor) -> Tensor:
            up = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device)
            return tensor.double() * (1 + ulp * (2 * up.double() - 1))

        self.exact, near = self._found(work, Tensor.double), self._found(work, nudged)
        roundings = SAFETY * sqrt(longest_sum(work.chain, work.problem))
        self.budgets = [
            roundings * float((other - each).abs().max()) + element.unit * float(each.abs().max())
            for each, other in zip(self.exact, near, strict=True)
        ]

    @staticmethod
    def _found(work: Work, moved: Callable[[Tensor], Tensor]) -> Sequence[Tensor]:
        tensors = (work.x, work.weight, *work.operands.values())
        leaves = [moved(each).detach().requires_grad_() for each in tensors]
        given = dict(zip(work.operands, leaves[2:], strict=True))
        with torch.enable_grad():
            y = evaluate(work.chain, work.problem, leaves[0], leaves[1], given)
        return torch.autograd.grad(y, leaves, moved(incoming(work)))

    def judge(self, found: Tensor) -> Accuracy:
        """Every error within the budget of its tensor."""
        sizes = [each.numel() for each in self.exact]
        if found.numel() != sum(sizes):
            return Accuracy(inf, f"{found.numel()} gradients, expected {sum(sizes)}")
        ends = accumulate(sizes)
        parts = [found[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        used = [
            float((part - each.reshape(-1)).abs().max()) / budget
            for part, each, budget in zip(parts, self.exact, self.budgets, strict=True)
        ]
        worst = max(used)
        fault = "" if worst <= 1 else f"error {worst:.3g} times its budget"
        return Accuracy(worst, fault)
