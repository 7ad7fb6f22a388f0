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
BLOCK = 16
"""Channels that a tensor core multiplies at once: fewer cost as many."""


def slower(problem: Problem, bias: bool) -> str:
    """Why cuDNN is to be preferred, where it is; empty where it is not, or nothing is known."""
    costs = _costs().get(kind(problem))
    if costs is None:
        return ""
    found = amounts(problem, bias)
    theirs, ours = (microseconds(costs[who], found) for who in ("cudnn", "ours"))
    return f"cuDNN is expected to take {theirs / ours:.1f} of its time" if theirs < ours else ""


def kind(problem: Problem) -> str:
    """What has costs of its own: bf16 costs as much as fp16, and one axis lies contiguous."""
    arithmetic = "fp16" if problem.dtype == "bf16" else problem.arithmetic
    layout = "channels_last" if problem.layout == "channels_last" else "contiguous"
    return f"{arithmetic} {layout}"


def amounts(problem: Problem, bias: bool) -> dict[str, float]:
    """How much a layer has of everything that costs."""
    item, groups = ELEMENTS[problem.dtype].itemsize, problem.groups
    read, written = (item * shape.numel / 1e6 for shape in (problem.input, problem.output()))
    ins, outs = problem.in_channels // groups, problem.out_channels // groups
    depthwise = groups > 1 and ins == 1
    products = problem.flops() / 1e9
    # Depthwise layers have nothing to multiply in blocks.
    padded = products if depthwise else products * _blocks(ins) * _blocks(outs)
    taps = prod(-(-k // s) for k, s in zip(problem.kernel, problem.stride, strict=True))
    phases = prod(min(k, s) for k, s in zip(problem.kernel, problem.stride, strict=True))
    strided, dilated = max(problem.stride) > 1, max(problem.dilation) > 1
    found = {
        "calls": 1.0,
        "input": read,
        "output": written,
        "weights": item * prod(problem.weight) / 1e6,
        "products": padded,
        "outputs by taps": written * taps,
        "terms of a sum": taps * ins * _blocks(ins) / 1e3,
        "phases": float(phases),
    }
    classes = {
        "bias": bias,
        "strided": strided,
        "dilated": dilated,
        "strided and dilated": strided and dilated,
        "grouped": groups > 1 and not depthwise,
        "depthwise": depthwise,
        "3 axes": problem.rank == 3,
    }
    for name in (name for name, holds in classes.items() if holds):
        found |= {
            f"{name}: {each}": found[each] for each in ("calls", "input", "output", "products")
        }
    return found


def _blocks(channels: int) -> float:
    """How many times as many channels as there are in whole blocks."""
    return -(-channels // BLOCK) * BLOCK / channels


def microseconds(costs: Mapping[str, float], found: Mapping[str, float]) -> float:
    return sum(costs.get(name, 0.0) * amount for name, amount in found.items())


@cache
def _costs() -> Any:
    return json.loads(FILE.read_text(encoding="utf-8"))["costs"]
