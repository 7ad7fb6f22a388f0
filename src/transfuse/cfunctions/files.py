"""The files of C and C++ that are written from declarations: ``make generate``."""

import re
from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap
from typing import Any

from transfuse.backends.cpu.library import ELEMENTS
from transfuse.cfunctions.function import CFunction
from transfuse.operators import OPERATORS, Operator
from transfuse.plan import machine

WIDTH = 100
SOURCES = Path(__file__).parents[1] / "backends/cpu/csrc"


def files(operators: Iterable[Operator] = tuple(OPERATORS.values())) -> dict[str, str]:
    """The text of every file by its name, for these operators."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"macro": macro, "lines": lines}
    values: dict[str, Any] = {
        "functions": [CFunction(each) for each in operators],
        "machine": machine("cpu"),
        "elements": ELEMENTS,
    }
    names = ("problems.cpp", "transfuse.h", "rates.h")
    return {name: environment.get_template(f"{name}.j2").render(values) for name in names}


def write(operators: Iterable[Operator], folder: Path) -> None:
    """Write the files of these operators into a folder; what stays the same is not built anew."""
    for name, text in files(operators).items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, encoding="utf-8")


def macro(function: CFunction) -> str:
    """The macro of a function's prototype, for an ending of its name and an element type."""
    name = f"#define TRANSFUSE_{function.name.upper()}(suffix, element)"
    start = f"    int transfuse_{function.name}_##suffix("
    # A parameter's words stay together: no line breaks between them.
    parameters = ", ".join(each.replace(" ", "\0") for each in function.parameters) + ")"
    rest = wrap(parameters, WIDTH - 2, initial_indent=" " * 8, subsequent_indent=" " * 8)
    all_lines = [name, start, *[line.replace("\0", " ") for line in rest]]
    return "\n".join([line.ljust(WIDTH - 1) + "\\" for line in all_lines[:-1]] + all_lines[-1:])


def lines(statement: str, indent: int = 4) -> str:
    """A statement on as few lines as it fits; what stands in the innermost brackets stays whole."""
    together = re.sub(r"[({][^(){}]*[)}]", lambda found: found[0].replace(" ", "\0"), statement)
    first, *rest = together.split("\n")
    found = _wrapped(first, indent)
    for each in rest:  # a list, an entry on each line
        found += _wrapped(each, indent if each.startswith("}") else indent + 4)
    return "\n".join(found).replace("\0", " ")


def _wrapped(text: str, indent: int) -> list[str]:
    return wrap(
        text,
        WIDTH + 10,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
