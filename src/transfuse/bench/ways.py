"""The ways to run a whole model: as it is, in the other layout, compiled, fused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from transfuse.bench.peers import Missing, Runner
from transfuse.bench.peers.torch_compile import require_compiler
from transfuse.bench.record import BASELINE, OURS
from transfuse.bench.whole import ModelWork

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True)
class Way:
    """``prepare`` gives what is called, and the module whose parameters are trained."""

    name: str
    prepare: Callable[[ModelWork], tuple[Callable[..., Any], nn.Module]]
    trains: bool = True

    def build(self, work: ModelWork) -> Runner:
        return work.runner(*self.prepare(work))


def _eager(work: ModelWork) -> tuple[Callable[..., Any], nn.Module]:
    return work.model, work.model


def _channels_last(work: ModelWork) -> tuple[Callable[..., Any], nn.Module]:
    """Bringing the inputs into it is part of a call; the weights lie in it already."""
    layers = [each for each in work.model.modules() if isinstance(each, _ConvNd)]
    axes = max(each.dim() for each in ([layer.weight for layer in layers] or work.x))
    if axes not in CHANNELS_LAST:
        raise Missing("torch has no channels_last for one spatial axis")
    form, model = CHANNELS_LAST[axes], work.make()
    with torch.no_grad():
        for each in model.parameters():
            if each.dim() == axes:
                each.data = each.contiguous(memory_format=form)

    def laid(x: Tensor) -> Tensor:
        return x.contiguous(memory_format=form) if x.dim() == axes else x

    return lambda *x: model(*map(laid, x)), model


def _compiled(work: ModelWork) -> tuple[Callable[..., Any], nn.Module]:
    require_compiler(work.x[0].device.type == "cpu")
    return torch.compile(work.model, dynamic=False), work.model


def _fused(work: ModelWork) -> tuple[Callable[..., Any], nn.Module]:
    from transfuse import fuse

    model: nn.Module = fuse(work.model, work.x)
    return model, model


def _fused_compiled(work: ModelWork) -> tuple[Callable[..., Any], nn.Module]:
    require_compiler(work.x[0].device.type == "cpu")
    model, owner = _fused(work)
    return torch.compile(model, dynamic=False), owner


def _backend(work: ModelWork) -> tuple[Callable[..., Any], nn.Module]:
    from transfuse.fusing.compiling import transfuse  # by name where the package is installed

    require_compiler(work.x[0].device.type == "cpu")
    return torch.compile(work.model, backend=transfuse, dynamic=False), work.model


WAYS = (
    Way(OURS, _fused),
    Way(BASELINE, _eager),
    Way("channels_last", _channels_last),
    Way("torch.compile", _compiled),
    Way("transfuse compiled", _fused_compiled),
    Way("compile backend", _backend),
)


def ways(names: Sequence[str] | None) -> dict[str, Way]:
    """Fused, and the other ways by these names (all of them by default)."""
    known = {way.name: way for way in WAYS}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(f"unknown way {unknown[0]!r}; known: {', '.join(known)}")
    return {name: way for name, way in known.items() if names is None or name in (OURS, *names)}
