"""Gradients by the GPU's kernels, without a GPU: a sample in Triton's interpreter."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def drawn(first: int) -> list[str]:
    return list(map(str, range(first, first + 12)))


@pytest.mark.parametrize(
    "chains",
    [
        ["tiles", "tiles/fp16"],
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in (["taps", "epilogue"], drawn(0), drawn(12))
        ),
    ],
    ids=lambda chains: chains[0],
)
def test_chains_in_the_interpreter(chains: list[str]) -> None:
    asked = {"TRITON_INTERPRET": "1", "TRANSFUSE_BACKEND": "triton"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.gradients.interpreted", *chains],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[:-1] == [f"right {each}" for each in chains], done.stderr[-3000:]
