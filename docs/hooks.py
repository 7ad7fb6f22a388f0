"""What mkdocs makes beside the pages in this folder: the reference, models, pages of the root.

The reference is asked of the objects themselves, as a user has them: many public names are made
when the package is imported (operators, stages), which no reading of the sources would find.
Formulas become MathML, which a browser draws by itself: nothing is fetched.
"""

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent, indent
from types import GenericAlias, ModuleType, UnionType
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import transfuse
from transfuse import maths, nn, stages
from transfuse.bench.models import MODELS

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def _own(value: Any, module: ModuleType) -> bool:
    return getattr(value, "__module__", "") == module.__name__


REFERENCE = {
    "functions": (transfuse, transfuse.__all__),
    "nn": (nn, nn.__all__),
    "init": (nn.init, nn.init.__all__),
    "stages": (stages, stages.__all__),
    "maths": (maths, [n for n, v in vars(maths).items() if _own(v, maths)]),
}
"""The pages of the reference: a module and its public names."""
FIRST = ("fuse", "unfuse", "explain")
"""What a page begins with; then what is called, then classes."""
SECTION = re.compile(r"(Args|Attributes|Shape|Returns|Raises|Example|Examples|Note)::?$")
DISPLAYED = re.compile(r" *\.\. math::(.*)")
ROLE = re.compile(r":(\w+):`([^`]+)`")
MODULES = re.compile(r"\b(torch|typing|collections\.abc|transfuse(?:\.\w+)*)\.|~(?=\w)")
"""Left out of signatures: where types come from, and the sign before a type variable."""
MODELS_TOLD = (
    "Published models that have transposed convolutions, written as their users write them. "
    "`transfuse bench --model NAME` times one beside torch, as it is and compiled; "
    "`--set models` all of them."
)
FORMULAS: list[str] = []
"""MathML, by the number that stands for it until a page is HTML."""


def public(page: str) -> dict[str, Any]:
    """The documented names of a page."""
    module, names = REFERENCE[page]
    found = {name: getattr(module, name) for name in names}
    aliases = (GenericAlias, UnionType, ModuleType)  # of types, and what has a page of its own
    named = {n: v for n, v in found.items() if not isinstance(v, aliases)}
    first = [name for name in FIRST if name in named]
    rest = sorted(named.keys() - first, key=lambda name: (isinstance(named[name], type), name))
    return {f"{module.__name__}.{name}": named[name] for name in [*first, *rest]}


PLACES = {name: page for page in REFERENCE for name in public(page)}


def formula(latex: str, display: str) -> str:
    """A sign that stands for a formula."""
    FORMULAS.append(convert(latex.strip().replace(r"\_", "_"), display=display))
    return f"\ue000{len(FORMULAS) - 1}\ue001"


def words(text: str) -> str:
    """Roles as links, code and formulas."""

    def shown(found: re.Match[str]) -> str:
        role, what = found.groups()
        if role == "math":
            return formula(what, "inline")
        name = what.lstrip("~")
        link = f"[`{name}`]({PLACES[name]}.md#{name})" if name in PLACES else f"`{name}`"
        return link

    return ROLE.sub(shown, text)


def body(text: str) -> str:
    """A docstring, or part of one, as Markdown."""
    whole = ROLE.sub(lambda role: " ".join(role[0].split()), text)  # some go over two lines
    lines, found = whole.splitlines(), []
    at = 0
    while at < len(lines):
        line = lines[at]
        depth = len(line) - len(line.lstrip())
        heading, displayed = SECTION.match(line), DISPLAYED.match(line)
        if not (heading or displayed):
            found.append(words(line))
            at += 1
            continue
        block = []
        at += 1
        while at < len(lines) and (
            not lines[at].strip() or lines[at].startswith(" " * (depth + 1))
        ):
            block.append(lines[at])
            at += 1
        inside = dedent("\n".join(block)).strip("\n")
        if displayed:
            latex = f"{displayed[1]} {inside}".replace("\n", " ")
            found += ["", " " * 2 * depth + formula(latex, "block"), ""]
        elif heading:
            found += ["", f"**{heading[1]}**", "", section(heading[1], inside), ""]
    return "\n".join(found)


