"""The site of the documents: built without a warning, with every public name, of one host."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.test_docstrings import PUBLIC
from transfuse.bench.models import MODELS

ROOT = Path(__file__).parents[1]
pytest.importorskip("mkdocs", reason="mkdocs is not installed; pip install 'transfuse[docs]'")


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_public_name(hooks: ModuleType) -> None:
    pages = {name for name in PUBLIC if isinstance(PUBLIC[name], ModuleType)}
    assert hooks.PLACES.keys() == PUBLIC.keys() - pages


def test_the_reference_begins_with_what_a_newcomer_calls(hooks: ModuleType) -> None:
    names = list(hooks.public("functions"))
    first = ["fuse", "unfuse", "explain", "conv_transpose", "conv_transpose1d"]
    assert names[:5] == [f"transfuse.{name}" for name in first]
    kinds = [isinstance(value, type) for value in hooks.public("functions").values()]
    assert kinds == sorted(kinds), "functions before classes"
    assert kinds[-1]


def test_the_gallery_has_every_model(hooks: ModuleType) -> None:
    page = hooks.gallery()
    for name, model in MODELS.items():
        assert f"| [{model.title}](#{name}) | `{name}` | {model.convolutions} |" in page
        assert f"## {model.title} {{ #{name} }}" in page
    assert "class Generator(nn.Module):" in page


def test_a_docstring_becomes_markdown(hooks: ModuleType) -> None:
    text = """A link, :func:`transfuse.conv_transpose`, code, :class:`Other`.

.. math::
    y = x_1

Args:
    x: an input
        of two lines
    y: another

Example::

    >>> 1 + 1
    2
"""
    before = len(hooks.FORMULAS)
    link = "[`transfuse.conv_transpose`](functions.md#transfuse.conv_transpose)"
    found = hooks.body(text)
    assert found.split("\n\n")[0] == f"A link, {link}, code, `Other`."
    assert "- `x`: an input of two lines\n- `y`: another" in found
    assert "```pycon\n>>> 1 + 1\n2\n```" in found
    assert f"\ue000{before}\ue001" in found
    assert "<msub><mi>x</mi><mn>1</mn></msub>" in hooks.FORMULAS[before]


def test_signatures_are_written_as_they_are_called(hooks: ModuleType) -> None:
    def short(x: int, *, y: str = "a") -> None: ...

    assert hooks.signature("short", short) == "short(x: int, *, y: str = 'a') -> None"
    long = hooks.signature("conv_transpose", PUBLIC["transfuse.conv_transpose"])
    assert long.startswith("conv_transpose(\n    x: Tensor,\n")
    assert "\n    *,\n" in long
    assert long.endswith("\n) -> Tensor")
    assert hooks.signature("unfuse", PUBLIC["transfuse.unfuse"]) == "unfuse(model: M) -> M"


class Loaded(HTMLParser):
    """What a page makes a browser fetch, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.fetched.append(given.get("src") or "")
        if tag == "link" and given.get("rel") in ("stylesheet", "preconnect", "icon", "preload"):
            self.fetched.append(given.get("href") or "")


def pages(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in pages(part)]  # type: ignore[union-attr]


@pytest.mark.long
def test_the_site_builds_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "-f",
            ROOT / "mkdocs.yml",
            "-d",
            tmp_path,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert built.returncode == 0, built.stderr
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    assert made == {page.replace(".md", ".html") for page in pages(nav)} | {"404.html"}
    for name in made:
        text = (tmp_path / name).read_text("utf-8")
        elsewhere = [each for each in Loaded(text).fetched if re.match(r"(https?:)?//", each)]
        assert elsewhere == [], name
        assert not re.search(r"\.\. math::|:math:|[\ue000\ue001]", text), name
    styles = "".join(path.read_text("utf-8") for path in tmp_path.rglob("*.css"))
    assert not re.search(r"url\(.?(https?:)?//|@import", styles)
    for name, page in (("conv_transpose", "functions"), ("stages.relu", "stages")):
        assert f'id="transfuse.{name}"' in (tmp_path / f"reference/{page}.html").read_text("utf-8")
