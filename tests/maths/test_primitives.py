"""What primitives mean: values, derivatives and directions, against torch and by differences."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transfuse.maths.expr import ARITY, LOGICAL, X, call, constant, name
from transfuse.maths.primitives import PRIMITIVES, InTorch, complete, derivative, direction

Y, Z = name("y"), name("z")
SMOOTH = [each for each in ARITY if each not in (*LOGICAL, "floor", "where")]


def _values(count, seed=0, least=0.2):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, dtype=torch.float64, generator=generator) * 2 + least


@pytest.mark.parametrize("primitive", SMOOTH)
def test_derivatives_are_those_of_autograd_and_of_differences(primitive):
    names = ("x", "y", "z")[: ARITY[primitive]]
    expr = call(primitive, *map(name, names))
    values = {each: _values(64, seed) for seed, each in enumerate(names)}
    for by in names:
        leaf = values[by].clone().requires_grad_()
        given = values | {by: leaf}
        InTorch(expr)(given, leaf).sum().backward()
        ours = InTorch(derivative(expr, by))(values, leaf).expand(64)
        torch.testing.assert_close(ours, leaf.grad, rtol=1e-12, atol=0)
        step = 1e-6
        up, down = (
            InTorch(expr)(values | {by: values[by] + d}, leaf).expand(64) for d in (step, -step)
        )
        torch.testing.assert_close((up - down) / (2 * step), ours, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("primitive", ["minimum", "maximum"])
def test_ties_are_shared_out_as_torch_does(primitive):
    a, b = (torch.tensor([1.0, 2.0, 3.0, -0.0]), torch.tensor([1.0, 3.0, 2.0, 0.0]))
    expr = call(primitive, X, Y)
    for by, mine in (("x", a), ("y", b)):
        leaf = mine.clone().requires_grad_()
        InTorch(expr)({"x": a, "y": b} | {by: leaf}, a).sum().backward()
        assert torch.equal(InTorch(derivative(expr, by))({"x": a, "y": b}, a), leaf.grad)


def test_clamp_at_its_edges_and_the_wrong_way_round():
    x = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], requires_grad=True)
    for low, high in ((-1.0, 1.0), (1.0, -1.0), (0.5, 0.5)):
        expr = call("clamp", X, low, high)
        y = torch.clamp(x, low, high)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(InTorch(expr)({"x": x}, x), y)
        assert torch.equal(InTorch(derivative(expr, "x"))({"x": x}, x).expand(5), grad)


def test_a_branch_that_is_not_taken_does_not_spoil_the_derivative():
    expr = call("where", X <= 0, 0.0, call("log", X))
    x = torch.tensor([-1.0, 0.0, 2.0])
    assert InTorch(derivative(expr, "x"))({"x": x}, x).tolist() == [0.0, 0.0, 0.5]


def test_second_derivatives():
    expr = X * call("sigmoid", X)
    x = _values(32).requires_grad_()
    y = torch.nn.functional.silu(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    ours = InTorch(derivative(derivative(expr, "x"), "x"))({"x": x}, x)
    torch.testing.assert_close(ours, second, rtol=1e-12, atol=1e-14)


def test_what_does_not_depend_on_a_name_has_derivative_zero():
    assert derivative(Y * 2, "x") is constant(0.0)
    assert derivative(call("floor", X), "x") is constant(0.0)


@pytest.mark.parametrize(
    ("expr", "numbers", "way"),
    [
        (X, {}, 1),
        (-X, {}, -1),
        (constant(1.0), {}, 0),
        (X + Y, {}, 1),
        (2 - call("tanh", X), {}, -1),
        (X * Y, {}, None),
        (X * Y, {"y": 3.0}, 1),
        (X * Y, {"y": -3.0}, -1),
        (X * Y, {"y": 0.0}, None),
        (X / Y, {"y": -2.0}, -1),
        (1 / X, {}, None),
        (X - X, {}, None),
        (call("exp", X) + call("sigmoid", X), {}, 1),
        (call("clamp", X, Y, Z), {}, 1),
        (abs(X), {}, None),
        (call("where", X < 0, 0.0, X), {}, 1),
        (call("where", X > 0, X, Y * X), {"y": 0.1}, 1),
        (call("where", X > 0, X, Y * X), {"y": -0.1}, None),
        (call("where", X > 0, X, Y * X), {}, None),
        (call("where", X > 0, X, 0.0), {}, None),  # of NaN it makes 0
        (call("where", X < 0, 1.0, X), {}, None),  # falls at 0
        (call("where", X < Y, 0.0, X), {}, None),
        (call("where", X <= -1, -1.0, call("where", X >= 1, 1.0, X)), {}, 1),
        (call("where", Y < 0, 1.0, 2.0), {}, 0),
    ],
    ids=str,
)
def test_direction(expr, numbers, way):
    assert direction(expr, "x", numbers) == way


@given(st.lists(st.sampled_from(SMOOTH), min_size=1, max_size=6), st.floats(-3, 3))
def test_what_is_said_to_rise_does(path, other):
    expr = X
    for each in path:
        expr = call(each, *[expr, constant(other), constant(other + 1)][: ARITY[each]])
    way = direction(expr, "x", {})
    x = torch.linspace(0.05, 3, 400, dtype=torch.float64)
    steps = InTorch(expr)({"x": x}, x).expand(400).diff() * (way or 0)
    assert not bool((steps < -1e-12).any())


def test_evaluation_keeps_the_type_and_takes_numbers_as_they_are():
    x = torch.tensor([1.0, -2.0], dtype=torch.float16)
    y = InTorch(call("where", X < 0, Y * X, X))({"x": x, "y": 0.1}, x)
    assert y.dtype == torch.float16
    assert torch.equal(y, torch.nn.functional.leaky_relu(x, 0.1))


def test_exact_primitives_keep_integers():
    x, y, z = (torch.tensor([float(v) for v in row]) for row in ((-3, 0, 5), (2, -1, 4), (1, 1, 1)))
    for primitive, row in PRIMITIVES.items():
        if row.exact and primitive not in LOGICAL:
            values = [x, y, z][: ARITY[primitive]]
            if primitive == "where":
                values[0] = values[0] < 0
            found = row.torch(*values)
            assert torch.equal(found, found.round())


def test_a_table_that_lacks_a_primitive_is_refused_at_import():
    with pytest.raises(ImportError, match=r"a backend lacks the primitives \['erf'\], has \['f'\]"):
        complete({each: None for each in ARITY if each != "erf"} | {"f": None}, "a backend")


def test_gelu_written_out_is_torchs():
    expr = 0.5 * X * (1 + call("erf", X * (1 / math.sqrt(2))))
    x = torch.linspace(-5, 5, 1001, dtype=torch.float64)
    torch.testing.assert_close(
        InTorch(expr)({"x": x}, x), torch.nn.functional.gelu(x), rtol=1e-13, atol=1e-16
    )
