"""Gradients behind max windows, from the few outputs that have one: a kernel of the core's own."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transfuse.backends.base import Scatter
from transfuse.backends.cpu import library, threads
from transfuse.problem import Problem
from transfuse.reverse.axes import AxisWindows


def prepare(problem: Problem, axes: Sequence[AxisWindows]) -> Scatter:
    """The gradients by input and weight of a convolution whose output these windows see.

    The result is the same bits for any number of threads.
    """
    fields = library.Winners(
        batch=problem.batch,
        in_channels=problem.in_channels,
        out_channels=problem.out_channels,
        groups=problem.groups,
        spatial=_three(problem.spatial, 1),
        kernel=_three(problem.kernel, 1),
        stride=_three(problem.stride, 1),
        padding=_three(problem.padding, 0),
        dilation=_three(problem.dilation, 1),
        outputs=_three([axis.n for axis in axes], 1),
        windows=_three([axis.outputs for axis in axes], 1),
        window=_three([axis.kernel for axis in axes], 1),
        window_stride=_three([axis.stride for axis in axes], 1),
        window_padding=_three([axis.padding for axis in axes], 0),
        window_dilation=_three([axis.dilation for axis in axes], 1),
    )

    def run(
        g: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        values: Tensor | None,
        dx: Tensor | None,
        dw: Tensor | None,
    ) -> None:
        core = library.load()
        assert core is not None
        call = library.Winners.from_buffer_copy(fields)
        call.element = library.element(x)
        given = (g.to(x.dtype), _channels_last(x), _by_output(problem, weight))
        kept = [each.contiguous() for each in given]
        call.gradient, call.input, call.weights = (each.data_ptr() for each in kept)
        if values is not None:
            kept.append(values.contiguous())
            call.values = kept[-1].data_ptr()
        if bias is not None:
            kept.append(bias.to(x.dtype).contiguous())
            call.bias = kept[-1].data_ptr()
        outs = []
        for name, out, turned in (
            ("by_input", dx, _channels_last),
            ("by_weights", dw, lambda t: _by_output(problem, t)),
        ):
            if out is not None:
                outs.append(_Out(out, turned))
                setattr(call, name, outs[-1].memory.data_ptr())
        library.check(core, core.transfuse_winners_run(call, threads.count()))
        for each in outs:
            each.finish()

    return run


class _Out:
    """Memory for a result that the kernel writes in its own order of axes."""

    def __init__(self, out: Tensor, turned: Callable[[Tensor], Tensor]) -> None:
        self.view = turned(out)
        dense = self.view.is_contiguous()
        self.memory = (
            self.view
            if dense
            else torch.empty_like(self.view, memory_format=torch.contiguous_format)
        )

    def finish(self) -> None:
        if self.memory is not self.view:
            self.view.copy_(self.memory)


def _three(values: Sequence[int], missing: int) -> object:
    """One value per axis, missing axes first."""
    return library.Sizes(*(missing,) * (3 - len(values)), *values)


def _channels_last(t: Tensor) -> Tensor:
    return t.movedim(1, -1)


def _by_output(problem: Problem, weight: Tensor) -> Tensor:
    """Weights by (group, output channel of it, taps, input channel of it)."""
    parts = weight.unflatten(0, (problem.groups, -1))  # type: ignore[no-untyped-call]
    return parts.movedim(1, -1)  # type: ignore[no-any-return]
