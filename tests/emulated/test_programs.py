"""C programs on the core for aarch64, emulated: loops, the page's example, memory that runs out."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from transfuse.backends.cpu import library

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/backends"
LOADED = library.path()
AARCH64 = LOADED and LOADED.parent / "aarch64/transfuse/backends/cpu"
pytestmark = pytest.mark.skipif(
    AARCH64 is None or not AARCH64.exists(), reason="the core is not emulated: make test-neon"
)


def compiled(source: Path, to: Path) -> Path:
    """A program from strict C99, linked with the core."""
    program = to / source.stem
    flags = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{AARCH64}/include"]
    link = [f"{AARCH64}/libtransfuse_cpu.so", f"-Wl,-rpath,{AARCH64}", "-lm"]
    command = ["aarch64-linux-gnu-gcc", *flags, str(source), *link, "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def output(program: Path, *words: object, threads: int = 1) -> str:
    command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", program, *words]
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_core_is_not_this_machine_s() -> None:
    core = library.load()
    assert core is not None
    assert core.transfuse_isas() == core.transfuse_isa() == b"neon"


@pytest.mark.parametrize("threads", [1, 3])
def test_against_loops_in_c(threads: int, tmp_path: Path) -> None:
    program = compiled(PROGRAMS / "problems.c", tmp_path)
    assert output(program, threads=threads) == "all right\n"


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs/c.md").read_text("utf-8")
    code, shown = (
        re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
        for language in ("c", "text")
    )
    source = tmp_path / "example.c"
    source.write_text(code)
    assert output(compiled(source, tmp_path)) == shown


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_that_runs_out_is_an_error(threads: int, tmp_path: Path) -> None:
    """Every block in turn is refused, up to the first call that asks for fewer."""
    program = compiled(PROGRAMS / "memory.c", tmp_path)
    for n in range(1, 100):
        lines = set(output(program, n, threads=threads).splitlines())
        assert lines <= {"0 ", "1 out of memory"}
        if lines == {"0 "}:
            break
    assert n > 5