def section(title: str, inside: str) -> str:
    if title.startswith("Example"):
        return f"```pycon\n{inside}\n```"
    if title in ("Args", "Attributes"):
        items = re.split(r"^(?=\S)", inside, flags=re.MULTILINE)[1:]
        pairs = (item.partition(": ") for item in items)
        return "\n".join(f"- `{name}`: {words(' '.join(text.split()))}" for name, _, text in pairs)
    return body(inside)


def signature(name: str, value: Any) -> str:
    """As it is called, one argument a line where one line does not hold all."""
    try:
        found = inspect.signature(value, eval_str=True)
    except (NameError, TypeError, ValueError):  # of a class that is called with anything
        return name
    line = MODULES.sub("", f"{name}{found}")
    if len(line) <= 88:
        return line
    given = list(found.parameters.values())
    arguments = [MODULES.sub("", str(each)) for each in given]
    by_name = [at for at, each in enumerate(given) if each.kind is each.KEYWORD_ONLY]
    if by_name and not any(each.kind is each.VAR_POSITIONAL for each in given):
        arguments.insert(by_name[0], "*")
    _, arrow, result = line.rpartition(" -> ")
    lines = indent(",\n".join(arguments), "    ")
    return f"{name}(\n{lines},\n){arrow}{result if arrow else ''}"


def entry(name: str, value: Any) -> str:
    short = name.rpartition(".")[2]
    parts = [
        f"## {short} {{ #{name} }}",
        f"```python\n{signature(short, value)}\n```",
        body(inspect.getdoc(value) or ""),
    ]
    if isinstance(value, type):
        methods = [method(n, v) for n, v in vars(value).items() if not n.startswith("_")]
        lines = "\n".join(filter(None, methods))
        parts += ["**Methods and properties**", lines] if lines else []
    return "\n\n".join(part for part in parts if part)


def method(name: str, value: Any) -> str:
    """One line for a method or a property that has something to say."""
    text = inspect.getdoc(value) if callable(value) or isinstance(value, property) else None
    if not text or type(value) in (int, str, float):
        return ""
    first = " ".join(text.partition("\n\n")[0].split())
    return f"- `.{name}{'' if isinstance(value, property) else '()'}`: {words(first)}"


def reference(page: str) -> str:
    module, _ = REFERENCE[page]
    title = f"# `{module.__name__}`\n\n{body(inspect.getdoc(module) or '').partition('>>>')[0]}"
    entries = (entry(name, value) for name, value in public(page).items())
    return "\n\n".join([title, *entries]) + "\n"


def gallery() -> str:
    """The models that come with us, as their registry has them."""
    table = [
        "| model | name | transposed convolutions | inputs on a CPU | on a GPU |",
        "|---|---|---|---|---|",
    ]
    table += [
        f"| [{model.title}](#{name}) | `{name}` | {model.convolutions} | "
        f"{_sizes(model.cpu)} | {_sizes(model.gpu)} |"
        for name, model in MODELS.items()
    ]
    entries = []
    for name, model in MODELS.items():
        source = inspect.getmodule(model.make)
        told = " ".join((inspect.getdoc(source) or "").split())
        code = inspect.getsource(source).partition('"""\n\n')[2]
        entries += [f"## {model.title} {{ #{name} }}", told, f"```python\n{code.strip()}\n```"]
    return "\n\n".join(["# Models", MODELS_TOLD, "\n".join(table), *entries]) + "\n"


def _sizes(shapes: Iterable[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "gallery.md", content=gallery()))
    for page in REFERENCE:
        files.append(File.generated(config, f"reference/{page}.md", content=reference(page)))
    for source, page in ROOT_PAGES.items():
        text = (ROOT / source).read_text("utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to pages of the root lead to where they stand here."""
    for source, to in ROOT_PAGES.items():
        markdown = markdown.replace(f"](../../{source}", f"](../{to}")
        markdown = markdown.replace(f"](../{source}", f"]({to}")
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return re.sub("\ue000(\\d+)\ue001", lambda found: FORMULAS[int(found[1])], html)
