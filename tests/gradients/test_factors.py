"""Products taken apart: what varies along some axes, and what does not."""

import pytest
import torch

from transfuse.maths.expr import parse
from transfuse.maths.primitives import InTorch
from transfuse.reverse.factors import factored, gathered

NAMES = ("g", "x", "s", "w")
"""The first two vary."""


@pytest.mark.parametrize(
    ("text", "inner"),
    [
        ("g * w", "g"),
        ("-(g * (x - s)) * w / s", "g * (x - s)"),
        ("w * (x - s) * g", "g * (x - s)"),
        ("g / (x * s)", "g / x"),
        ("g / (x / s) / w", "g / x"),
        ("s / x * (w / g)", "1.0 / (g * x)"),
        ("g + s", "g + s"),
        ("exp(x - s) * g / s * w", "exp(x - s) * g"),
        ("-x", "x"),
    ],
)
def test_a_product_apart(text: str, inner: str) -> None:
    expr = parse(text)
    outer, found = factored(expr, lambda name: name in ("g", "x"))
    assert found is parse(inner)
    assert not {"g", "x"} & set(outer.names)
    values = {name: torch.rand(9, dtype=torch.float64) + 0.5 for name in NAMES}
    whole, one, other = (InTorch(each)(values, values["g"]) for each in (expr, outer, found))
    torch.testing.assert_close(one * other, whole, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("g * s * w + w / s", "s * w * g + w / s"),
        ("w * (s * (x - s + (x - s))) - -g * w", "w * (s * 2.0) * (x - s) - -1.0 * w * g"),
        ("x - s + (x - s)", "2.0 * (x - s)"),
        ("where(g < 0.0, x * s * w, g)", "where(g < 0.0, x * s * w, g)"),
    ],
)
def test_what_does_not_vary_is_one_factor_of_each_term(text: str, found: str) -> None:
    expr = parse(text)
    assert str(gathered(expr, lambda name: name in ("g", "x"))) == found
    values = {name: torch.rand(9, dtype=torch.float64) + 0.5 for name in NAMES}
    one, other = (InTorch(each)(values, values["g"]) for each in (expr, parse(found)))
    torch.testing.assert_close(one, other, rtol=1e-13, atol=0)
