"""A primitive that the kernels have no branch for fails when they are imported."""

import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

ADD = """
from transfuse.maths import expr, primitives
expr.ARITY["gamma"] = 1
import transfuse.backends.triton.epilogue.expressions
"""


def test_a_primitive_without_a_branch_fails_at_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADD], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode != 0
    assert "expressions lacks the primitives ['gamma']" in done.stderr
