"""The examples in the docstrings of stages run, and every stage with arguments has one."""

import doctest

import pytest
import torch

import transfuse
from transfuse import stages

NAMES = [
    name
    for name in stages.__all__
    if name.islower() and isinstance(getattr(stages, name), type(lambda: 0))
]
PARTS = ("Args:", "Shape:", "Returns:", "Example::", ".. math::")


@pytest.mark.parametrize("name", NAMES)
def test_example(name: str) -> None:
    makers = {each: getattr(stages, each) for each in stages.__all__}
    x, w = torch.randn(2, 4, 5, 5), torch.randn(4, 8, 3, 3)
    known = {**makers, "torch": torch, "conv_transpose": transfuse.conv_transpose, "x": x, "w": w}
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(stages, name), name, globs=known)
    if name not in ("gelu", "pow", "pointwise"):  # element by element: their own words say it
        assert found.examples
        assert not [part for part in PARTS if part not in (found.docstring or "")]
    assert doctest.DocTestRunner(verbose=False).run(found).failed == 0
