"""A transposed convolution of a graph with what has joined it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from transfuse.chain import Chain
from transfuse.stages import ConvTranspose, Stage

WRONG = (
    TypeError, ValueError, RuntimeError, IndexError, NotImplementedError, ZeroDivisionError,
)  # fmt: skip
"""What stages and calls raise where arguments do not fit them."""


@dataclass(frozen=True)
class Operand:
    """A value of the graph that a chain reads: ``spread`` as torch broadcasts it, or as it is."""

    node: Node
    spread: bool


@dataclass
class Match:
    """A convolution and what has joined it: operations in order, and the stages they make.

    Tensors in stages stand for ``operands``, by their ids. ``x`` is the input of all, ``result``
    what comes out; ``why``: why it ends there.
    """

    node: Node
    rank: int
    arguments: Mapping[str, Any]
    taken: list[Node]
    x: Node
    result: Node
    before: list[Stage] = field(default_factory=list)
    then: list[Stage] = field(default_factory=list)
    operands: dict[int, tuple[Tensor, Operand]] = field(default_factory=dict)
    contiguous: bool = False
    why: str = ""

    def operand(self, node: Node, spread: bool) -> Tensor:
        """What stands for a value in a stage."""
        for stand_in, known in self.operands.values():
            if known == Operand(node, spread):
                return stand_in
        made = torch.empty(1)
        self.operands[id(made)] = made, Operand(node, spread)
        return made

    def chain(
        self, before: Iterable[Stage] = (), then: Iterable[Stage] = ()
    ) -> tuple[Chain, dict[str, Operand]]:
        """The chain with names for its operands, with further stages at both ends."""
        bias = self.arguments["bias"]
        held = self.operand(bias, False) if isinstance(bias, Node) else None
        conv = ConvTranspose(self.rank, held)
        chain, tensors = Chain(*before, *self.before, conv, *self.then, *then).lift()
        return chain, {name: self.operands[id(each)][1] for name, each in tensors.items()}
