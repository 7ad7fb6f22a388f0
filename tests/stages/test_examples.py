"""The examples in the docstrings of stages run. Which sections they have: tests/test_docstrings."""

import doctest

import pytest
import torch

import transfuse
from transfuse import Chain, stages

NAMES = [name for name in stages.__all__ if ">>>" in (getattr(stages, name).__doc__ or "")]


@pytest.mark.parametrize("name", NAMES)
def test_example(name: str) -> None:
    makers = {each: getattr(stages, each) for each in stages.__all__}
    x, w = torch.randn(2, 4, 5, 5), torch.randn(4, 8, 3, 3)
    known = {**makers, "torch": torch, "conv_transpose": transfuse.conv_transpose, "Chain": Chain}
    text = getattr(stages, name).__doc__
    found = doctest.DocTestParser().get_doctest(text, {**known, "x": x, "w": w}, name, None, None)
    assert found.examples
    assert doctest.DocTestRunner(verbose=False).run(found).failed == 0
