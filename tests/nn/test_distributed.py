"""DistributedDataParallel and FSDP2 around these modules, in two processes that meet in a file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

ROOT = Path(__file__).parents[2]
available = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()),
    reason="this torch has no gloo",
)


@available
@pytest.mark.long
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_trains_as_torchs_modules_do(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.nn.one_of_two", how]
    # Each by an address of this machine, whatever its name resolves to.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path)],
            cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for each in both:
            printed, errors = each.communicate(timeout=300)
            assert each.returncode == 0, errors
            assert printed == "11 tensors are the same\n"
    finally:
        for each in both:
            each.kill()
