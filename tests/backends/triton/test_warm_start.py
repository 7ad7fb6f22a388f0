"""A process whose kernels are all in the store: what it imports before its first launch.

Seconds would depend on the machine, modules do not.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

SCRIPT = """
import json, sys
import torch

before = set(sys.modules)
import transfuse
from transfuse import Chain
from transfuse.backends.triton import Triton, calls, sweeps
from transfuse.backends.triton.gpu import aim
from transfuse.backends.triton.machine_code import Loaded
from transfuse.backends.triton.parameters import Layout, watched
from transfuse.backends.triton.store import shelves
from transfuse.problem import Problem
from transfuse.stages import (
    batch_norm, conv_transpose, group_norm, max_pool, softmax, sum, tanh
)

MAP = {"kind": 6, "item": 2, "box": [64, 64], "swizzle": 3}
CALLS = {
    "n8 ci64 co64 i512x512 k3x7": (conv_transpose(2),),
    "n8 ci64 co64 i64x64 k2 s2": (conv_transpose(2, "bias"),),
    "n8 ci64 co128 i64x64 k4 s2 p1": (conv_transpose(2, "bias"), softmax("channels")),
    "n16 ci32 co64 i32 k5 s2 p2": (conv_transpose(3, "bias"), max_pool(6), sum("channels")),
    "n64 ci64 co128 i32x32 k5 p1": (
        conv_transpose(2), batch_norm(training=True), tanh(), max_pool(2), group_norm(8)
    ),
}
launched, strange = [], []
for line, stages in CALLS.items():
    for arithmetic in ("fp16", "fp32 tf32"):
        chain, problem = Chain(*stages), Problem.parse(f"{line} {arithmetic} cuda:sm90")
        assert Triton().verdict(chain, problem).ok
        kind = torch.float16 if arithmetic == "fp16" else torch.float32
        x, weight = (torch.empty(d, dtype=kind, device="meta")
                     for d in (problem.input.dims, problem.weight))
        operands = {n: torch.empty(d, dtype=kind, device="meta") for n, d in chain.dims(problem)}
        calls.forget()
        with aim(90, "NVIDIA H200") as aimed:
            Triton().run(chain, problem, x, weight, operands)
        launched += [each.kernel.name for each in aimed.builds]
        (ready,) = calls._ready.values()
        for launch, build in zip(ready.launch_plan.launches, aimed.builds, strict=True):
            assert shelves.find(build.key) is None
            loaded = Loaded(build.kernel.name, 1, (), 0, 128, ({"map": MAP},) * 3)
            try:
                Layout([launch], [loaded], 9, [])
            except Exception as error:  # there is no driver to say how large parameters are
                strange.append(str(error))
assert not watched()
found = sorted(set(sys.modules) - before)
print(json.dumps({"modules": found, "launched": launched, "strange": strange}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("empty")
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRANSFUSE_KERNELS": str(folder)}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_launches_are_made_ready(found: Any) -> None:
    """Up to what the driver says of their parameters; otherwise nothing would be shown here."""
    assert {"pack", "convolve_strip", "convolve_window", "finish", "merge"} <= {*found["launched"]}
    assert len(found["strange"]) == len(found["launched"])
    assert all(" has 0 parameters, not " in line for line in found["strange"]), found["strange"]


def test_triton_is_not_imported(found: Any) -> None:
    """Neither its compiler nor its language, nor a kernel that is written in it."""
    assert not [name for name in found["modules"] if name.partition(".")[0] == "triton"]
    rooms = [name for name in found["modules"] if name.startswith("transfuse.backends.triton.")]
    assert rooms
    assert not [name for name in rooms if name.endswith("_kernel")]


def test_nothing_else_is_imported_that_torch_has_not(found: Any) -> None:
    ours = [name for name in found["modules"] if name.partition(".")[0] == "transfuse"]
    rest = {name.partition(".")[0] for name in found["modules"]} - {"transfuse"}
    assert rest <= sys.stdlib_module_names
    assert len(ours) <= 160
    assert len(found["modules"]) - len(ours) <= 20
