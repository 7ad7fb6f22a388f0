"""What a call takes beyond its tensors: bytes asked of the C library, counted one by one.

Resident memory would tell of the kernel's pages, of the allocator and of what ran before, too.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from transfuse.operators import OPERATORS

PER_THREAD = 4 * 2**20
"""Bytes of a thread's own: two tiles, and the inputs that one of them reads. As documented."""
THREADS = (1, 16)
"""A single one takes every tile, the largest too; many take no more each."""
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

# In a process of its own: the counter must be there before anything takes memory.
COUNT = """
import ctypes, importlib.util, json, sys
import torch

counter = ctypes.CDLL(None)
counter.allocations_peak.argtypes = (ctypes.c_long,)
counter.allocations_peak.restype = ctypes.c_long


def peak(call):
    before = ctypes.c_long()
    counter.allocations_begin(ctypes.byref(before))
    call()
    return counter.allocations_peak(before.value)
"""
OPERATORS_AND_THREADS = (
    COUNT
    + """
from transfuse.backends.cpu import Cpu
from transfuse.operators import OPERATORS

spec = importlib.util.spec_from_file_location("conftest", sys.argv[1])
conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conftest)
for slug in OPERATORS:
    one = conftest._given(slug, "cpu")
    out = torch.zeros_like(one.empty())
    scratch = Cpu().plan(one.operator.bound(one.case), one.case.problem).scratch
    for threads in json.loads(sys.argv[2]):
        torch.set_num_threads(threads)
        one.function(out=out, backend="cpu")  # packs the weights, starts the threads
        found = peak(lambda: one.function(out=out, backend="cpu"))
        print(json.dumps([slug, threads, scratch, found]), flush=True)
"""
)
PACKING = (
    COUNT
    + """
from transfuse import conv_transpose1d
from transfuse.backends.cpu import weights

channels, taps = json.loads(sys.argv[1])
pack, found = weights.pack, []


def counted(*given):
    found.append(peak(lambda: found.append(pack(*given).nbytes)))
    return pack(*given)


weights.pack = counted
conv_transpose1d(torch.ones(1, 1, 2), torch.ones(1, channels, taps), backend="cpu")
print(json.dumps(found))
"""
)


def counted(program: str, folder: Path, *given: str) -> list[list[Any]]:
    """What a program prints, a line each, in a process whose blocks are counted."""
    assert COMPILER is not None
    counter = folder / "allocations.so"
    flags = ["-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    source = Path(__file__).parent / "allocations.c"
    subprocess.run([COMPILER, *flags, str(source), "-o", str(counter)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", program, *given],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LD_PRELOAD": str(counter)},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C compiler: cc, gcc or clang"),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="counts glibc's blocks alone"),
]


def test_a_call_takes_what_its_plan_says_and_a_constant_for_each_thread(tmp_path: Path) -> None:
    """Every operator, with one thread and with many."""
    conftest = Path(__file__).parent.parent / "conftest.py"
    found = counted(OPERATORS_AND_THREADS, tmp_path, str(conftest), json.dumps(THREADS))
    assert len(found) == len(OPERATORS) * len(THREADS)
    assert all(peak > 64 * 1024 for *_, peak in found), "a tile at least: else nothing is counted"
    beyond = [each for each in found if each[-1] > each[2] + each[1] * PER_THREAD]
    assert not beyond, "slug, threads, the plan's scratch, bytes at the peak"


@pytest.mark.parametrize("channels", [2, 5, 16])
def test_packing_takes_one_block_of_channels_beside_the_packed_weights(
    tmp_path: Path, channels: int
) -> None:
    """One block here holds all channels, so it is as much again; of one input channel at a time."""
    taps = 100_000
    ((packed, peak),) = counted(PACKING, tmp_path, json.dumps([channels, taps]))
    assert packed >= taps * channels * 4, "else nothing is packed"
    assert packed < peak <= 2 * packed + 64 * 1024
