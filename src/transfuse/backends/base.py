"""What a backend answers: can it run this, what would it do, and the result."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from transfuse.chain import Chain
from transfuse.plan import Plan
from transfuse.problem import Problem


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


class Backend(Protocol):
    """One way to run chains.

    ``verdict`` and ``plan`` are pure: they look at the chain and the problem, never at tensors.
    ``run`` is only asked where the verdict is yes, with tensors that have been checked; it writes
    into ``out`` where one is given and returns the result. Where it cannot after all, it raises
    ``errors.Declined`` before it writes, and the verdict is no from then on.
    """

    name: str
    device: str
    """The kind of device it is for, such as ``cpu``; empty: every kind."""
    differentiable: bool
    """Whether it runs torch operations alone, which gradients, traces and transforms follow."""

    def verdict(self, chain: Chain, problem: Problem) -> Verdict: ...

    def plan(self, chain: Chain, problem: Problem) -> Plan: ...

    def ulp(self, problem: Problem) -> float:
        """The ulp of its arithmetic: what its results are judged by."""
        ...

    def run(
        self,
        chain: Chain,
        problem: Problem,
        x: Tensor,
        weight: Tensor,
        operands: Mapping[str, Tensor],
        out: Tensor | None = None,
    ) -> Tensor: ...
