"""Every pointwise function against torch's own, with its derivative, its text and its refusals."""

import math
import pickle
from functools import partial
from inspect import Parameter
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import transfuse
from transfuse import stages
from transfuse.maths import both, either, eq, no, where
from transfuse.maths.expr import X
from transfuse.maths.expr import name as symbol
from transfuse.maths.primitives import InTorch, derivative
from transfuse.stages import Function, Map, gelu, pointwise
from transfuse.stages.text import KNOWN, parse

ARGUMENTS: dict[str, tuple[float, ...]] = {
    "add": (0.5,), "sub": (0.5,), "scale": (-1.5,), "div": (3.0,), "minimum": (0.5,),
    "maximum": (0.5,), "prelu": (0.25,), "threshold": (0.5, -2.0), "clamp": (-0.5, 1.0),
}  # fmt: skip
OTHERS = [
    *(stages.hardtanh(-2.0, 0.5), stages.leaky_relu(-0.5), stages.elu(2.0), stages.celu(0.5)),
    *(stages.softplus(2.0, 5.0), stages.hardshrink(1.0), stages.softshrink(1.0)),
    *(stages.clamp(2.0, -1.0), stages.clamp(max=0.5), stages.clamp(min=0.5)),
    *(gelu(), gelu("tanh"), *(stages.pow(n) for n in (-3, -1, 0, 1, 2, 3, 8))),
]
FUNCTIONS = {name: made for name, made in KNOWN.items() if isinstance(made, Function)}
MAPS = [made(*ARGUMENTS.get(name, ())) for name, made in FUNCTIONS.items()] + OTHERS
each_map = pytest.mark.parametrize("stage", MAPS, ids=str)

KINKS = [0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 10.0, 20.0, 40.0]
SPECIAL = [*KINKS, *(-each for each in KINKS), 1e-8, -1e-8, 700.0, -700.0, inf, -inf, nan]


def grid() -> Tensor:
    return torch.cat([torch.linspace(-8, 8, 1_601), torch.tensor(SPECIAL)]).double()


def of_torch(stage: Map) -> Any:
    """torch's own function of the same name, with the same arguments."""
    given = tuple(float(each) for each in stage.arguments)
    own = {"minimum": torch.minimum, "maximum": torch.maximum}
    if stage.name in own:
        return lambda x: own[stage.name](x, torch.tensor(given[0]).double())
    if stage.name == "prelu":
        return lambda x: F.prelu(x.reshape(-1, 1), torch.tensor(given).double()).flatten()
    names = {"scale": "mul", "gelu_erf": "gelu", "gelu_tanh": "gelu"}
    name = names.get(stage.name, stage.name).partition("(")[0]
    if name == "gelu":
        return partial(F.gelu, approximate="tanh" if stage.name == "gelu_tanh" else "none")
    if name == "pow":
        return lambda x: x ** int(stage.name[4:-1])
    found = getattr(F, name, None) or getattr(torch, name)
    return lambda x: found(x, *given)


def written(stage: Map, x: Tensor) -> Tensor:
    """Its expression, whether or not torch has a function for it."""
    return InTorch(stage.function.expr)({"x": x, **stage.constants}, x).expand(x.shape)


@each_map
def test_the_expression_is_what_torch_computes(stage: Map) -> None:
    x = grid()
    expected = of_torch(stage)(x)
    torch.testing.assert_close(written(stage, x), expected, rtol=1e-13, atol=1e-14, equal_nan=True)
    torch.testing.assert_close(
        stage.apply(x.reshape(1, 1, -1), {}).flatten(), expected, rtol=1e-13, atol=1e-14,
        equal_nan=True,
    )  # fmt: skip


@each_map
def test_the_derivative_is_torchs(stage: Map) -> None:
    """At kinks, too; where torch's is not finite it is torch that has lost it."""
    x = grid().requires_grad_()
    (expected,) = torch.autograd.grad(of_torch(stage)(x).sum(), x)
    slope = derivative(stage.function.expr, "x")
    values = {"x": x.detach(), **stage.constants}
    found = InTorch(slope)(values, x.detach()).expand(x.shape)
    known = expected.isfinite() & x.isfinite()
    rtol = 1e-7 if stage.name == "hardsigmoid" else 1e-9  # torch's factor is a float32, 1/6
    torch.testing.assert_close(found[known], expected[known], rtol=rtol, atol=1e-9)


