"""Stages of any class can be made within a call that torch.compile traces, the first one there."""

import os
import subprocess
import sys

import pytest

CODE = """
import torch, transfuse
from transfuse.stages import *

def call(x, w):
    return transfuse.conv_transpose(x, w, then={stages})

x, w = torch.randn(2, 4, 5, 5), torch.randn(4, 8, 3, 3)
y = torch.compile(call, backend="eager", fullgraph=True)(x, w)
torch.testing.assert_close(y, call(x, w), rtol=1e-4, atol=1e-4)
"""
CHAINS = [
    "[softmax((1, 2)), log_softmax('space'), mean(-1), flatten()]",
    "[lp_pool(2, 2), adaptive_avg_pool((None, 2)), instance_norm(), rms_norm('channels')]",
    "[pixel_shuffle(2), cat(torch.zeros(2, 3, 14, 14)), max_pool(14, 1, 7), layer_norm(15)]",
    "[amax((2, 3), keepdim=True), squeeze((2, 3)), relu()]",
]


@pytest.mark.parametrize(
    "stages", [CHAINS[0], *(pytest.param(each, marks=pytest.mark.long) for each in CHAINS[1:])]
)
def test_made_where_traced(stages: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE.format(stages=stages)],
        env=os.environ, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
