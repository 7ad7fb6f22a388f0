"""One word, one meaning: files and arguments of the backends, classes of the whole package."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import transfuse

PACKAGE = Path(transfuse.__file__).parent
BACKENDS = PACKAGE / "backends"
MOST_ARGUMENTS = 10
TWINS = ("backends/cpu/library.py", "bench/models/", "bench/peers/")
"""C's structures, called as what they are made from; models and peers, as others have them."""
EACH_BACKENDS_OWN = {"Ready", "Again"}
"""A call that all is ready for, and the next like it: every backend has its own."""


def launched(node: ast.AST) -> str:
    """The kernel that a call names: ``Kernel("module", "kernel", …)``."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "Kernel":
        return ""
    name = node.args[1]
    assert isinstance(name, ast.Constant)
    return str(name.value)


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_no_two_files_share_a_name(backend: str) -> None:
    files = [p for p in (BACKENDS / backend).rglob("*") if p.suffix in (".py", ".cpp", ".h")]
    counted = Counter(path.name for path in files if path.name != "__init__.py")
    assert [name for name, count in counted.items() if count > 1] == []


def test_a_word_names_one_class() -> None:
    """But for private ones, and those that are another's counterpart: see ``TWINS``."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            where = path.relative_to(PACKAGE).as_posix()
            if isinstance(node, ast.ClassDef) and not where.startswith(TWINS):
                found.setdefault(node.name, []).append(where)
    shared = {name: places for name, places in found.items() if len(places) > 1}
    assert {n: p for n, p in shared.items() if n[0] != "_" and n not in EACH_BACKENDS_OWN} == {}
    assert all(len({*map(backend, places)}) == len(places) for places in shared.values())


def backend(place: str) -> str:
    return "/".join(place.split("/")[:2])


def test_helpers_of_kernels_take_few_arguments() -> None:
    files = sorted((BACKENDS / "triton").rglob("*.py"))
    nodes = [(p, n) for p in files for n in ast.walk(ast.parse(p.read_text(encoding="utf-8")))]
    kernels = {launched(node) for _, node in nodes} - {""}
    assert {"pack", "convolve", "finish", "merge"} <= kernels, "what is launched looks otherwise"
    long = [
        f"{path.name}: {node.name} takes {len(node.args.args)}"
        for path, node in nodes
        if isinstance(node, ast.FunctionDef)
        and len(node.args.args) > MOST_ARGUMENTS
        and node.name not in kernels
    ]
    assert long == []
