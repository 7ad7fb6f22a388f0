"""Expressions: one object each, printed and parsed back, refused where they make no sense."""

import copy
import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfuse.maths.expr import ARITY, LOGICAL, X, call, constant, name, parse, substituted

LEAVES = st.one_of(
    st.just(X),
    st.sampled_from(["slope", "skip"]).map(name),
    st.floats().map(constant),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf")]).map(constant),
)
NUMBERS = [each for each in ARITY if each not in LOGICAL and each != "where"]


def _grown(inner):
    condition = st.builds(call, st.sampled_from(["lt", "le", "eq"]), inner, inner)
    either = st.one_of(condition, st.builds(call, st.just("no"), condition))
    calls = [st.builds(call, st.just(each), *[inner] * ARITY[each]) for each in NUMBERS] + [
        st.builds(call, st.just("where"), either, inner, inner)
    ]
    return st.one_of(calls)


EXPRESSIONS = st.recursive(LEAVES, _grown, max_leaves=12)


@given(EXPRESSIONS)
def test_what_is_printed_parses_back_to_the_very_expression(expr):
    assert parse(str(expr)) is expr


@given(EXPRESSIONS)
def test_copies_are_the_same_object(expr):
    assert copy.deepcopy(expr) is copy.copy(expr) is pickle.loads(pickle.dumps(expr)) is expr


@given(EXPRESSIONS)
def test_parts_come_before_what_they_are_part_of(expr):
    seen = set()
    for each in expr.walk():
        assert each not in seen
        assert seen.issuperset(each.parts)
        seen.add(each)
    assert expr in seen


def test_equal_expressions_are_one_object_also_across_threads():
    made = []
    threads = [
        threading.Thread(target=lambda: made.append([(X + k) * X for k in range(200)]))
        for _ in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert all(row[k] is made[0][k] for row in made for k in range(200))


def test_numbers_are_told_apart_by_their_bits():
    assert constant(0.0) is not constant(-0.0)
    assert constant(float("nan")) is constant(-float("nan"))
    assert constant(1) is constant(1.0)


@pytest.mark.parametrize(
    ("made", "printed"),
    [
        (0.5 * X * (1 + call("erf", X)), "0.5 * x * (1.0 + erf(x))"),
        (X - (X - 1), "x - (x - 1.0)"),
        (X / (X * 2) / 3, "x / (x * 2.0) / 3.0"),
        (-(X * X), "-(x * x)"),
        (-X * X, "-x * x"),
        (X**5, "x * (x * x * (x * x))"),
        (X**0, "1.0"),
        (X**-2, "1.0 / (x * x)"),
        (abs(+X), "abs(x)"),
        (2 > X, "x < 2.0"),  # noqa: SIM300
        (2 >= X, "x <= 2.0"),  # noqa: SIM300
        (call("where", X < 0, name("slope") * X, X), "where(x < 0.0, slope * x, x)"),
    ],
)
def test_printing(made, printed):
    assert str(made) == printed


def test_names_and_substitution():
    expr = call("where", X < 0, name("slope") * X, X)
    assert expr.names == ("x", "slope")
    assert substituted(expr, {"slope": 0.1, "x": X + 1}) is call(
        "where", X + 1 < 0, 0.1 * (X + 1), X + 1
    )


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (lambda: X if X < 0 else -X, TypeError, "write where"),
        (lambda: X + "1", TypeError, "numbers and expressions, not str"),
        (lambda: X + True, TypeError, "not bool"),
        (lambda: X + (X < 0), TypeError, "add takes a number"),
        (lambda: call("where", X, 1, 0), TypeError, "where takes a condition"),
        (lambda: call("erf", X, X), TypeError, "erf takes 1 arguments, not 2"),
        (lambda: call("gamma", X), ValueError, "no primitive 'gamma'; known: add, sub"),
        (lambda: X**0.5, TypeError, "whole powers"),
        (lambda: name("a b"), ValueError, "'a b' cannot be a name"),
        (lambda: parse("x +"), ValueError, "'x \\+' is no expression"),
        (lambda: parse("x.y"), ValueError, "'x.y' cannot stand in an expression"),
        (lambda: parse("__import__('os')"), ValueError, "cannot stand|no primitive"),
        (lambda: setattr(X, "name", "y"), AttributeError, "cannot be changed"),
    ],
)
def test_nonsense_is_refused_by_name(wrong, error, says):
    with pytest.raises(error, match=says):
        wrong()
