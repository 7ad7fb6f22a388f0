"""Every table of primitives, of backends and peers, is whole: one row less fails at import."""

import subprocess
import sys

import pytest

WATCHED = """
from transfuse.maths import primitives

tables, complete = {}, primitives.complete

def watched(table, whose):
    tables[whose] = table
    complete(table, whose)

primitives.complete = watched
"""
LESS = """
for whose, table in tables.items():
    for name in table:
        try:
            complete({k: v for k, v in table.items() if k != name}, whose)
        except ImportError as error:
            assert str(error).startswith(f"{whose} lacks the primitives ['{name}']"), error
        else:
            raise AssertionError(f"{whose} is taken without {name}")
print(*tables)
"""


def checked(imports: str) -> set[str]:
    """Whose tables were held against the primitives while these modules were imported."""
    script = f"{WATCHED}\nimport {imports}\n{LESS}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_peers() -> None:
    peers = [f"transfuse.bench.peers.{name}" for name in ("onnx_graph", "jax_xla", "cudnn_graph")]
    assert checked(", ".join(peers)) == set(peers)


def test_kernels() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    expressions = "transfuse.backends.triton.epilogue.expressions"
    assert checked(expressions) == {expressions}
