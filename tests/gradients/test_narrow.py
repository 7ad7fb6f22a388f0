"""The part of an expression that all gradients pass through."""

import pytest
import torch

from transfuse.maths.expr import parse
from transfuse.maths.primitives import InTorch, derivative
from transfuse.reverse.narrow import PART, by_part, narrowest, replaced

SOUGHT = ("x", "m", "w", "b")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("g * tanh((x - m) * w + b)", "(x - m) * w + b"),
        ("g * ((x - m) / w)", "(x - m) / w"),
        ("g * exp((x - m) * rsqrt(v) * w) / v", "(x - m) * rsqrt(v) * w"),
        ("g * where(x * rsqrt(v) * w <= 1, 0, x * rsqrt(v) * w)", "x * rsqrt(v) * w"),
        ("g * (x * sigmoid(x))", None),  # a name
        ("(x - m) * w + b", None),  # the whole
        ("g * where(x * w <= b, b, x * w)", "where(x * w <= b, b, x * w)"),
        # Of a branch that is not taken nothing infinite may come.
        ("g * where(sqrt(x * w) <= 1, 0, sqrt(x * w))", "x * w"),
        ("g * where(sqrt(x) * w <= 1, 0, sqrt(x) * w)", None),
        ("g * where(x / w <= 1, 0, x / w)", None),
    ],
)
def test_the_least_part(text: str, part: str | None) -> None:
    expr = parse(text)
    sought = [name for name in SOUGHT if name in expr.names]
    found = narrowest(expr, sought, ("v",))
    assert found is (None if part is None else parse(part))
    if found is None:
        return
    assert not set(replaced(expr, found, PART).names) & set(sought)
    values = {name: torch.rand(9, dtype=torch.float64) + 0.5 for name in expr.names}
    for name in sought:
        whole = InTorch(derivative(expr, name))(values, values["x"])
        apart = InTorch(by_part(expr, found) * derivative(found, name))(values, values["x"])
        torch.testing.assert_close(apart, whole, rtol=1e-13, atol=0)
