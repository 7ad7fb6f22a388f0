"""The exact results of a whole model, and how far others may be from them.

The model itself in float64 is the truth. What it gives while each of its values is moved by an ulp
of the arithmetic that is judged, forward and back, tells how much of an error is rounding.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from transfuse.accuracy import SAFETY, Accuracy, Nudge, moved, worst
from transfuse.elements import ELEMENTS

SUMMING = ("instance_norm", "group_norm", "layer_norm", "rms_norm", "softmax", "sum", "mean", "var")
"""Of functions that sum positions, even where nothing trains: a part of their names."""


def results(value: Any) -> list[Tensor]:
    """The tensors of whatever a model returns."""
    return [each for each in tree_leaves(value) if isinstance(each, Tensor)]


def step(
    forward: Callable[..., Any],
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    cotangents: Sequence[Tensor],
) -> list[Tensor]:
    """A step of training: the gradients of ``sum(cotangent * result)``, inputs' first.

    Those of inputs and parameters that no result depends on are zero.
    """
    with torch.enable_grad():
        found = results(forward(*inputs))
        wanted = [*inputs, *parameters]
        return list(torch.autograd.grad(found, wanted, list(cotangents), materialize_grads=True))


class ModelOracle:
    """Of one model on given inputs: its results, or with ``cotangents`` its gradients.

    ``twin``: the model in float64, which belongs to the oracle.
    """

    def __init__(
        self,
        twin: nn.Module,
        inputs: Sequence[Tensor],
        dtype: str,
        ulp: float,
        cotangents: Sequence[Tensor] | None = None,
    ) -> None:
        self.element = ELEMENTS[dtype]
        self.what = "results" if cotangents is None else "gradients"
        self.length = max((_terms(each) for each in twin.parameters()), default=1)
        trains = cotangents is not None

        def evaluated(as_read: Callable[[Tensor], Tensor], after: _After) -> list[Tensor]:
            given = [as_read(x.detach()).requires_grad_(trains) for x in inputs]
            with after:
                if cotangents is None:
                    return results(twin(*given))
                there = [as_read(each) for each in cotangents]
                return step(twin, given, list(twin.parameters()), there)

        self.exact = evaluated(lambda t: t.double(), _After(self._count))
        nudged = Nudge(ulp, inputs[0].device)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.copy_(nudged(parameter))
        near = evaluated(nudged, _After(lambda _, y: _shaken(y, nudged)))
        doubled = 2.0 if self.element.compute == torch.float64 else 1.0  # the oracle errs, too
        self.allowed = [
            doubled * SAFETY * sqrt(self.length) * moved(there, here)
            for there, here in zip(near, self.exact, strict=True)
        ]

    def _count(self, function: str, y: Tensor) -> Tensor:
        """Statistics sum the positions of a sample; weights' gradients those of all samples."""
        trains = self.what == "gradients"
        if y.dim() > 2 and (trains or any(word in function for word in SUMMING)):
            samples = y.shape[0] if trains else 1
            self.length = max(self.length, samples * y[0, 0].numel())
        return y

    def judge(self, found: Sequence[Tensor]) -> Accuracy:
        """The worst of the results, or of the gradients."""
        return worst(self.what, found, self.exact, self.allowed, self.element)


def _terms(parameter: Tensor) -> int:
    """The most terms of a sum over a layer's inputs; transposed layers have these first."""
    return parameter.numel() // min(parameter.shape[:2], default=1) if parameter.numel() else 1


class _After(TorchFunctionMode):
    """Applies a function to each floating tensor that one of torch's returns, told its name."""

    def __init__(self, apply: Callable[[str, Tensor], Tensor]) -> None:
        super().__init__()
        self.apply = apply

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        y = function(*args, **(kwargs or {}))
        if function is torch.autograd.grad:
            return y
        name = getattr(function, "__name__", "")

        def applied(tensor: Tensor) -> Tensor:
            return self.apply(name, tensor) if tensor.is_floating_point() else tensor

        return tree_map_only(Tensor, applied, y)


class _Shaken(torch.autograd.Function):
    """Values moved on their way forward, and gradients on their way back.

    Without the second, sums of gradients that cancel would have no budget: a bias before a norm.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, nudged: Nudge) -> Tensor:
        ctx.nudged = nudged
        return nudged(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.nudged(gradient), None


def _shaken(y: Tensor, nudged: Nudge) -> Tensor:
    shaken: Tensor = _Shaken.apply(y, nudged)  # type: ignore[no-untyped-call]
    return shaken
