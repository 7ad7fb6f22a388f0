"""``import transfuse`` is cheap: after ``import torch`` it loads little, and no compiler."""

import subprocess
import sys
from pathlib import Path

import transfuse

SOURCES = str(Path(transfuse.__file__).parents[1])
LAZY = ("triton", "yaml", "rich", "typer", "torch._inductor", "torch._dynamo", "transfuse.cli")


def python(code: str) -> str:
    """What a fresh interpreter prints; it finds this transfuse first."""
    prelude = f"import sys; sys.path.insert(0, {SOURCES!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_takes_little() -> None:
    """Counted, not timed: of the calls of functions that ``import torch`` makes, one in 22.

    Without those of imports themselves, Python's own and an editable installation's: they are
    others where files have been compiled before.
    """
    code = """
calls = 0
def count(frame, event, argument):
    global calls
    imports = any(each in frame.f_code.co_filename for each in ("<frozen importlib", "_editable_"))
    calls += event in ("call", "c_call") and not imports

def counted(module):
    global calls
    calls = 0
    sys.setprofile(count)
    __import__(module)
    sys.setprofile(None)
    return calls

print(counted("torch"), counted("transfuse"))
"""
    torchs, ours = map(int, python(code).split())
    assert 0 < ours <= torchs / 22


def test_loads_no_compiler_and_no_command_line() -> None:
    code = f"""
import torch
before = set(sys.modules)
import transfuse
print(*(name for name in {LAZY} if name in set(sys.modules) - before))
"""
    assert python(code).split() == []


def test_works_without_triton() -> None:
    code = """
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
import torch, transfuse
print(transfuse.conv_transpose2d(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2)).tolist())
print("triton" in sys.modules)
"""
    assert python(code).splitlines() == [
        "[[[[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]]]",
        "False",
    ]
