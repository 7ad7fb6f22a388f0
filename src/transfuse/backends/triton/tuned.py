"""Tiles that were measured: from the user's file, then those shipped; else the heuristic's.

An entry holds for a GPU, an engine, the steps of a segment, a bucket of shapes and an arithmetic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from transfuse.backends.triton.engines.portable import tiling
from transfuse.backends.triton.engines.workload import Workload
from transfuse.backends.triton.gpu import capability as capability
from transfuse.backends.triton.segments import Lowered, Segment, SegmentStatistic, power
from transfuse.backends.triton.tuned_files import PORTABLE, Key, decoded, encoded, in_force
from transfuse.problem import Problem
from transfuse.stages.actions import Pool


@dataclass(frozen=True)
class ChosenTiling:
    """Tiles, and where they come from: a file, or the heuristic; ``note``: why not from a file."""

    config: tiling.Tiling
    source: str
    note: str = ""

    def __str__(self) -> str:
        return f"{shown(encoded(self.config))} ({self.note or self.source})"


def key(lowered: Lowered, core: Problem, each: Segment, gpu: str, engine: str = PORTABLE) -> Key:
    """The key of a segment that convolves."""
    return Key(gpu, engine, chain(lowered, each), bucket(core), core.arithmetic)


def chain(lowered: Lowered, each: Segment) -> str:
    """The steps of a segment, without names and numbers that change from call to call."""
    words = ["conv", *(step.op for step in each.before)]
    if each.early is not None:
        words.append(_gather(lowered.statistics[each.early]))
    if each.window is not None:
        words.append(_window(each.window))
    words += [step.op for step in each.after]
    if each.late is not None:
        words.append(_gather(lowered.statistics[each.late]))
    return " > ".join([*words, *(["store"] if each.stores else [])])


def _gather(statistic: SegmentStatistic) -> str:
    return f"gather {statistic.kind} of {'the batch' if statistic.over_batch else 'a sample'}"


def _window(window: Pool) -> str:
    sizes = zip(*window.windows, strict=True)
    kernel, stride, padding = ("x".join(map(str, each)) for each in sizes)
    return f"{window.name} k{kernel} s{stride} p{padding}"


def bucket(core: Problem) -> str:
    """Geometry and channels as they are; batch and sizes as the powers of two that hold them."""
    rounded = replace(
        core,
        batch=power(core.batch),
        spatial=tuple(map(power, core.spatial)),
        output_padding=(0,) * core.rank,
        layout="contiguous",
    )
    words = str(rounded).split()
    return " ".join(words[: words.index(core.dtype)])


def choose(
    lowered: Lowered,
    core: Problem,
    each: Segment,
    work: Workload,
    gpu: str,
    capability: int,
) -> ChosenTiling:
    """The tiles of a segment: tuned where they fit this very shape, counted otherwise."""
    wanted = key(lowered, core, each, gpu)
    note = ""
    for path, entries in in_force():
        if wanted in entries:
            config = decoded(entries[wanted].config)
            fault = tiling.fault(work, config, capability)
            if not fault:
                return ChosenTiling(config, str(path))
            note = note or f"{path} does not fit: {fault}"
    return ChosenTiling(tiling.heuristic(work, capability), "heuristic", note)


def shown(values: Mapping[str, Any]) -> str:
    """A configuration on one line, whatever its engine."""
    words = []
    for name, value in values.items():
        text = "x".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(text if name in ("form", "box") else f"{name} {text}")
    return " ".join(words)


@lru_cache(maxsize=64)
def gpu(device: torch.device) -> str:
    """The name of a GPU; Triton's interpreter has one of its own."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"
