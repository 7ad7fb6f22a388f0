"""Stored kernels on a GPU: the same bits as compiled ones, and no compiler of any kind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from transfuse.backends.triton.store.entry import parsed

SCRIPT = """
import hashlib, json, logging, sys
import torch
from triton import knobs
from transfuse import fills
from transfuse.backends.triton import Triton, calls
from transfuse.operators import OPERATORS

lines = []
class Lines(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("transfuse").addHandler(Lines())
compiled = []
knobs.compilation.listener = lambda src, **rest: compiled.append(src.fn.__name__)
capability = "".join(map(str, torch.cuda.get_device_capability()))
results = {}
for slug, op in OPERATORS.items():
    for arithmetic in ("fp16", "tf32"):
        case = op.case("small").on(arithmetic, f"cuda:sm{capability}")
        chain, problem = op.bound(case), case.problem
        x, weight, operands = fills.real(chain, problem, 0)
        operands = {name: each.cuda() for name, each in operands.items()}
        y = Triton().run(chain, problem, x.cuda(), weight.cuda(), operands)
        bits = y.contiguous().view(torch.uint8).cpu().numpy().tobytes()
        results[f"{slug} {arithmetic}"] = hashlib.sha256(bits).hexdigest()
fast = all(each.launch_plan.buffers is not None for each in calls._ready.values())
print(json.dumps({"results": results, "compiled": compiled, "lines": lines, "fast": fast}))
"""


def run(folder: Path, cache: str) -> Any:
    """The small cases of the five operators in a process of its own, with no program to call."""
    env = {
        **os.environ,
        "PATH": os.devnull,
        "TRANSFUSE_KERNELS": str(folder / "kernels"),
        "TRITON_CACHE_DIR": str(folder / cache),
        "TRITON_INTERPRET": "0",
    }
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    folder = tmp_path_factory.mktemp("store")
    return folder, run(folder, "first")


def test_no_c_compiler_is_needed(compiled: tuple[Path, Any]) -> None:
    folder, found = compiled
    assert found["fast"]
    assert found["lines"] == []
    assert found["compiled"]
    assert len(list((folder / "kernels").iterdir())) == len(found["compiled"])


def test_stored_kernels_give_the_same_bits_without_a_compiler(compiled: tuple[Path, Any]) -> None:
    folder, found = compiled
    again = run(folder, "second")
    assert again == found | {"compiled": []}
    assert not list((folder / "second").rglob("*.cubin")), "Triton has compiled something"


def test_a_damaged_kernel_is_compiled_again(compiled: tuple[Path, Any]) -> None:
    folder, found = compiled
    path = min((folder / "kernels").iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    again = run(folder, "third")
    assert again["results"] == found["results"]
    assert len(again["compiled"]) == 1
    (line,) = again["lines"]
    assert line.startswith(f"{path} is left out: damaged or half written")
    assert parsed(path.read_bytes(), path.stem).name == again["compiled"][0]
