"""The documents are true: their code runs, their links lead somewhere, their lists are complete."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from graphlib import TopologicalSorter
from io import StringIO
from pathlib import Path

import pytest

import transfuse
from transfuse.rewrite import REWRITES

ROOT = Path(__file__).parents[1]
PACKAGE = Path(transfuse.__file__).parent
MATHS, DESIGN = ROOT / "docs/maths.md", ROOT / "docs/design.md"
NOT_OURS = {"build", "dist", "out"}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def documents() -> Iterator[Path]:
    """Every Markdown file of the project."""
    yield from sorted(ROOT.glob("*.md"))
    for folder in sorted(ROOT.iterdir()):
        if folder.is_dir() and folder.name not in NOT_OURS and not folder.name.startswith("."):
            yield from sorted(folder.rglob("*.md"))


def fences(text: str) -> list[tuple[str, int, str]]:
    """The fenced blocks: language, line of the fence, content."""
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(m[1], text.count("\n", 0, m.start()) + 1, m[2]) for m in found]


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level or above."""
    level = heading.partition(" ")[0]
    found = re.search(
        rf"^{re.escape(heading)}$\n(.*?)(?=^#{{1,{len(level)}}} |\Z)",
        text,
        re.MULTILINE | re.DOTALL,
    )
    assert found, f"no section {heading!r}"
    return found[1]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


DOCUMENTS = list(documents())
WITH = {
    language: [d for d in DOCUMENTS if any(f[0] == language for f in fences(d.read_text("utf-8")))]
    for language in ("python", "console")
}


COMPILED = ROOT / "docs/tutorials/model.md"
"""A document that compiles a model: it takes its time."""
PYTHON = [
    pytest.param(each, marks=pytest.mark.long if each == COMPILED else ())
    for each in WITH["python"]
]


# torch's export warns of what torch has deprecated, in torch's own code.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_python_blocks_run(path: Path) -> None:
    """In order, in one namespace. Blocks that are not meant to run are marked ``py``.

    A block marked ``output`` is what the one above it prints.
    """
    namespace: dict[str, object] = {"__name__": "document"}
    printed = StringIO()
    for language, line, code in fences(path.read_text("utf-8")):
        if language == "python":
            printed = StringIO()
            with redirect_stdout(printed):
                # As many empty lines before it as in the document, so that a traceback fits.
                exec(compile("\n" * line + code, str(path), "exec"), namespace)
        elif language == "output":
            assert printed.getvalue() == code, f"{name(path)}:{line}"


@pytest.mark.parametrize("path", WITH["console"], ids=name)
def test_console_blocks_show_what_is_printed(path: Path) -> None:
    """Every line shown is printed by the command above it, in this order; lines may be left out."""
    for language, at, shown in fences(path.read_text("utf-8")):
        if language != "console":
            continue
        command, *lines = shown.splitlines()
        assert command.startswith("$ transfuse "), f"{name(path)}:{at}"
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(command.removeprefix("$ "))],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
            encoding="utf-8",
        )
        assert done.returncode == 0, done.stderr
        printed = iter([line.rstrip() for line in done.stdout.splitlines()])
        for number, line in enumerate(lines, at + 2):
            assert line in printed, f"{name(path)}:{number}: {command} does not print {line!r} here"


def anchors(text: str) -> set[str]:
    """The headings of a document as links name them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_resolve(path: Path) -> None:
    text = path.read_text("utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(text))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), f"{name(path)} links to {link}"
        if anchor:
            assert anchor in anchors(target.read_text("utf-8")), f"{name(path)} links to {link}"


def test_every_rewrite_has_its_proof() -> None:
    chapter = section(MATHS.read_text("utf-8"), "## Rewrites")
    headings = re.findall(r"^### (.+)$", prose(chapter), re.MULTILINE)
    assert headings == [each.name for each in REWRITES]
    for each in REWRITES:
        words = " ".join(section(chapter, f"### {each.name}").split())
        for part in ("**Statement.**", "**Conditions.**", "**Proof.**", each.assumes):
            assert part in words, f"{each.name} lacks {part!r}"
        assert re.search(r"\*(Bit for bit|Real)\.?\*", words), f"{each.name}: equal in which sense?"


def test_every_module_is_named() -> None:
    """A path that ends in a slash names every module in its folder."""
    rooms = section(DESIGN.read_text("utf-8"), "## Room by room")
    cells = re.findall(r"^\| (`.+?) \|", rooms, re.MULTILINE)
    named = [path for cell in cells for path in re.findall(r"`([^`]+)`", cell)]
    assert not [path for path in named if not (PACKAGE / path).exists()]
    modules = [path.relative_to(PACKAGE).as_posix() for path in SOURCES]
    folders = tuple(path for path in named if path.endswith("/"))
    assert not [m for m in modules if m not in named and not m.startswith(folders)]


def module(path: Path) -> str:
    """A source file as imports name it, without the leading ``transfuse``."""
    *folders, stem = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(folders if folders and stem == "__init__" else [*folders, stem])


MODULES = {module(path): path for path in SOURCES}


def imports(path: Path) -> set[str]:
    """The modules of transfuse that a file imports, wherever in the file it does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}:{node.lineno} is a relative import"
            names |= {f"{node.module}.{each.name}" for each in node.names}
    return {_module_of(each) for each in names if each.split(".")[0] == "transfuse"}


def _module_of(imported: str) -> str:
    """``transfuse.stages.base.Env`` is in ``stages.base``."""
    parts = imported.split(".")[1:]
    while parts and ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts) or "__init__"


def test_imports_point_one_way() -> None:
    """From each line of the block in docs/design.md to the lines above it."""
    chapter = section(DESIGN.read_text("utf-8"), "## Path of data, and what may import what")
    block = next(content for language, _, content in fences(chapter) if language == "text")
    layers = {part: i for i, line in enumerate(block.splitlines()) for part in line.split()}
    tops = {each.split(".")[0] for each in MODULES}
    assert tops == layers.keys(), "docs/design.md gives every module and package its line"
    for importer, path in MODULES.items():
        here = importer.split(".")[0]
        for imported in imports(path):
            there = imported.split(".")[0]
            assert here == there or layers[there] < layers[here], f"{importer} imports {imported}"


def test_imports_have_no_cycle() -> None:
    """Also within a package, where its ``__init__`` only gathers what its modules hold."""
    order = TopologicalSorter({each: imports(path) - {each} for each, path in MODULES.items()})
    order.prepare()  # raises CycleError, which names the modules of the cycle


def kept() -> Iterator[str]:
    """What modules keep from call to call: functions with a cache, private dictionaries."""
    for path in SOURCES:
        where = path.relative_to(PACKAGE).with_suffix("").as_posix().removesuffix("/__init__")
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                decorators = {ast.unparse(each).partition("(")[0] for each in node.decorator_list}
                if decorators & {"cache", "lru_cache"}:
                    yield f"{where}.{node.name}"
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                value, key = ast.unparse(node.value), ast.unparse(node.target)
                if key.startswith("_") and (value == "{}" or value.startswith("Weak")):
                    yield f"{where}.{key}"


def test_what_is_kept_is_listed() -> None:
    listed = section(DESIGN.read_text("utf-8"), "## What is kept from call to call")
    named = set(re.findall(r"`([\w/]+\.\w+)`", listed))
    named |= {"backends/cpu._routed", "backends/triton._routed"}  # told together
    # No values are kept in these: a mend, a module, threads under way.
    named |= {"backends/triton/versions.mend_interpreter", "backends/triton._calls"}
    named |= {"dispatch._explained"}
    assert named == set(kept())
