"""Every public name has a docstring as torch's own: equation, Args, Shape, Returns, Example.

The examples of stages run in tests/stages/test_examples.py, all others here.
"""

import doctest
import inspect
import re
from enum import Enum
from types import FunctionType, GenericAlias, ModuleType, UnionType
from typing import Any

import pytest
import torch

import transfuse
from transfuse import maths, nn, stages
from transfuse.maths.expr import name as symbol
from transfuse.operators import Operator
from transfuse.stages import Function

MATHS = [
    name for name, each in vars(maths).items() if getattr(each, "__module__", "") == maths.__name__
]
PUBLIC: dict[str, Any] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module, names in (
        (transfuse, transfuse.__all__),
        (stages, stages.__all__),
        (maths, MATHS),
        (nn, nn.__all__),
        (nn.init, nn.init.__all__),
    )
    for name in names
    # Python gives no docstring of its own to a name for types.
    if not isinstance(getattr(module, name), GenericAlias | UnionType)
}
PUBLIC |= {maths.__name__: maths}
MADE = (FunctionType, Function, Operator)
CALLED = [name for name, each in PUBLIC.items() if isinstance(each, MADE)]
CLASSES = [name for name, each in PUBLIC.items() if isinstance(each, type)]
LOOK_UP = tuple(f"transfuse.{n}" for n in ("explain", "operator", "solution", "fuse", "unfuse"))
"""Functions that compute no tensor: there is no equation to give, and no shape."""


def documented(name: str, *headings: str) -> set[str]:
    """The names that stand under one of the headings of a docstring, each before a colon."""
    text = inspect.getdoc(PUBLIC[name]) or ""
    found = re.search(rf"^({'|'.join(headings)}):\n((?:    .*\n|\n)*)", text + "\n", re.MULTILINE)
    if not found:
        return set()
    lines = re.findall(r"^    (\w+(?:, \w+)*): ", found[2], re.MULTILINE)
    return {each for line in lines for each in line.split(", ")}


def test_the_lists_hold_what_they_should() -> None:
    rest = {name for name in PUBLIC if name not in (*CALLED, *CLASSES)}
    assert {name for name in rest if not isinstance(PUBLIC[name], ModuleType)} == set()
    assert len(CALLED) > 80
    assert "transfuse.maths.erf" in CALLED
    assert "transfuse.stages.relu" in CALLED
    assert "transfuse.Chain" in CLASSES


@pytest.mark.parametrize("name", PUBLIC)
def test_has_a_docstring_of_its_own(name: str) -> None:
    text = PUBLIC[name].__doc__
    assert text
    assert text.strip().partition("\n")[0]


@pytest.mark.parametrize("name", CALLED)
def test_functions_have_every_section(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert documented(name, "Args") == set(inspect.signature(PUBLIC[name]).parameters)
    assert re.search(r"^Returns:\n    \S", text, re.MULTILINE)
    assert re.search(r"^Example::\n\n    >>> ", text, re.MULTILINE)
    if name not in LOOK_UP:
        assert re.search(r"^\.\. math::|^``y = ", text, re.MULTILINE)
        if not name.startswith("transfuse.maths."):  # an expression has no shape
            assert re.search(r"^Shape:\n    - x: ", text, re.MULTILINE)


@pytest.mark.parametrize("name", CLASSES)
def test_classes_name_what_they_take(name: str) -> None:
    kind = PUBLIC[name]
    if not issubclass(kind, Enum | Exception):  # they take what every enum and exception takes
        named = documented(name, "Args", "Attributes")
        assert named == set(inspect.signature(kind).parameters)


EXAMPLES = [
    name
    for name, each in PUBLIC.items()
    if ">>>" in (each.__doc__ or "") and not name.startswith("transfuse.stages.")
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    known = {each: getattr(stages, each) for each in stages.__all__}
    known |= {each: getattr(transfuse, each) for each in transfuse.__all__}
    known |= {"torch": torch, "transfuse": transfuse}
    if name.startswith("transfuse.maths."):
        known |= {each: getattr(maths, each) for each in MATHS} | {"x": symbol("x")}
    found = doctest.DocTestParser().get_doctest(PUBLIC[name].__doc__, known, name, None, None)
    assert found.examples
    assert doctest.DocTestRunner(verbose=False).run(found).failed == 0
