"""What a peer is: another way to compute the same chain, timed in the same run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from transfuse.bench.precision import Precision
from transfuse.chain import Chain
from transfuse.problem import Problem


class Missing(Exception):
    """This peer cannot take part here; the message says why."""


def library(name: str, install: str = "pip install 'transfuse[bench]'") -> Any:
    """The module of another library, or Missing with the way to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # it is there, and lacks something itself
            raise
        raise Missing(f"{name} is not installed; {install}") from error


@dataclass(frozen=True)
class Work:
    """One thing to compute: a bound chain, its problem, its tensors, its precision class.

    ``cotangent``: in a step of training, the gradient of the result. The step gives those of the
    input and of ``trained``.
    """

    chain: Chain
    problem: Problem
    precision: Precision
    x: Tensor
    weight: Tensor
    operands: dict[str, Tensor] = field(default_factory=dict)
    cotangent: Tensor | None = None

    def again(self) -> Tensor:
        """The same input in other memory."""
        return self.x.clone()

    @property
    def trained(self) -> tuple[Tensor, ...]:
        """The weight, and the operands that no call writes to."""
        updates = self.chain.updates
        return self.weight, *(t for name, t in self.operands.items() if name not in updates)


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Runner:
    """A peer made ready for one Work: ``collect(run(adapt(x)))``; only ``run`` is timed.

    ``adapt`` turns a torch input into the peer's own (another layout, another library), ``collect``
    its output into a torch tensor, or that of a step into a tuple of gradients. Weights are made
    ready when the runner is built.
    """

    run: Callable[[Any], Any]
    adapt: Callable[[Any], Any] = _same
    collect: Callable[[Any], Any] = _same
    note: str = ""


def in_torch(work: Work, forward: Callable[[Tensor], Tensor], note: str = "") -> Runner:
    """A function of torch's: its call alone, or in a step of training with all gradients."""
    if work.cotangent is None:
        return Runner(forward, note=note)

    def step(x: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            return torch.autograd.grad(forward(x), (x, *work.trained), work.cotangent)

    return Runner(step, adapt=lambda x: x.detach().requires_grad_(), note=note)


class Peer(Protocol):
    """``trains``: whether it computes gradients, too."""

    @property
    def name(self) -> str: ...

    @property
    def trains(self) -> bool: ...

    def build(self, work: Work) -> Runner:
        """A runner for this work; raises Missing where the peer is absent or does not serve it."""
        ...
