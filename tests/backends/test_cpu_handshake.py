"""A core that is not this package's is refused when it is loaded, before it is given any memory."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from transfuse.backends.cpu import library

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def refusal(core: Path) -> str:
    """What a call says where ``TRANSFUSE_CORE`` names this file."""
    script = """
import os, sys
os.environ["TRANSFUSE_CORE"] = sys.argv[1]
import torch, transfuse
try:
    transfuse.conv_transpose1d(torch.ones(1, 1, 9), torch.ones(1, 1, 3), stride=2)
except RuntimeError as error:
    print(error)
"""
    found = subprocess.run(
        [sys.executable, "-c", script, str(core)], capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, f"status {found.returncode}\n{found.stderr[-2000:]}"
    assert f"{core} is no core of this transfuse; let TRANSFUSE_CORE name" in found.stdout
    return found.stdout


def compiled(to: Path, lines: list[str]) -> Path:
    """A library that has nothing of a core but its description."""
    source = to / "core.c"
    text = "".join(f'"{line}\\n"' for line in lines)
    source.write_text(f"const char* transfuse_abi(void) {{ return {text}; }}")
    assert COMPILER is not None
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", str(source), "-o", str(to / "core.so")], check=True
    )
    return to / "core.so"


compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler: cc, gcc or clang")


def test_the_core_is_the_one_described_here() -> None:
    core = library.load()
    assert core is not None
    assert core.transfuse_abi().decode().splitlines() == library.abi()


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "core.so").write_text("not a library")
    assert "cannot be loaded" in refusal(tmp_path / "core.so")
    assert "cannot be loaded" in refusal(tmp_path / "missing.so")


@compiler
def test_another_library(tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text("int other(void) { return 1; }")
    assert COMPILER is not None
    other = tmp_path / "other.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", str(source), "-o", str(other)], check=True)
    assert "another library, or an older one" in refusal(other)


@compiler
@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("abi", f"abi {library.ABI}", f"abi {library.ABI + 1}"),
        ("elements", "fp64 fp16", "fp16 fp64"),
        ("operations", "ADD SCALE", "SCALE ADD"),
        ("primitives", "SIGMOID ERF", "SIGMOID"),
        ("step", "i0@8", "i0@4"),
        ("program", "careful@", "careful@1"),
    ],
)
def test_a_build_of_other_sources(tmp_path: Path, key: str, old: str, new: str) -> None:
    lines = [line.replace(old, new) for line in library.abi()]
    assert lines != library.abi()
    said = refusal(compiled(tmp_path, lines)).splitlines()
    assert [line.split()[:2] for line in said[2:]] == [["here", key], ["there", key]]
    assert new in said[-1]


@compiler
def test_a_core_that_lacks_its_functions(tmp_path: Path) -> None:
    assert "it lacks a function" in refusal(compiled(tmp_path, library.abi()))


def test_the_installed_one_may_be_stale_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "OPS", library.OPS[:-1])
    monkeypatch.delenv("TRANSFUSE_CORE", raising=False)
    with pytest.raises(RuntimeError, match="install transfuse again") as found:
        library.load.__wrapped__()
    assert "operations ADD" in str(found.value)
