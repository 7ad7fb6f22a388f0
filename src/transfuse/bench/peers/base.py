"""What a peer is: another way to compute the same chain, timed in the same run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

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
    """One thing to compute: a bound chain, its problem, its tensors, its precision class."""

    chain: Chain
    problem: Problem
    precision: Precision
    x: Tensor
    weight: Tensor
    operands: dict[str, Tensor] = field(default_factory=dict)


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Runner:
    """A peer made ready for one Work: ``collect(run(adapt(x)))``; only ``run`` is timed.

    ``adapt`` turns a torch input into the peer's own (another layout, another library), ``collect``
    its output into a torch tensor. Weights are made ready when the runner is built.
    """

    run: Callable[[Any], Any]
    adapt: Callable[[Tensor], Any] = _same
    collect: Callable[[Any], Tensor] = _same
    note: str = ""


class Peer(Protocol):
    @property
    def name(self) -> str: ...

    def build(self, work: Work) -> Runner:
        """A runner for this work; raises Missing where the peer is absent or does not serve it."""
        ...
