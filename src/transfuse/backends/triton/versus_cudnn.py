"""Which is faster on a plain layer, cuDNN or this backend: a cost model of both.

A layer takes the sum of what its parts cost: so many megabytes, products, and so on, each times a
number that was fitted to measurements, in microseconds (``benchmarks/versus_cudnn.py``). No number
is below zero, so a larger layer never costs less.
"""

import json
from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from transfuse.elements import ELEMENTS
from transfuse.problem import Problem

FILE = Path(__file__).with_name("versus_cudnn.json")
"""The fitted numbers, and on what they were measured."""
MARGIN = 1.1
"""Where both are expected to take about as long, cuDNN's own choice among many kernels tells."""
KNOWN, FAR = 300.0, 0.5
"""Few of the layers that were measured take us more than so many microseconds. Beyond, costs are a
guess, and cuDNN is preferred only where it is expected to take less than such a share of our time.
"""
BLOCK = 16
"""Channels that a tensor core multiplies at once: fewer cost as many."""


def slower(problem: Problem, bias: bool) -> str:
    """Why cuDNN is to be preferred, where it is; empty where it is not, or nothing is known."""
    costs = _costs().get(kind(problem))
    if costs is None or not in_cudnn(problem):
        return ""
    found = amounts(problem, bias)
    theirs, ours = (microseconds(costs[who], found) for who in ("cudnn", "ours"))
    few = _of_few(problem)
    if few is not None:
        ours = max(costs["ours"]["calls"], 1e6 * few)  # no call takes less
    if theirs >= (MARGIN if ours <= KNOWN else FAR) * ours:
        return ""
    return f"cuDNN is expected to take {theirs / ours:.1f} of its time"


def in_cudnn(problem: Problem) -> bool:
    """Whether cuDNN has the layer: where it has not, torch goes through it sample by sample."""
    return all(more < s for more, s in zip(problem.output_padding, problem.stride, strict=True))


def kind(problem: Problem) -> str:
    """What has costs of its own: bf16 costs as much as fp16, and one axis lies contiguous."""
    arithmetic = "fp16" if problem.dtype == "bf16" else problem.arithmetic
    layout = "channels_last" if problem.layout == "channels_last" else "contiguous"
    return f"{arithmetic} {layout}"


def amounts(problem: Problem, bias: bool) -> dict[str, float]:
    """How much a layer has of everything that costs: of each class that it belongs to, again."""
    item, groups = ELEMENTS[problem.dtype].itemsize, problem.groups
    read, written = (item * shape.numel / 1e6 for shape in (problem.input, problem.output()))
    ins, outs = problem.in_channels // groups, problem.out_channels // groups
    steps = list(zip(problem.kernel, problem.stride, strict=True))
    taps, phases = prod(-(-k // s) for k, s in steps), prod(min(k, s) for k, s in steps)
    depthwise, solid = groups > 1 and ins == 1, problem.rank == 3
    strided, dilated = max(problem.stride) > 1, max(problem.dilation) > 1
    # Depthwise layers have nothing to multiply in blocks.
    blocks = 1.0 if depthwise else _blocks(ins) * _blocks(outs)
    found = {
        "calls": 1.0,
        "input": read,
        "output": written,
        "products": problem.flops() / 1e9 * blocks,
        "output by taps": written * taps,
    }
    classes = {
        "bias": bias,
        "one tap": prod(problem.kernel) == 1,
        "strided": strided,
        "whole strides": strided and all(k % s == 0 for k, s in steps),
        "dilated": dilated and not strided,
        "strided, dilated": strided and dilated,
        "strided, dilated, 3 axes": strided and dilated and solid,
        "grouped": groups > 1 and not depthwise,
        "depthwise": depthwise,
        "depthwise, 3 axes": depthwise and solid,
        "odd channels": not depthwise and bool(ins % 8 or outs % 8),
        "3 axes": solid,
    }
    of_classes = {
        f"{name}: {what}": amount
        for name in (name for name, holds in classes.items() if holds)
        for what, amount in found.items()
    }
    of_all = {
        "weights": item * prod(problem.weight) / 1e6,
        "terms of a sum": taps * ins * _blocks(ins) / 1e3,
        "phases": float(phases),
    }
    return found | of_all | of_classes


def _of_few(problem: Problem) -> float | None:
    """Seconds that the engine of few output channels is counted to take, where it serves: what was
    fitted was measured without it."""
    from transfuse.backends.triton.engines.few import few_tiling

    return few_tiling.expected(problem)


def _blocks(channels: int) -> float:
    """How many times as many channels as there are in whole blocks."""
    return -(-channels // BLOCK) * BLOCK / channels


def microseconds(costs: Mapping[str, float], found: Mapping[str, float]) -> float:
    return sum(costs.get(name, 0.0) * amount for name, amount in found.items())


@cache
def _costs() -> Any:
    return json.loads(FILE.read_text(encoding="utf-8"))["costs"]
