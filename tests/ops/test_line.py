"""A chain is its line and its numbers: both give back the very same chain, bit for bit."""

import math
import struct
from typing import Any

import pytest

from transfuse import line
from transfuse import stages as s
from transfuse.chain import Chain
from transfuse.draws import drawn
from transfuse.operators import OPERATORS
from transfuse.stages import ConvTranspose, Stage
from transfuse.stages.pointwise import Function
from transfuse.stages.text import AS_WRITTEN, parse, written


def bits(numbers: Any) -> list[bytes]:
    return [struct.pack("d", each) for each in numbers]


def round_trip(chain: Chain) -> str:
    """Chain, line, chain, line: twice the same chain and twice the same line."""
    text, numbers = line.split(chain)
    back = line.joined(text, numbers)
    assert back == Chain(*(_unfitted(stage) for stage in chain.stages))
    again, others = line.split(back)
    assert (again, bits(others)) == (text, bits(numbers))
    template, count = line.outline(text)
    assert count == len(numbers)
    assert written(template.stages) == text
    return text


def _unfitted(stage: Stage) -> Stage:
    return s.Map(stage.function, stage.arguments) if isinstance(stage, s.Map) else stage


def test_drawn_chains() -> None:
    """Whatever the vocabulary draws, a user's own function among it."""
    seen: set[str] = set()
    for seed in range(400):
        chain, _ = drawn(seed)
        seen |= {stage.name for stage in chain.stages}
        round_trip(chain)
    assert "gated" in seen
    assert len(seen) > 40


@s.pointwise
def unused(x: Any, a: Any, b: Any = 0.25) -> Any:
    """It does not read b."""
    return s.sigmoid(x) * -a + s.maximum(x, -0.0) / 3


def _named(body: Any, name: str) -> Function:
    return Function(body, name=name)


STAGES: dict[str, Stage] = {
    "a number and a tensor": unused("t", -0.0),
    "a known name with another meaning": _named(lambda x: x + 1, "relu")(),
    "a name that is none": _named(lambda x, a: x * a, "my -> gelu(2x3)")("t -> 'u'"),
    "the name of a number": s.add("inf"),
    "the name of a literal": s.scale("True"),
    "a name with a point": s.group_norm(2, "group_norm.weight", "group_norm.bias"),
    "a name with a space": s.group_norm(2, "the weight", "a\\'b"),
    "a name like an option": s.scale("stride 2x3"),
    "a power": s.pow(-3),
    "gelu": s.gelu("tanh"),
    "a pool": s.max_pool((3, 2), (2, 1), 1, (1, 2), True),
    "an eps": s.batch_norm("m", "v", "w", "b", True, 0.1 + 2**-55, 1e-5 * (1 + 2**-52)),
    "no eps": s.rms_norm("channels"),
    "zero's sign": s.lp_pool(-0.0, 2),
    "a short sum": s.sum((1, -1), keepdim=True),
}


@pytest.mark.parametrize("name", STAGES)
def test_stages(name: str) -> None:
    round_trip(Chain(ConvTranspose(2, "bias"), STAGES[name]))


@pytest.mark.parametrize(
    "number", [0.0, -0.0, math.inf, -math.inf, 5e-324, 0.1, 1 / 3, 1.7976931348623157e308]
)
def test_numbers_stand_beside_the_line(number: float) -> None:
    chain = Chain(ConvTranspose(1), s.leaky_relu(number), unused("t", number), s.clamp(0, number))
    text, numbers = line.split(chain)
    assert bits(numbers) == bits([number] * 3)
    assert "leaky_relu(numbers[0])" in text
    assert text.endswith("clamp(0, numbers[2])")
    assert line.joined(text, numbers) == chain
    assert line.split(Chain(ConvTranspose(1), s.leaky_relu(7.5)))[0] == text.split(" -> unused")[0]


def test_a_number_that_is_none() -> None:
    text, numbers = line.split(Chain(ConvTranspose(1), s.add(math.nan)))
    (found,) = line.joined(text, numbers).stages[1].arguments  # type: ignore[attr-defined]
    assert math.isnan(found)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=list(OPERATORS))
def test_operators(operator: Any) -> None:
    round_trip(operator.bound(operator.case("small")))


def test_convolutions() -> None:
    for conv in (
        ConvTranspose(3),
        ConvTranspose(1, "a b"),
        ConvTranspose(2, "bias", either_kernel=True),
        ConvTranspose(2, either_kernel=True, weight_scale=-0.1),
    ):
        assert parse(written((conv,)), AS_WRITTEN) == (conv,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("conv_transpose2d -> scale(numbers[1])", r"names numbers\[1\]"),
        ("conv_transpose2d -> scale(weight)", "weight is that of the convolution"),
        ("conv_transpose2d -> f[lambda x: x * y]", "does not say what y is"),
        ("conv_transpose2d -> f[x + 1]", "no pointwise function"),
        ("conv_transpose2d -> f[lambda x: __import__('os')]", "cannot stand in an expression"),
        ("sigmoid", "exactly one transposed convolution, not 0"),
    ],
)
def test_what_is_no_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        line.joined(text, [])


def test_the_wrong_number_of_numbers() -> None:
    with pytest.raises(ValueError, match="takes 1 numbers, but got 2"):
        line.joined("conv_transpose2d -> scale(numbers[0])", [1.0, 2.0])
