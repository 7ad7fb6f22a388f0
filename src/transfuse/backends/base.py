"""What a backend answers: can it run this, what would it do, and how."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from transfuse.chain import Chain
from transfuse.plan import Plan
from transfuse.problem import Problem
from transfuse.reverse.axes import AxisWindows
from transfuse.sweeps import Sweep


@dataclass(frozen=True)
class Verdict:
    """Yes, or the reason why not.

    ``yields``: it could, but another is faster. It serves when asked for by name, and the automatic
    choice passes it over.
    """

    reason: str = ""
    yields: str = ""

    @property
    def ok(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        return self.reason or (f"yes, but {self.yields}" if self.yields else "yes")


class Executable(Protocol):
    """A chain on a problem with everything decided: what is left is to run it on tensors.

    The tensors have been checked. It writes into ``out`` where one is given and returns the result.
    Where it cannot after all, it raises ``errors.Declined`` before it writes, and its backend's
    verdict is no from then on.
    """

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor: ...


def settled(
    run: Executable, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None
) -> Executable:
    """The executable for tensors that lie as these do, where it has a quicker one for them.

    To lie so is to be of the same shape, strides, type and device, and none to be negated when it
    is read. Addresses may be any. An executable that has one says so with a method ``like``.
    """
    like = getattr(run, "like", None)
    found: Executable = run if like is None else like(x, weight, operands, out)
    return found


class Part(NamedTuple):
    """A part of a call that has just run: a pass of its plan, by number, or a kernel of that.

    ``seconds``: how long it took, where it was timed as it ran; else it took since the part before.
    """

    at: int
    kernel: str = ""
    seconds: float | None = None


def in_parts(
    run: Executable, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor
) -> Iterator[Part]:
    """Run, and stop after each part, for whoever wants to look at a clock there.

    An executable that this can be asked of has a method ``parts``.
    """
    found: Iterator[Part] = run.parts(x, weight, operands, out)  # type: ignore[attr-defined]
    return found


Run = Callable[[Sequence[Tensor]], None]
"""A sweep made ready: it takes the tensors of all slots."""


class Scatter(Protocol):
    """The gradients by input and weight of a convolution whose output max windows see at once.

    ``g``: by what the windows gave; each is that of one output, the first that has its window's
    value. Those values are looked up in ``values``, the convolution's output, or where that is None
    computed again from the other tensors. These are of one type, but for ``g`` and the bias; what
    is None is not written.
    """

    def __call__(
        self,
        g: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        values: Tensor | None,
        dx: Tensor | None,
        dw: Tensor | None,
    ) -> None: ...


class Kernels(Protocol):
    """What a fused backend brings for the legs of a route, and for those of gradients.

    ``common``: of exponentials and the like, how many must be saved for each element before it is
    worth a way to memory and back. ``turns``: values that each weight must meet before a
    convolution with weights flipped for it is worth their packing, which each step asks for.
    ``inlines``: sweeps are as fast over axes in several parts, and so may compute what others would
    store for them. ``looks``: the gradients behind max windows look up values that are stored.
    """

    common: int
    turns: int
    inlines: bool
    looks: bool

    def core(self, chain: Chain, problem: Problem) -> Executable:
        """The convolution with the stages around it that its kernel holds."""
        ...

    def sweep(self, sweep: Sweep, device: torch.device) -> Run:
        """A sweep made ready to run on tensors, by the slots of its views."""
        ...

    def sweeps(self, sweeps: Sequence[Sweep], device: torch.device) -> list[Run]:
        """Sweeps in turn, several perhaps as one: none writes to memory that another looks at
        by another slot."""
        ...

    def scatter(
        self, problem: Problem, windows: Sequence[AxisWindows], most: int
    ) -> Scatter | None:
        """The gradients of a convolution whose output these windows see; None: it has no kernel.

        At most so many windows have a gradient other than 0.
        """
        ...

    def by_address(self, device: torch.device) -> bool:
        """Whether a sweep that ran once asks no more of tensors than where they lie."""
        ...

    def source(self, problem: Problem) -> torch.dtype:
        """The type in which the core reads what sweeps before it made."""
        ...

    def between(self, problem: Problem) -> torch.dtype:
        """The type in which values are stored between two legs."""
        ...

    def empty(
        self, dims: Sequence[int], dtype: torch.dtype, last: bool, device: torch.device
    ) -> Tensor:
        """Memory for a result, channels innermost where ``last``, or for scratch."""
        ...


class Backend(ABC):
    """One way to run chains.

    All answers are pure: they look at the chain and the problem, never at tensors. ``prepare`` is
    only asked where the verdict is yes.
    """

    name: str
    device: str
    """The kind of device it is for, such as ``cpu``; empty: every kind."""
    differentiable: bool
    """Whether it runs torch operations alone, whose gradients are torch's."""

    def __eq__(self, other: object) -> bool:
        """Backends have no state: two of one class are the same."""
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @property
    def kernels(self) -> Kernels | None:
        """What it brings for legs; None: it runs a chain in its own way only."""
        return None

    @abstractmethod
    def verdict(self, chain: Chain, problem: Problem) -> Verdict:
        """Whether it runs a chain."""

    @abstractmethod
    def plan(self, chain: Chain, problem: Problem) -> Plan:
        """The passes that it would run."""

    @abstractmethod
    def ulp(self, problem: Problem) -> float:
        """The ulp of its arithmetic: what its results are judged by."""

    @abstractmethod
    def prepare(self, chain: Chain, problem: Problem) -> Executable:
        """All that can be done before tensors are there."""

    def run(
        self,
        chain: Chain,
        problem: Problem,
        x: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        out: Tensor | None = None,
    ) -> Tensor:
        """Prepare, unless that was done before, and run."""
        return prepared(self, chain, problem)(x, weight, operands, out)


@lru_cache(maxsize=4096)
def prepared(backend: Backend, chain: Chain, problem: Problem) -> Executable:
    """What a backend prepares, kept: the one place where it is."""
    return backend.prepare(chain, problem)
