"""How far a result may be from the float64 oracle, derived from the oracle itself.

A good algorithm in arithmetic with unit roundoff ``u`` gives the exact result of inputs that were
each moved by a little more than ``u``: about ``sqrt(K) * u`` for sums of ``K`` terms (Higham and
Mary 2019). So the oracle is asked how much its result moves when every input, and what every stage
gives, moves by one ulp of the arithmetic; that movement, times ``4 * sqrt(K)``, plus one rounding
of the result in its storage type, is the budget. Nothing in it is fixed by hand for a chain, a size
or a scale: where a result is badly conditioned the budget grows, where every value is tiny it
shrinks with them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import inf, prod, sqrt
from typing import Any

import torch
from torch import Tensor

from transfuse.chain import Chain
from transfuse.elements import ELEMENTS, Element
from transfuse.problem import Problem
from transfuse.reference import evaluate, reference

SAFETY = 4.0
"""Slack over the probabilistic bound: it holds for each element, and the worst one is compared."""
LEAST_MOVED = 8
"""A result of fewer values than this is moved several times: one value alone may by chance stay
in its place, and would leave no budget."""


@dataclass(frozen=True)
class Accuracy:
    """``used``: the largest error as a share of its budget; above 1 the result is wrong."""

    used: float
    fault: str = ""

    @property
    def ok(self) -> bool:
        return not self.fault


class Oracle:
    """The exact result of a chain on given tensors, and how far another may be from it.

    ``ulp`` is that of the arithmetic a result claims, the distance from 1 to the next value;
    ``length`` the number of terms in the longest sum, the convolution's by default.
    """

    def __init__(
        self,
        chain: Chain,
        problem: Problem,
        x: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        ulp: float,
        length: int | None = None,
    ) -> None:
        self.element = ELEMENTS[problem.dtype]
        self.exact = reference(chain, problem, x, weight, operands)
        nudged = Nudge(ulp, x.device)

        def near() -> list[Tensor]:
            nearby = {name: nudged(tensor) for name, tensor in operands.items()}
            return [evaluate(chain, problem, nudged(x), nudged(weight), nearby, after=nudged)]

        (movement,) = farthest(near, [self.exact])
        roundings = sqrt(length or terms(chain.core(problem)))
        if self.element.compute == torch.float64:  # the oracle errs, too, also in its statistics
            roundings += sqrt(longest_sum(chain, problem))
        self.allowed = SAFETY * roundings * movement

    def judge(self, y: Tensor) -> Accuracy:
        """NaN and Inf in the same places, every error within its budget."""
        return judged(y, self.exact, self.allowed, self.element)


class StepOracle:
    """The exact gradients of a step of training, and how far others may be from them.

    Of ``(cotangent * y).sum()``, by the input, the weight and the operands ``trained``, in order.
    Where a maximum is nearly a tie, the gradient may go to either place: the movement shows that.
    """

    def __init__(
        self,
        chain: Chain,
        problem: Problem,
        x: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        cotangent: Tensor,
        trained: Sequence[str],
        ulp: float,
    ) -> None:
        self.element = ELEMENTS[problem.dtype]
        nudged = Nudge(ulp, x.device)

        def gradients(as_read: Callable[[Tensor], Tensor], after: Any) -> tuple[Tensor, ...]:
            with torch.enable_grad():
                first, kernel = as_read(x).requires_grad_(), as_read(weight).requires_grad_()
                env = {name: as_read(tensor) for name, tensor in operands.items()}
                leaves = (first, kernel, *(env[name].requires_grad_() for name in trained))
                y = evaluate(chain, problem, first, kernel, env, after=after)
                return torch.autograd.grad(y, leaves, as_read(cotangent))

        self.exact = gradients(lambda t: t.detach().double().clone(), None)
        # Of the convolution's outputs every one is a term of the weight's gradient.
        core = chain.core(problem)
        length = max(longest_sum(chain, problem), core.output().numel // core.out_channels)
        doubled = 2.0 if self.element.compute == torch.float64 else 1.0  # the oracle errs, too
        movements = farthest(lambda: gradients(lambda t: nudged(t.detach()), nudged), self.exact)
        self.allowed = [doubled * SAFETY * sqrt(length) * each for each in movements]

    def judge(self, found: Sequence[Tensor]) -> Accuracy:
        """The worst of the gradients."""
        return worst("gradients", found, self.exact, self.allowed, self.element)


class Nudge:
    """Moves every value by an ulp of an arithmetic, up or down."""

    def __init__(self, ulp: float, device: torch.device) -> None:
        self.ulp, self.generator = ulp, torch.Generator(device).manual_seed(0)

    def __call__(self, tensor: Tensor) -> Tensor:
        up = torch.randint(0, 2, tensor.shape, generator=self.generator, device=tensor.device)
        return tensor.double() * (1 + self.ulp * (2 * up.double() - 1))


def moved(near: Tensor, exact: Tensor) -> float:
    """By how much the farthest value went."""
    change = (near - exact).abs()
    change = change[change.isfinite()]
    return float(change.max()) if change.numel() else 0.0


def farthest(near: Callable[[], Sequence[Tensor]], exact: Sequence[Tensor]) -> list[float]:
    """By how much the farthest value of each tensor goes; ``near`` moves them anew at each call.

    It is called as often as it takes for the smallest tensor to show ``LEAST_MOVED`` movements.
    """
    fewest = min((each.numel() for each in exact if each.numel()), default=LEAST_MOVED)
    moves = [near() for _ in range(-(-LEAST_MOVED // fewest))]
    return [
        max(map(moved, there, repeat(here))) for *there, here in zip(*moves, exact, strict=True)
    ]


def worst(
    what: str,
    found: Sequence[Tensor],
    exact: Sequence[Tensor],
    allowed: Sequence[float],
    element: Element,
) -> Accuracy:
    """The worst of several results, each by its own budget."""
    if len(found) != len(exact):
        return Accuracy(inf, f"{len(found)} {what}, expected {len(exact)}")
    each = (judged(*given, element) for given in zip(found, exact, allowed, strict=True))
    return max(each, key=lambda accuracy: accuracy.used)


def judged(y: Tensor, exact: Tensor, allowed: float, element: Element) -> Accuracy:
    """NaN and Inf in the same places, every error within its budget."""
    if y.shape != exact.shape:
        return Accuracy(inf, f"shape {list(y.shape)}, expected {list(exact.shape)}")
    if not y.numel():
        return Accuracy(0.0)
    fault = _special_values(y, exact.to(element.dtype))
    if fault:
        return Accuracy(inf, fault)
    budget = allowed + element.unit * exact.abs() + element.tiny / 2
    error = (y.double() - exact).abs()
    # An exact element uses nothing of its budget, even where that is 0.
    used = torch.where(error > 0, error / budget, 0.0)[exact.isfinite() & y.isfinite()]
    most = float(used.max()) if used.numel() else 0.0
    return Accuracy(most, f"error {most:.3g} times its budget" if most > 1 else "")


def terms(problem: Problem) -> int:
    """The most products that any one output of the convolution sums."""
    taps = prod(max(len(phase.taps) for phase in axis.phases()) for axis in problem.axes)
    return problem.in_channels // problem.groups * max(1, taps)


def longest_sum(chain: Chain, problem: Problem) -> int:
    """The most terms that any sum in the chain has, statistics included."""
    shapes = zip(chain.stages, chain.shapes(problem), strict=False)
    scopes = (stage.scope(shape) for stage, shape in shapes)
    return max(terms(chain.core(problem)), *scopes, 1)


def _special_values(y: Tensor, rounded: Tensor) -> str:
    for name, test in (("NaN", torch.isnan), ("+Inf", torch.isposinf), ("-Inf", torch.isneginf)):
        wrong = int((test(y) != test(rounded)).sum())
        if wrong:
            return f"{name} in the wrong places: {wrong} of {y.numel()} elements"
    return ""
