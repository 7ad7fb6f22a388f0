"""Problem documents: front matter (the signature, in YAML) and text (the maths, in Markdown).

A broken document is refused with its file, line and reason. yaml is imported on the first parse,
so that importing this module stays cheap.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from transfuse.errors import DocumentError

if TYPE_CHECKING:
    from yaml import Node

_HERE = Path(__file__).parent
_SLUG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_FIELDS = ("slug", "title", "difficulty", "author", "tags", "parameters")
_ELEMENT = "[VAR]"
# Scalar types of C, and what they are in Python.
_SCALARS = {"size_t": "int", "int": "int", "int64_t": "int", "float": "float", "double": "float"}


class UnknownSlugError(KeyError):
    """No shipped document has this slug."""

    def __str__(self) -> str:  # KeyError would print the message quoted
        return str(self.args[0])


@dataclass(frozen=True)
class Parameter:
    """One parameter of a signature: a pointer to elements, or a scalar."""

    name: str
    type: str
    pointer: bool
    const: bool


@dataclass(frozen=True)
class Document:
    """One problem: who it is, what it is called with, and what it means."""

    slug: str
    title: str
    difficulty: str
    author: str
    tags: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    body: str

    @property
    def pointers(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.pointer)

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.pointers if p.const)

    @property
    def output(self) -> Parameter:
        return next(p for p in self.pointers if not p.const)

    @property
    def scalars(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if not p.pointer)

    def c_signature(self, element: str = _ELEMENT) -> str:
        """The C prototype, pointing to `element`, one parameter per line."""
        lines = [
            f"{'const ' if p.const else ''}{element + '*' if p.pointer else p.type} {p.name}"
            for p in self.parameters
        ]
        return f"void {self.slug.replace('-', '_')}(\n    " + ",\n    ".join(lines) + "\n);"

    def python_signature(self) -> str:
        """The Python signature, one parameter per line."""
        lines = [
            f"{p.name}: {'Tensor' if p.pointer else _SCALARS[p.type]}" for p in self.parameters
        ]
        return "def solution(\n    " + ",\n    ".join(lines) + ",\n) -> None"


@cache
def slugs() -> tuple[str, ...]:
    """The slugs of the shipped documents, sorted."""
    return tuple(sorted(path.stem for path in _HERE.glob("*.md")))


@cache
def document(slug: str) -> Document:
    """The shipped document of this slug."""
    if slug in slugs():
        return load(_HERE / f"{slug}.md")
    raise unknown(slug, {known: known for known in slugs()})


def unknown(slug: str, known: Mapping[str, str]) -> UnknownSlugError:
    """What is said of a name that is none of these, each with the line that lists it."""
    from difflib import get_close_matches

    near = get_close_matches(slug, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    lines = "".join(f"\n  {line}" for line in dict.fromkeys(known.values()))
    return UnknownSlugError(f"no operator is called {slug!r}{hint}\nknown operators:{lines}")


def load(source: Path) -> Document:
    """Read one document; its slug must be the stem of its file."""
    try:
        text = source.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DocumentError(f"{source}:{line}: not UTF-8") from error
    return _Parser(str(source)).document(text, stem=source.stem)


def parse(text: str, name: str) -> Document:
    """Read one document from its text; errors speak of it as `name`."""
    return _Parser(name).document(text)


class _Parser:
    def __init__(self, name: str) -> None:
        self.name = name

    def fail(self, at: Node | int, reason: str) -> NoReturn:
        line = at if isinstance(at, int) else at.start_mark.line + 1
        raise DocumentError(f"{self.name}:{line}: {reason}")

    def document(self, text: str, stem: str | None = None) -> Document:
        lines = text.replace("\r\n", "\n").split("\n")
        marks = [at for at, line in enumerate(lines) if line.rstrip() == "---"]
        if marks[:1] != [0]:
            self.fail(1, "no front matter: the first line must be '---'")
        if len(marks) < 2:
            self.fail(1, "front matter is not closed by a second '---'")
        # The opening '---' stays in, so that YAML counts the lines of the file.
        front, body = lines[: marks[1]], lines[marks[1] + 1 :]

        fields = self.fields(self.compose("\n".join(front)), "front matter", _FIELDS)
        slug = self.text(fields["slug"], "slug")
        if not _SLUG.fullmatch(slug):
            self.fail(fields["slug"], f"slug {slug!r} is not lowercase words joined by dashes")
        if stem is not None and slug != stem:
            self.fail(fields["slug"], f"slug {slug!r} differs from the file name {stem!r}")
        return Document(
            slug=slug,
            title=self.text(fields["title"], "title"),
            difficulty=self.text(fields["difficulty"], "difficulty"),
            author=self.text(fields["author"], "author"),
            tags=tuple(self.text(tag, "tag") for tag in self.items(fields["tags"], "tags")),
            parameters=self.parameters(fields["parameters"]),
            body="\n".join(body).strip() + "\n",
        )

    def parameters(self, node: Node) -> tuple[Parameter, ...]:
        found: dict[str, Parameter] = {}
        output = None
        for item in self.items(node, "parameters"):
            parameter = self.parameter(item)
            if parameter.name in found:
                self.fail(item, f"parameter {parameter.name!r} is declared twice")
            if parameter.pointer and not parameter.const:
                if output is not None:
                    self.fail(item, f"two outputs: {output!r} and {parameter.name!r} are not const")
                output = parameter.name
            found[parameter.name] = parameter
        if not found:
            self.fail(node, "parameters is empty")
        if output is None:
            self.fail(node, "no output: every pointer is const")
        return tuple(found.values())

    def parameter(self, node: Node) -> Parameter:
        required = ("name", "type", "pointer")
        fields = self.fields(node, "parameter", required, optional=("const", "constant"))
        name, kind = self.text(fields["name"], "name"), self.text(fields["type"], "type")
        pointer = self.boolean(fields["pointer"], "pointer")
        if not (name.isidentifier() and name.isascii()):
            self.fail(fields["name"], f"name {name!r} is not an identifier")
        if keyword.iskeyword(name):
            self.fail(fields["name"], f"name {name!r} is a Python keyword")
        if kind != _ELEMENT and kind not in _SCALARS:
            known = ", ".join((_ELEMENT, *_SCALARS))
            self.fail(fields["type"], f"unknown type {kind!r}; known: {known}")
        if pointer and kind != _ELEMENT:
            self.fail(fields["type"], f"pointer {name!r} must be {_ELEMENT}, not {kind}")
        if not pointer and kind == _ELEMENT:
            self.fail(fields["type"], f"scalar {name!r} cannot be {_ELEMENT}")
        if "const" in fields and "constant" in fields:
            self.fail(fields["constant"], f"parameter {name!r} has both const and constant")
        const = fields.get("const", fields.get("constant"))
        return Parameter(name, kind, pointer, const is not None and self.boolean(const, "const"))

    def compose(self, text: str) -> Node:
        import yaml

        try:
            node: Node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            self.fail(line, f"invalid YAML: {error.reason}")
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            self.fail(line, f"invalid YAML: {error.problem}")
        return node

    def fields(
        self, node: Node, what: str, required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, Node]:
        from yaml import MappingNode

        if not isinstance(node, MappingNode):
            self.fail(node, f"{what} must be a mapping, not {_kind(node)}")
        found: dict[str, Node] = {}
        for key, value in node.value:
            field = self.text(key, f"field name in {what}")
            if field not in required + optional:
                self.fail(key, f"{what} has an unknown field {field!r}")
            if field in found:
                self.fail(key, f"{what} has {field!r} twice")
            found[field] = value
        for field in required:
            if field not in found:
                self.fail(node, f"{what} lacks {field!r}")
        return found

    def items(self, node: Node, what: str) -> list[Node]:
        from yaml import SequenceNode

        if not isinstance(node, SequenceNode):
            self.fail(node, f"{what} must be a list, not {_kind(node)}")
        return list(node.value)

    def text(self, node: Node, what: str) -> str:
        kind = _kind(node)
        if kind != "text":
            self.fail(node, f"{what} must be text, not {kind}")
        value = str(node.value)
        if not value.strip():
            self.fail(node, f"{what} is empty")
        return value

    def boolean(self, node: Node, what: str) -> bool:
        # By spelling, quoted or not: YAML 1.1 would also take yes, no, on and off.
        value = node.value.lower() if isinstance(node.value, str) else ""
        if value not in ("true", "false"):
            got = repr(node.value) if value else _kind(node)
            self.fail(node, f"{what} must be true or false, not {got}")
        return value == "true"


def _kind(node: Node) -> str:
    """What a YAML node holds, in words."""
    from yaml import MappingNode, SequenceNode

    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    tag = node.tag.rpartition(":")[2]
    return {"str": "text", "null": "nothing", "int": "an int"}.get(tag, f"a {tag}")
