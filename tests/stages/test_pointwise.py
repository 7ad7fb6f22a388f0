"""One element at a time: the maths element by element, and what every stage states of itself."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transfuse.problem import Shape
from transfuse.stages import Kind, Stage, add, clamp, scale, sigmoid, tanh

SPECIAL = (0.0, -0.0, 1e-300, -1e-300, 1.5, -1.5, 40.0, -40.0, 1e300, -1e300)
INFINITE = (math.inf, -math.inf, math.nan)


def logistic(x: float) -> float:
    return math.exp(x) / (1 + math.exp(x)) if x < 0 else 1 / (1 + math.exp(-x))


def between(low: float, high: float) -> Callable[[float], float]:
    """Limit from below, then from above; a NaN stays."""

    def limit(x: float) -> float:
        raised = low if x < low else x
        return high if raised > high else raised

    return limit


# Stage, what it does to one element, whether it does so without any rounding of its own.
TABLE: list[tuple[Stage, Callable[[float], float], bool]] = [
    (add(0.1), lambda x: x + 0.1, True),
    (add(-3), lambda x: x - 3, True),
    (scale(0.3), lambda x: x * 0.3, True),
    (scale(-2), lambda x: x * -2, True),
    (clamp(-0.5, 1.25), between(-0.5, 1.25), True),
    (clamp(-math.inf, 0), between(-math.inf, 0), True),
    (clamp(2, -1), between(2, -1), True),
    (sigmoid(), logistic, False),
    (tanh(), math.tanh, False),
]

each_stage = pytest.mark.parametrize(
    ("stage", "f", "exact"), [pytest.param(*row, id=str(row[0])) for row in TABLE]
)


def assert_same(got: Tensor, expected: Tensor, *, exact: bool) -> None:
    # Without rounding of its own a stage agrees to the last bit; libraries differ by an ulp or two.
    rtol = 0 if exact else 4 * torch.finfo(torch.float64).eps
    torch.testing.assert_close(got, expected, rtol=rtol, atol=0, equal_nan=True)


@each_stage
def test_maths(stage: Stage, f: Callable[[float], float], exact: bool) -> None:
    random = torch.randn(89, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    x = torch.cat([random, torch.tensor([*SPECIAL, *INFINITE], dtype=torch.float64)])
    expected = torch.tensor([f(value) for value in x.tolist()], dtype=torch.float64)
    assert_same(stage.apply(x.reshape(1, 2, 3, -1), {}).flatten(), expected, exact=exact)


@each_stage
def test_nan_comes_through(stage: Stage, f: Callable[[float], float], exact: bool) -> None:
    x = torch.tensor([[[math.nan, 1.0]]])
    assert stage.apply(x, {}).isnan().tolist() == [[[True, False]]]


def test_clamp_with_its_ends_crossed_gives_the_upper_one() -> None:
    x = torch.tensor([[[-5.0, -1.0, 0.0, 2.0, 5.0]]])
    assert torch.equal(clamp(2, -1).apply(x, {}), torch.full_like(x, -1))


@pytest.mark.parametrize("stage", [add("v"), scale("v")], ids=str)
@pytest.mark.parametrize("shape", [(3,), (3, 1, 1), (1, 3, 1, 1)], ids=str)
def test_one_value_per_channel(stage: Stage, shape: tuple[int, ...]) -> None:
    x = torch.arange(24.0).reshape(2, 3, 2, 2)
    values = torch.tensor([10.0, -2.0, 0.5])
    f = torch.add if stage.name == "add" else torch.mul
    y = stage.apply(x, {"v": values.reshape(shape)})
    for channel, value in enumerate(values):
        assert torch.equal(y[:, channel], f(x[:, channel], value))


@each_stage
def test_statements(stage: Stage, f: Callable[[float], float], exact: bool) -> None:
    assert stage.kind is Kind.POINTWISE
    assert stage.exact == exact
    assert stage.operands == ()
    assert stage.shape(Shape(2, 3, (4, 5))) == Shape(2, 3, (4, 5))
    assert stage.need((2, 3), (4, 5)) == (2, 3)
    assert stage.apply(torch.zeros(1, 2, 3), {}).dtype == torch.float32


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (add("bias"), "add(bias)"),
        (add(1), "add(1)"),
        (scale(2.5), "scale(2.5)"),
        (clamp("low", 1), "clamp(low, 1)"),
        (sigmoid(), "sigmoid"),
        (tanh(), "tanh"),
    ],
)
def test_prints(stage: Stage, text: str) -> None:
    assert str(stage) == text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: add(None), "add: other must be one of int, float, Tensor, str, not NoneType"),
        (lambda: scale([2]), "scale: factor must be one of int, float, Tensor, str, not list"),
        (lambda: clamp((1, 2), 2), "clamp: min must be one of int, float, Tensor, str, not tuple"),
    ],
    ids=["add(None)", "scale([2])", "clamp((1, 2), 2)"],
)
def test_refuses_other_types(make: Callable[[], Stage], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_bind_puts_numbers_in_place_of_names() -> None:
    assert clamp("a", "b").operands == ("a", "b")
    assert clamp("a", "b").bind({"a": -1, "max": 5}) == clamp(-1, "b")
    assert scale("a").bind({"a": 2.0, "factor": 3.0}) == scale(2.0)
    assert add(3).bind({"other": 4}) == add(3)


def test_lift_puts_names_in_place_of_tensors() -> None:
    tensor, env = torch.ones(3), {}
    lifted = add(tensor).lift("add4", env)
    assert lifted == add("add4.other")
    assert env == {"add4.other": tensor}
    assert scale(2).lift("scale1", env) == scale(2)
    assert list(env) == ["add4.other"]


def test_a_tensor_must_be_lifted_first() -> None:
    with pytest.raises(TypeError, match="expected the name of a tensor in env, not Tensor"):
        add(torch.ones(2)).apply(torch.zeros(1, 2, 3), {})
