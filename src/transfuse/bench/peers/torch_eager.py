"""torch as a user would write the chain: one call per stage, in either layout."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse.bench.peers.base import Missing, Runner, Work, in_torch
from transfuse.reference import in_torch as padded
from transfuse.stages import ConvTranspose, Kind, Operand, Stage
from transfuse.stages.norm import Norm
from transfuse.stages.reduce import Softmax

CONV: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def as_written(work: Work) -> Callable[[Tensor], Tensor]:
    """The chain in torch's own calls, as users write them: without our care for rare values."""
    problem, env = work.chain.core(work.problem), work.operands

    def stage_call(stage: Stage) -> Callable[[Tensor], Tensor]:
        if isinstance(stage, ConvTranspose):
            convolve, weight = CONV[problem.rank], work.weight
            bias = env[stage.bias] if isinstance(stage.bias, str) else None
            if not problem.in_torch:
                return lambda x: padded(problem, convolve, x, weight, bias)
            options = (problem.stride, problem.padding, problem.output_padding)
            return lambda x: convolve(x, weight, bias, *options, problem.groups, problem.dilation)
        if isinstance(stage, Softmax) and stage.sees(problem.rank) is Kind.WHOLE:
            return lambda x: x.flatten(2).softmax(2).reshape(x.shape)
        if isinstance(stage, Norm):
            names = (stage.running_mean, stage.running_var, stage.weight, stage.bias)
            mean, var, gain, shift = (_operand(name, env) for name in names)
            if stage.training:
                return lambda x: stage.of_torch(x, mean, var)(gain, shift)
            return lambda x: F.batch_norm(x, mean, var, gain, shift, eps=stage.eps)  # type: ignore[arg-type]
        return lambda x: stage.apply(x, env)

    calls = [stage_call(stage) for stage in work.chain.stages]

    def run(x: Tensor) -> Tensor:
        for call in calls:
            x = call(x)
        return x

    return run


def _operand(name: Operand, env: dict[str, Tensor]) -> Tensor | None:
    return env[name].flatten() if isinstance(name, str) else None


@dataclass(frozen=True)
class TorchEager:
    name: str = "torch eager"
    trains: bool = True

    def build(self, work: Work) -> Runner:
        return in_torch(work, as_written(work))


@dataclass(frozen=True)
class TorchOtherLayout:
    """channels_last where the tensors are contiguous, contiguous where they are channels_last.

    Bringing the input into it and the result back is part of a call; the kernel lies in it already.
    """

    name: str = "torch other layout"
    trains: bool = True

    def build(self, work: Work) -> Runner:
        if work.problem.rank not in CHANNELS_LAST:
            raise Missing("torch has no channels_last for one spatial axis")
        layouts = [torch.contiguous_format, CHANNELS_LAST[work.problem.rank]]
        own, other = layouts if work.problem.layout == "contiguous" else layouts[::-1]
        weight = work.weight.detach().contiguous(memory_format=other)
        there = replace(work, weight=weight.requires_grad_(work.cotangent is not None))
        run, axes = as_written(there), work.x.dim()

        def relaid(x: Tensor) -> Tensor:
            y = run(x.contiguous(memory_format=other))
            return y.contiguous(memory_format=own if y.dim() == axes else torch.contiguous_format)

        return in_torch(there, relaid)


PEERS = (TorchEager(), TorchOtherLayout())
