"""Gradients by the GPU's kernels, without a GPU: a sample in Triton's interpreter."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@pytest.mark.parametrize(
    "seeds", [range(4), *(pytest.param(range(i, i + 12), marks=pytest.mark.long) for i in (4, 16))]
)
def test_drawn_chains_in_the_interpreter(seeds: range) -> None:
    asked = {"TRITON_INTERPRET": "1", "TRANSFUSE_BACKEND": "triton"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.gradients.interpreted", *map(str, seeds)],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[:-1] == [f"right {seed}" for seed in seeds], done.stderr[-3000:]
