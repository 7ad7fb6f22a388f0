"""A call on the GPU launch by launch: every kernel belongs to a pass of the plan."""

import pytest

from transfuse import fills
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import (
    avg_pool,
    batch_norm,
    conv_transpose,
    group_norm,
    max_pool,
    sigmoid,
    softmax,
    tanh,
)

from .conftest import Interpreter

LINE = "n2 ci4 co8 i5x6 k3 s2 p1 fp32"
COPY = "copy input and weights in the order of the tiles"
WEIGHTS = "copy weights in the order of the tiles"
CONV = [(1, "convolve"), (1, "convolve_carefully")]

CASES = {
    "alone": (
        Chain(conv_transpose(2)),
        "usual",
        [COPY, "conv_transpose2d"],
        [(0, "pack"), *CONV],
    ),
    "stored": (
        Chain(conv_transpose(2), group_norm(2), sigmoid()),
        "store",
        [COPY, "conv_transpose2d · gather for group_norm(2)", "group_norm(2) · sigmoid"],
        [(0, "pack"), *CONV, (1, "merge"), (2, "finish")],
    ),
    "computed again": (
        Chain(conv_transpose(2), softmax("space")),
        "recompute",
        [
            COPY,
            "conv_transpose2d · gather for softmax(space) · keep only the statistic",
            "conv_transpose2d · softmax(space)",
        ],
        [(0, "pack"), *CONV, (1, "merge"), (2, "convolve"), (2, "convolve_carefully")],
    ),
    "a pool before": (
        Chain(avg_pool(2), conv_transpose(2), tanh()),
        "usual",
        [WEIGHTS, "avg_pool(2, divisor_override=1)", "conv_transpose2d(weights * 0.25) · tanh"],
        [(1, "pack"), (2, "convolve"), (2, "convolve_carefully")],
    ),
    "held": (
        Chain(conv_transpose(2), batch_norm(weight="w", bias="b", training=True), group_norm(2)),
        "resident",
        [
            COPY,
            "conv_transpose2d · gather for batch_norm(batch, weight=w, bias=b)",
            "batch_norm(batch, weight=w, bias=b) · group_norm(2)",
        ],
        [(0, "pack"), *CONV, (1, "merge"), (2, "finish")],
    ),
    "more channels than a tile": (
        Chain(conv_transpose(2), softmax("channels")),
        "usual",
        [COPY, "conv_transpose2d · softmax(channels)"],
        [(0, "pack"), *CONV, (1, "finish")],
    ),
    "swept": (
        Chain(conv_transpose(2), group_norm(2), max_pool(2)),
        "store",
        [COPY, "conv_transpose2d · gather for group_norm(2)", "group_norm(2)", "max_pool(2)"],
        [(0, "pack"), *CONV, (1, "merge"), (2, "finish"), (3, "")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_launch_is_of_its_pass(name: str, interpreter: Interpreter) -> None:
    chain, machine, passes, parts = CASES[name]
    problem = Problem.parse(LINE.replace("co8", "co600") if "channels" in name else LINE)
    found = interpreter(chain, problem, *fills.real(chain, problem, 0), machine=machine, parts=True)
    once, in_parts = found["results"]
    assert in_parts.equal(once), "the same bits as at once"
    assert found["passes"] == passes
    assert found["parts"] == parts
