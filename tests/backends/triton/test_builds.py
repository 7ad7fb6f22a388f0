"""One build for all sizes: what 300 drawn batches and sizes of a chain would have compiled."""

import random
from collections.abc import Iterator
from dataclasses import replace
from math import exp, log
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import (
    avg_pool,
    batch_norm,
    conv_transpose,
    group_norm,
    max_pool,
    relu,
    sigmoid,
    softmax,
    tanh,
)

from .conftest import Child

MOST = 6
"""Builds of one kernel for a chain, kernel, stride, element type and layout."""
SIZES = 300
LARGEST = {1: (20_000,), 2: (256, 256), 3: (40, 64, 64)}

Pattern = tuple[str, tuple[Any, ...]]
PLAIN = (conv_transpose(2, "bias"),)
PATTERNS: dict[str, Pattern] = {
    "k2 s2": ("ci64 co64 k2 s2 fp16", PLAIN),
    "k3 s1, channels_last": ("ci64 co64 k3 s1 p1 fp16 channels_last", (*PLAIN, relu())),
    "k16 s8 along one axis": ("ci512 co256 k16 s8 p4 fp16", (conv_transpose(1),)),
    "a window in 3-D": ("ci32 co64 k5 s2 p2", (conv_transpose(3, "bias"), max_pool(2))),
    "a statistic of samples": ("ci64 co36 k4 s2 p1", (*PLAIN, tanh(), group_norm(6))),
    "k2 s2, channels_last": ("ci64 co96 k2 s2 fp16 channels_last", PLAIN),
    "k4 s2 p1": ("ci64 co40 k4 s2 p1 fp32 tf32", (*PLAIN, relu())),
    "k1": ("ci64 co256 k1 bf16", PLAIN),
    "k3 s2 op1": ("ci48 co40 k3 s2 p1 op1 bf16", (*PLAIN, sigmoid())),
    "k4 s4 of many": ("ci512 co512 k4 s4 fp32", PLAIN),
    "k3 s3 in 3-D": ("ci32 co32 k3 s3 fp32 tf32", (conv_transpose(3),)),
    "groups": ("ci64 co32 k3 s2 p1 g4 fp16", PLAIN),
    "depthwise": ("ci48 co96 k3 s2 g48", (*PLAIN, relu())),
    "dilated": ("ci24 co17 k3x2 s1x2 d4x3 fp64", PLAIN),
    "softmax, channels_last": (
        "ci32 co64 k4 s2 p1 fp16 channels_last",
        (*PLAIN, softmax("channels")),
    ),
    "batch norm and a window": (
        "ci64 co128 k5 s1 p1 fp16",
        (*PLAIN, batch_norm(training=True), max_pool(2), group_norm(8)),
    ),
    "k9 s4 of one channel": ("ci56 co1 k9 s4 p4 op3 fp32 tf32", PLAIN),
    "k4 s2 p1 of few": ("ci64 co3 k4 s2 p1 fp32 tf32", (*PLAIN, tanh())),
    "k3 s2 of few in 3-D": ("ci32 co2 k3 s2 p1 op1 bf16", (conv_transpose(3),)),
    "a pool before": (
        "ci32 co64 k3 s2 p1 op1 fp16",
        (avg_pool(2), conv_transpose(2), softmax("space")),
    ),
}
QUICK = (
    "k2 s2",
    "k16 s8 along one axis",
    "k3 s1, channels_last",
    "a window in 3-D",
    "a statistic of samples",
)


@pytest.fixture(scope="module")
def counter() -> Iterator[Child]:
    child = Child("count", "built.py", TRITON_INTERPRET="0")
    yield child
    child.close()


def drawn(line: str, rank: int, seed: str) -> list[Problem]:
    """Batches and sizes of one pattern: as many small ones as large ones, by their logarithms."""
    draw = random.Random(seed)

    def size(most: int) -> int:
        return round(exp(draw.uniform(log(2), log(most))))

    found = []
    for _ in range(SIZES):
        sizes = "x".join(str(size(most)) for most in LARGEST[rank])
        words = line.replace(" k", f" i{sizes} k", 1).removesuffix(" channels_last")
        problem = Problem.parse(f"n{size(128)} {words} cuda:sm90")
        layout = "channels_last" if line.endswith("channels_last") else "contiguous"
        found.append(replace(problem, layout=layout))
    return found


@pytest.mark.parametrize(
    "name",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.long) for each in PATTERNS],
)
def test_builds(name: str, counter: Child) -> None:
    line, stages = PATTERNS[name]
    found = counter(stages=stages, problems=drawn(line, Chain(*stages).conv.rank, name))
    print(found)
    assert {"convolve", "multiply", "few_outputs"} & found.keys()
    assert all(count <= MOST for count in found.values()), found
