"""transfuse compile: what it is asked for, and what it refuses in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.cli import app, common
from transfuse.cli.compiling import compile_
from transfuse.operators import OPERATORS

LINE = "n2 ci16 co16 i8 k2 s2 fp16"


def test_help_names_what_there_is() -> None:
    shown = CliRunner().invoke(app, ["compile", "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for word in ("--problem", "--then", "--for", "--dtype", "--layout", "--common", "--output"):
        assert word in shown.output


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": (
        {"architecture": ["sm_35"]},
        "unknown architecture 'sm_35'; known: sm_80, sm_86, sm_89, sm_90, sm_100",
    ),
    "word": ({"architecture": ["hopper"]}, "unknown architecture 'hopper'"),
    "layout": ({"layout": ["nhwc"]}, "unknown layout 'nhwc'; known: contiguous, channels_last"),
    "dtype": ({"dtype": ["int8"]}, "unknown element type 'int8'; known: "),
    "common": ({"common": True, "dtype": ["fp16"]}, "--common has calls, element types and"),
    "both": ({"problem": LINE, "slugs": ["x"]}, "give an operator or --problem, not both"),
    "then": ({"then": ["tanh"]}, "--then goes with --problem"),
    "operator": ({"slugs": ["relu"]}, "no operator is called 'relu'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_refuses(name: str, tmp_path: Path) -> None:
    given, reason = REFUSED[name]
    with pytest.raises((ValueError, KeyError)) as raised:
        compile_(**{"folder": tmp_path / "kernels", "case": "small", **given})
    assert reason in str(raised.value)
    assert not (tmp_path / "kernels").exists()


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transfuse.settings.kernels", lambda: None)
    with pytest.raises(ValueError, match="there is no home for compiled kernels; give --output"):
        compile_(problem=LINE)


@pytest.mark.long
def test_kernels_are_compiled_once(tmp_path: Path) -> None:
    """For two GPUs; a second run finds them all, and no compiler is asked for."""

    def run(path: str) -> Any:
        words = ["compile", "--problem", LINE, "--for", "sm_80", "--for", "sm_90", "--json"]
        command = [sys.executable, "-m", "transfuse", *words, "-o", str(tmp_path / "kernels")]
        cache = str(tmp_path / "triton")
        env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache, "PATH": path}
        return json.loads(
            subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
        )

    found = run(os.devnull)  # there is no C compiler
    files = {each.stem: each.stat().st_mtime_ns for each in (tmp_path / "kernels").iterdir()}
    assert {key for call in found["calls"] for key in call["kernels"]} == set(files)
    assert found["kernels"] == len(files) >= 2  # one for each GPU at least
    assert not any(call["fault"] for call in found["calls"])
    assert run(os.devnull) == found
    again = {each.stem: each.stat().st_mtime_ns for each in (tmp_path / "kernels").iterdir()}
    assert again == files


def test_the_common_calls_are_those_that_are_promised() -> None:
    calls = list(common.calls())
    plain = {
        (case.problem.rank, case.problem.kernel[0], case.problem.stride[0])
        for chain, case, _ in calls
        if len(chain.stages) == 1
    }
    kernels = ((2, 2), (4, 2), (3, 2), (3, 1), (5, 1), (16, 8), (8, 4))
    assert plain >= {(rank, *kernel) for rank in (1, 2, 3) for kernel in kernels}
    operators = {str(op.bound(op.case("benchmark"))) for op in OPERATORS.values()}
    assert operators <= {str(chain) for chain, _, _ in calls}
    assert len(calls) == len({(str(chain), str(case)) for chain, case, _ in calls})
    layers = [each for each in calls if each[0].conv.bias == "bias" and len(each[0].stages) == 1]
    assert {arithmetics for _, _, arithmetics in layers} == {("fp32", "tf32", "fp16", "bf16")}
    bare = {str(case): found for chain, case, found in calls if chain.conv.bias is None}
    assert all(bare[str(case)] == ("tf32", "fp16", "bf16") for _, case, _ in layers)
