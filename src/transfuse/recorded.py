"""Calls that torch is to know of: as an operation of its dispatcher, or as a node of autograd.

Both compute the same. The dispatcher's operation serves traces, modes, the profiler and transforms;
where none of them is at work, autograd is all that looks, and the way to it is shorter.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._autograd import _profiler_enabled
from torch._C._autograd import _top_saved_tensors_default_hooks as _hooks
from torch.compiler import is_dynamo_compiling

from transfuse import plain, settings
from transfuse.backends.base import Executable, settled
from transfuse.chain import Chain
from transfuse.line import INPUT, WEIGHT, operands, split
from transfuse.problem import Problem
from transfuse.stages.running import write
from transfuse.tensors import without_autocast

if TYPE_CHECKING:
    from transfuse.backends.keeping import Keeping


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

    ``run`` computes it. Its gradients keep what came in, and more where ``keeps`` says so: that is
    the forward call which gives it beside the result. ``told``: they read the result itself.
    """

    def __init__(
        self,
        chain: Chain,
        problem: Problem,
        backend: str | None,
        run: Executable,
        keeps: "Keeping | None" = None,
        told: bool = False,
    ) -> None:
        self.chain, self.problem, self.backend = chain, problem, backend
        self.run, self.keeps, self.told = run, keeps, told
        self.statistics = chain.statistics
        self.recorded = Recorded(chain, problem, backend)

    @classmethod
    def of(cls, chain: Chain, problem: Problem, backend: str | None, run: Executable) -> "Learned":
        """A chain that keeps what its plan says."""
        # Inference needs none of it: an import of the package leaves it alone.
        from transfuse.gradients import keeping, told

        tells = told(chain, problem, settings.backend())
        keeps = None if tells else keeping(chain, problem, settings.backend())
        if keeps is not None and backend not in (None, keeps.backend.name):
            keeps = None
        tells = tells or (keeps is not None and keeps.backward.told)
        return cls(chain, problem, backend, run, keeps, tells)

    def __call__(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None = None
    ) -> Tensor:
        given = (operands[name] for name in self.recorded.names)
        y: Tensor = _Chain.apply(self, x, weight, *given)  # type: ignore[no-untyped-call]
        return y

    def by(self, run: Executable) -> "Learned":
        """The same, computed by another backend."""
        return Learned(self.chain, self.problem, self.backend, run)

    def like(
        self, x: Tensor, weight: Tensor, operands: Mapping[str, Tensor], out: Tensor | None
    ) -> "Learned":
        run = settled(self.run, x, weight, operands, out)
        return Learned(self.chain, self.problem, self.backend, run, self.keeps, self.told)

    def forward(
        self, x: Tensor, weight: Tensor, *given: Tensor
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The result, the operands as gradients are to see them, and what is kept beside them.

        Running statistics move, here or in another call, before gradients are asked for: these see
        a copy.
        """
        named = dict(zip(self.recorded.names, given, strict=True))
        seen = [*(named | {name: named[name].clone() for name in self.statistics}).values()]
        if self.keeps is not None:
            y, kept = self.keeps(x, weight, named)
            return y, seen, kept
        return self.run(x, weight, named), seen, []

    def backward(
        self,
        wanted: tuple[bool, ...],
        result: Tensor | None,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        *saved: Tensor,
    ) -> list[Tensor | None]:
        """The gradients by input, weight and operands, of those wanted."""
        from transfuse.gradients import gradients

        count = len(self.recorded.names)
        given, kept = saved[:count], saved[count:]
        # Torch is to know of these, too, where it compiles them, differentiates or counts.
        whole = is_dynamo_compiling() or torch.is_grad_enabled() or _profiler_enabled()
        if whole or plain.why_not((grad, x, weight, *saved)):
            op = torch.ops.transfuse.chain_backward
            found = iter(op(grad, x, weight, given, *self.recorded.options, list(wanted), kept))
            return [next(found) if wants else None for wants in wanted]
        named = dict(zip(self.recorded.names, given, strict=True))
        names = (INPUT, WEIGHT, *named)
        asked = [name for name, wants in zip(names, wanted, strict=True) if wants]
        with without_autocast(x):
            tensors = (grad, x, weight, named)
            by_name = gradients(self.chain, self.problem, *tensors, asked, kept, result)
        return [
            _lying_as(tensor, by_name[name]) if name in by_name else None
            for name, tensor in zip(names, (x, weight, *given), strict=True)
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
        y, seen, kept = learned.forward(x, weight, *given)
        ctx.learned = learned
        ctx.save_for_backward(x, weight, *seen, *kept)
        # Saved as torch saves tensors it would forbid writes. Hooks have tensors kept elsewhere.
        told = learned.told and _hooks(False) is None
        ctx.result = (y.detach(), y._version) if told else None
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        learned: Learned = ctx.learned
        result, version = ctx.result or (None, 0)
        ctx.result = None  # as what torch saved is let go; a second time does without
        if result is not None and result._version != version:
            result = None  # somebody wrote to it
        return None, *learned.backward(ctx.needs_input_grad[1:], result, grad, *ctx.saved_tensors)
