"""Calls that torch is to know of: as an operation of its dispatcher, or as a node of autograd.

Both compute the same. The dispatcher's operation serves traces, modes, the profiler and transforms;
where none of them is at work, autograd is all that looks, and the way to it is shorter.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import _profiler_enabled

from transfuse import plain
from transfuse.backends.base import Executable, settled
from transfuse.chain import Chain
from transfuse.line import INPUT, WEIGHT, operands, split
from transfuse.problem import Problem
from transfuse.stages.running import write
from transfuse.tensors import without_autocast


class Recorded:
    """A chain as one operation of torch's dispatcher, which ``ops`` has registered."""

    def __init__(self, chain: Chain, problem: Problem, backend: str | None) -> None:
        self.names, self.updates = operands(chain), chain.updates
        line, numbers = split(chain)
        sizes = (problem.stride, problem.padding, problem.output_padding, problem.dilation)
        self.options = (numbers, line, *map(list, sizes), problem.groups, problem.precision)
        self.backend = backend or ""

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        given = [operands[name] for name in self.names]
        ops = torch.ops.transfuse
        if not self.updates:
            y: Tensor = ops.chain(x, weight, given, *self.options, self.backend)
            return y
        y, moved = ops.chain_updating(x, weight, given, *self.options, self.backend)
        write(operands, dict(zip(self.updates, moved, strict=True)))
        return y


class Learned:
    """A chain that autograd sees as one node.

    ``run`` computes it; its gradients keep what came in, and nothing more.
    """

    def __init__(
        self, chain: Chain, problem: Problem, backend: str | None, run: Executable
    ) -> None:
        self.chain, self.problem, self.backend, self.run = chain, problem, backend, run
        self.recorded = Recorded(chain, problem, backend)

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        given = (operands[name] for name in self.recorded.names)
        y: Tensor = _Chain.apply(self, x, weight, *given)  # type: ignore[no-untyped-call]
        return y

    def by(self, run: Executable) -> "Learned":
        """The same, computed by another."""
        return Learned(self.chain, self.problem, self.backend, run)

    def like(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None
    ) -> "Learned":
        return self.by(settled(self.run, x, weight, operands, out))

    def forward(self, x: Tensor, weight: Tensor, *given: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The result, and the operands as gradients are to see them.

        Running statistics move, and may again before gradients are asked for: these see a copy.
        """
        recorded = self.recorded
        named = dict(zip(recorded.names, given, strict=True))
        seen = named | {name: named[name].clone() for name in recorded.updates}
        return self.run(x, weight, named), list(seen.values())

    def backward(
        self, wanted: tuple[bool, ...], grad: Tensor, x: Tensor, weight: Tensor, *given: Tensor
    ) -> list[Tensor | None]:
        """The gradients by input, weight and operands, of those wanted."""
        # Inference needs none of it: an import of the package leaves it alone.
        from transfuse.gradients import gradients

        tensors = (x, weight, *given)
        whole = torch.is_grad_enabled() or _profiler_enabled()  # torch is to know of these, too
        if whole or plain.why_not((grad, *tensors)):
            op = torch.ops.transfuse.chain_backward
            found = iter(op(grad, x, weight, given, *self.recorded.options, list(wanted)))
            return [next(found) if wants else None for wants in wanted]
        named = dict(zip(self.recorded.names, given, strict=True))
        names = (INPUT, WEIGHT, *named)
        asked = [name for name, wants in zip(names, wanted, strict=True) if wants]
        with without_autocast(x):
            by_name = gradients(self.chain, self.problem, grad, x, weight, named, asked)
        return [
            _lying_as(tensor, by_name[name]) if name in by_name else None
            for name, tensor in zip(names, tensors, strict=True)
        ]


def _lying_as(tensor: Tensor, gradient: Tensor) -> Tensor:
    """A gradient with the strides of its tensor, or of a dense one in its order of axes."""
    if gradient.stride() == tensor.stride():
        return gradient
    return torch.empty_like(tensor, dtype=gradient.dtype).copy_(gradient)


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, learned: Learned, *tensors: Tensor) -> Tensor:
        x, weight, *given = tensors
        y, seen = learned.forward(x, weight, *given)
        ctx.learned = learned
        ctx.save_for_backward(x, weight, *seen)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        learned: Learned = ctx.learned
        return None, *learned.backward(ctx.needs_input_grad[1:], grad, *ctx.saved_tensors)