@each_map
def test_prints_and_parses_back(stage: Map) -> None:
    assert parse(str(stage)) == (stage,)
    assert pickle.loads(pickle.dumps(stage)) == stage


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_map
def test_16_bits_are_rounded_once(stage: Map, dtype: torch.dtype) -> None:
    """By an operand, too, where torch has no function of its own that would take one."""
    x = torch.linspace(-4, 4, 257).to(dtype).reshape(1, 1, -1)
    names = {key: f"given_{key}" for key in stage.constants}
    env = {names[key]: torch.tensor([each]) for key, each in stage.constants.items()}
    found = stage.with_parameters(names).apply(x, {k: v.to(dtype) for k, v in env.items()})
    wide = stage.with_parameters(names).apply(
        x.double(), {k: v.to(dtype).double() for k, v in env.items()}
    )
    torch.testing.assert_close(found, wide.to(dtype), equal_nan=True)
    assert found.dtype == dtype


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "too few": (lambda: stages.scale(), TypeError, "scale takes factor; got"),
    "too many": (lambda: stages.relu(1), TypeError, "relu takes no arguments; got"),
    "unknown": (lambda: stages.elu(beta=1), TypeError, "elu takes alpha; got"),
    "twice": (lambda: stages.elu(1, alpha=1), TypeError, "elu takes alpha; got"),
    "a list": (lambda: stages.elu([1]), TypeError, "elu: alpha must be one of int, float, Tensor"),
    "gelu": (lambda: gelu("erf"), RuntimeError, "approximate must be 'none' or 'tanh', but got"),
    "half a power": (lambda: stages.pow(0.5), TypeError, "pow: exponent"),
    "a condition": (lambda: pointwise(lambda x: x < 0), TypeError, "gives a condition, not a num"),
    "if": (
        lambda: pointwise(lambda x: 0 if x < 0 else x),
        TypeError,
        "write where(condition, a, b)",
    ),
    "if it is equal": (
        lambda: pointwise(lambda x, a: 0 if x == a else x),
        TypeError,
        "write where(condition, a, b)",
    ),
    "if it is not": (
        lambda: pointwise(lambda x: x if x != 0 else 1),
        TypeError,
        "write where(condition, a, b)",
    ),
    "a function of numbers": (
        lambda: pointwise(lambda x: math.sin(x)),
        TypeError,
        "the value of x is not known before it runs",
    ),
    "a tensor in it": (
        lambda: pointwise(lambda x: x * torch.ones(8)),
        TypeError,
        "not Tensor; a tensor is given as an argument of the function",
    ),
    "a power by an argument": (
        lambda: pointwise(lambda x, a: x**a),
        TypeError,
        "multiplications, not a",
    ),
    "a stage in it": (lambda: pointwise(lambda x: gelu(x)), TypeError, "it is gelu_erf(x)"),
    "no running value": (lambda: pointwise(lambda: 1.0), TypeError, "has a parameter, x"),
    "long tensors": (lambda: stages.add(torch.ones(99), 1), TypeError, "got tensor[99], 1"),
    "not called": (
        lambda: transfuse.Chain(stages.ConvTranspose(2), pointwise(lambda x: x)),
        TypeError,
        "pointwise makes one when it is called",
    ),
    "a list of arguments": (lambda: pointwise(lambda x, *a: x), TypeError, "plain parameters"),
    "x twice": (lambda: pointwise(lambda y, x: x), TypeError, "no other can have its name"),
    "not a number": (
        lambda: pointwise(lambda x: "x"),
        TypeError,
        "made of numbers and expressions",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str) -> None:
    make, error, message = WRONG[name]
    with pytest.raises(error) as raised:
        make()
    assert message in str(raised.value)


def test_defaults_are_torchs() -> None:
    for name, made in FUNCTIONS.items():
        if Parameter.empty not in made.parameters.values() and name != "clamp":
            x = grid()
            torch.testing.assert_close(
                written(made(), x), of_torch(made())(x), rtol=1e-13, atol=1e-14, equal_nan=True
            )
            bare = getattr(F, name.partition("_erf")[0], None)
            if made.parameters and bare is not None:
                torch.testing.assert_close(bare(x), written(made(), x), equal_nan=True)


def test_a_function_within_another_gives_its_expression() -> None:
    twice = pointwise(lambda x, slope: stages.leaky_relu(stages.leaky_relu(x, slope), slope))
    slope = symbol("slope")
    once = where(X > 0, X, slope * X)
    assert twice.expr is where(once > 0, once, slope * once)


def test_a_tensor_without_axes_is_a_number_read_when_the_stage_is_made() -> None:
    slope = torch.tensor(0.25)
    stage = stages.leaky_relu(slope)
    slope.fill_(7)
    assert stage == stages.leaky_relu(0.25)


def test_conditions_are_written_as_in_torch() -> None:
    made = pointwise(lambda x, a: where((x == a) & ~(x < 0) | (x != 1), a, x))
    a = symbol("a")
    assert made.expr is where(either(both(eq(X, a), no(X < 0)), no(eq(X, 1))), a, X)
    assert (a == X) is False, "outside of a function expressions are compared as Python does"


def test_numpys_numbers_are_numbers() -> None:
    made = pointwise(lambda x: np.float32(0.5) * x ** np.int64(2) + x * np.float64(3) - np.int8(1))
    assert made.expr is 0.5 * (X * X) + X * 3.0 - 1.0


def test_torchs_names_and_its_none_for_no_bound() -> None:
    assert stages.clamp(min=0.5) == stages.clamp(0.5, None) == stages.clamp(min=0.5, max=None)
    assert stages.clamp(max=2) == stages.clamp(None, 2)
    inside = pointwise(lambda x: stages.clamp(x, max=2.0))
    assert inside.expr is pointwise(lambda x: stages.clamp(x, None, 2.0)).expr
    assert stages.add(other=1) == stages.add(1)
    assert stages.sub(other=1) == stages.sub(1)
    assert stages.div(other=2) == stages.div(2)
    with pytest.raises(TypeError, match="negative_slope must be one of int, float"):
        stages.leaky_relu(None)
