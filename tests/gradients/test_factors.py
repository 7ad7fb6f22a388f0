"""Products taken apart: what varies along some axes, and what does not."""

import pytest
import torch

from transfuse.maths.expr import parse
from transfuse.maths.primitives import InTorch
from transfuse.reverse.factors import factored

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
