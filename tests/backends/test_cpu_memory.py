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

import pytest

from transfuse.operators import OPERATORS

PER_THREAD = 4 * 2**20
"""Bytes of a thread's own: two tiles, and the inputs that one of them reads. As documented."""
THREADS = (1, 16)
"""A single one takes every tile, the largest too; many take no more each."""
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

# In a process of its own: the counter must be there before anything takes memory.
MEASURE = """
import ctypes, importlib.util, json, sys
import torch
from transfuse.backends.cpu import Cpu
from transfuse.operators import OPERATORS

spec = importlib.util.spec_from_file_location("conftest", sys.argv[1])
conftest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conftest)
counter = ctypes.CDLL(None)
counter.allocations_peak.argtypes = (ctypes.c_long,)
counter.allocations_peak.restype = ctypes.c_long
for slug in OPERATORS:
    one = conftest._given(slug, "cpu")
    out = torch.zeros_like(one.empty())
    scratch = Cpu().plan(one.operator.bound(one.case), one.case.problem).scratch
    for threads in json.loads(sys.argv[2]):
        torch.set_num_threads(threads)
        before = ctypes.c_long()
        one.function(out=out, backend="cpu")  # packs the weights, starts the threads
        counter.allocations_begin(ctypes.byref(before))
        one.function(out=out, backend="cpu")
        peak = counter.allocations_peak(before.value)
        print(json.dumps([slug, threads, scratch, peak]), flush=True)
"""


@pytest.mark.skipif(COMPILER is None, reason="no C compiler: cc, gcc or clang")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="counts the blocks of glibc alone")
def test_a_call_takes_what_its_plan_says_and_a_constant_for_each_thread(tmp_path: Path) -> None:
    """Every operator, with one thread and with many."""
    assert COMPILER is not None
    here, counter = Path(__file__).parent, tmp_path / "allocations.so"
    flags = ["-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([COMPILER, *flags, str(here / "allocations.c"), "-o", str(counter)], check=True)
    given = [str(here.parent / "conftest.py"), json.dumps(THREADS)]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *given],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LD_PRELOAD": str(counter)},
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(OPERATORS) * len(THREADS)
    assert all(peak > 64 * 1024 for *_, peak in found), "a tile at least: else nothing is counted"
    beyond = [each for each in found if each[-1] > each[2] + each[1] * PER_THREAD]
    assert not beyond, "slug, threads, the plan's scratch, bytes at the peak"
