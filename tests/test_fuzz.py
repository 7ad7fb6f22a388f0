"""A short run of the fuzzer, and that it tells of what goes wrong."""

import subprocess
import sys
from pathlib import Path
from shutil import copytree

FUZZING = Path(__file__).with_name("fuzzing")


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.fuzzing", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1200)


def test_extreme_calls_from_python_and_c() -> None:
    found = run(FUZZING.parent.parent, "--calls", "600", "--seed", "1")
    assert found.returncode == 0, found.stdout + found.stderr
    last = found.stdout.splitlines()[-1]
    assert last == "600 calls, seed 1: 0 wrong"
    for kind in (
        "from_python right",
        "from_c right",
        "from_c refused",
        "of_programs ran",
        "of_sweeps ran",
    ):
        assert kind in found.stdout


def test_a_child_that_dies_is_told_of_and_the_others_go_on(tmp_path: Path) -> None:
    """A copy in which call 3 ends the process and call 5 gives a wrong result."""
    faults = "if number == 3: os.abort()\n    if number == 5: return 'WRONG result'\n    "
    copy = copytree(FUZZING, tmp_path / "tests" / "fuzzing") / "__main__.py"
    text = copy.read_text("utf-8").replace("random = Random(f", faults + "random = Random(f", 1)
    copy.write_text(text, "utf-8")
    found = run(tmp_path, "--calls", "8", "--seed", "2")
    assert found.returncode == 1
    assert "--seed 2 --only 3\n  it ended, status -6" in found.stdout
    assert "--seed 2 --only 5\n  WRONG result" in found.stdout
    assert found.stdout.splitlines()[-1] == "8 calls, seed 2: 2 wrong"
