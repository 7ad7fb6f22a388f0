"""Groups of one channel as machine code: no tensor cores, so that every instruction counts."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.triton.ahead import Wanted, builds
from transfuse.problem import Problem
from transfuse.stages import conv_transpose

from .child import resources


@pytest.mark.parametrize(
    ("dtype", "layout"), [("fp16", "contiguous"), ("fp32", "channels_last")], ids=str
)
def test_loops_divide_nothing_and_spill_nothing(
    dtype: str, layout: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Taps are counted, and results are stored in one way: the other would take registers."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    problem = Problem.parse(f"n8 ci64 co64 i64x64 k4 s2 p1 g64 {dtype} cuda:sm90")
    wanted = Wanted((conv_transpose(2, "bias"),), replace(problem, layout=layout))
    found = {each.key: each for each in builds(wanted) if each.kernel.name == "convolve"}
    (build,) = found.values()
    ptx = build.compiled.asm["ptx"]
    assert "ld.global.v4" in ptx
    assert not re.findall(r"\b(?:div|rem)\.[su]\d+", ptx)
    assert "fma.rn.f32" in ptx, "a product is rounded before it is added"
    assert resources(ptx, 90)["spilled"] == 0
