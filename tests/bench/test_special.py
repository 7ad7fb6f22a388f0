"""The ceiling of special functions: what is timed computes as many exponentials as it says."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from transfuse.bench import special
from transfuse.maths.expr import Call
from transfuse.sweeps import Each

INTERPRETED = """
import torch
from transfuse.bench.special_kernel import exponentials

out = torch.zeros(32)
exponentials[(2,)](out, 1, 2, 16)  # 2 ** 2 ** x, of 0 to 31
print(out.tolist() == torch.arange(32.0).exp2().exp2().tolist(), out[:4].tolist())
"""
COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource

from transfuse.bench.special_kernel import exponentials

signature = {"out": "*fp32", "rounds": "i32", "AT_ONCE": "constexpr", "BLOCK": "constexpr"}
constants = {"AT_ONCE": 16, "BLOCK": 1024}
source = ASTSource(exponentials, signature, constants)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
print(made.asm["ptx"].count("ex2.approx.ftz.f32"))
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def run(script: str) -> str:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_kernel_takes_exponentials_of_exponentials(child, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert child(INTERPRETED) == "True [2.0, 4.0, 16.0, 256.0]\n"


def test_none_of_them_is_lost_to_the_compiler(child):
    """A thread of 128 has 8 of 1024 values; the loop around them may be unrolled, not shortened."""
    found = int(child(COMPILED))
    assert found >= 16 * 8
    assert found % (16 * 8) == 0


def test_on_a_cpu_torch_and_the_core_are_asked(monkeypatch):
    made = []
    monkeypatch.setattr(
        special.sweeps, "prepare", lambda sweep: made.append(sweep) or (lambda slots: None)
    )
    monkeypatch.setattr(special, "SIZES", (8,))
    ways = list(special.exponentials("cpu"))
    assert [name for name, *_ in ways] == ["fp32"] * 3 + ["fp64"] * 3
    assert {many for _, many, _ in ways} == {8}
    for name, many, call in ways:
        y = call()
        if y is not None:  # torch's
            assert y.numel() == many
            assert y.dtype == {"fp32": torch.float32, "fp64": torch.float64}[name]
    for sweep in made:
        assert isinstance(sweep, Each)
        assert isinstance(sweep.expr, Call)
        assert (sweep.expr.primitive, sweep.out.sizes) == ("exp", (8,))


def test_a_gpu_without_triton_has_none(monkeypatch):
    monkeypatch.setattr(special, "find_spec", lambda name: None)
    assert list(special.exponentials("cuda")) == []
