"""Stages have torch's names, and their parameters torch's names, order and defaults."""

import inspect
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from transfuse import stages

TORCHS_OWN = {"input", "x", "inplace", "out", "dtype", "return_indices", "_stacklevel"}
"""What a stage has no use for: its input is the running value, its result of the input's type."""
TORCHS_OWN |= {"alpha of add", "alpha of sub", "rounding_mode of div"}
OTHERWISE = {
    "cat": "(skip, first=False, channels=None)",  # the running value is one of the two
    "clamp": "(min=-inf, max=inf)",  # None, torch's default, stands for these
    "flatten": "(start_dim=1, end_dim=-1)",  # samples stay apart
    "sum": "(dim, keepdim=False)",  # over what is said each time, samples never
    "mean": "(dim, keepdim=False)",
}
ADDED = {"scale", "gelu_erf", "gelu_tanh", "pointwise", "conv_transpose"}
"""Names that torch does not have."""
MADE = {
    name: each
    for name in stages.__all__
    if callable(each := getattr(stages, name)) and name.islower() and name not in ADDED
}


def of_torch(name: str) -> list[tuple[str, Any]]:
    """The parameters of torch's function of a name, each with its default or nothing."""
    rooms = [(F, f"{name}2d_with_indices"), (F, name), (F, f"{name}2d"), (torch, name)]
    function = next(getattr(room, each) for room, each in rooms if hasattr(room, each))
    try:
        text = str(inspect.signature(function))
    except ValueError:  # written in C++: its docstring begins with the signature
        text = (function.__doc__ or "").strip().partition("\n")[0]
    inner = re.sub(r"\).*", "", text.partition("(")[2])
    inner = re.sub(r": (Optional\[[^=]*\]|[^,=]*)", "", inner)
    parts = [part.strip() for part in inner.split(",")]
    named = [re.split(r"\s*=\s*", part) for part in parts if part not in ("", "*")]
    owned = [each for each in named if not {each[0], f"{each[0]} of {name}"} & TORCHS_OWN]
    return [(key, eval(rest[0]) if rest else inspect.Parameter.empty) for key, *rest in owned]


@pytest.mark.parametrize("name", sorted(MADE.keys() - OTHERWISE.keys()))
def test_parameters_are_torchs(name: str) -> None:
    ours = [(p.name, p.default) for p in inspect.signature(MADE[name]).parameters.values()]
    theirs = of_torch(name)
    assert [key for key, _ in ours] == [key for key, _ in theirs]
    for (key, default), (_, wanted) in zip(ours, theirs, strict=True):
        if wanted is not None and wanted is not inspect.Parameter.empty:
            assert default == wanted, key


@pytest.mark.parametrize("name", OTHERWISE)
def test_parameters_that_differ_are_these(name: str) -> None:
    signature = inspect.signature(MADE[name])
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    assert str(inspect.Signature(plain)) == OTHERWISE[name]
