"""Case: a problem line and scalars, out and back without losing a digit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transfuse.cases import Case
from transfuse.problem import Problem

LINE = "n1 ci2 co3 i4x5 k3 s2 p1 fp32 cpu"


def test_words_with_an_equals_sign_are_scalars() -> None:
    case = Case.parse(f"{LINE} groups=4 low=-0.5 high=1e3")
    assert case == Case(Problem.parse(LINE), {"groups": 4, "low": -0.5, "high": 1000.0})
    assert type(case.scalars["groups"]) is int
    assert Case.parse(LINE).scalars == {}


@given(
    st.dictionaries(
        st.sampled_from(["low", "high", "scale"]),
        st.integers(-(10**9), 10**9) | st.floats(allow_nan=False),
    )
)
@settings(max_examples=200)
def test_prints_and_parses_back(scalars: dict[str, float]) -> None:
    case = Case(Problem.parse(LINE), scalars)
    assert Case.parse(str(case)) == case


@pytest.mark.parametrize(
    ("value", "text"),
    [(2, "2"), (2.0, "2"), (-0.5, "-0.5"), (0.1234567891, "0.1234567891"), (1234567, "1234567")],
)
def test_prints_the_shortest_form(value: float, text: str) -> None:
    assert str(Case(Problem.parse(LINE), {"scale": value})) == f"{LINE} scale={text}"


def test_on_changes_type_and_device_alone() -> None:
    case = Case.parse(f"{LINE} scale=2")
    assert case.on() == case
    assert str(case.on(dtype="bf16", device="cuda:sm90")) == (
        "n1 ci2 co3 i4x5 k3 s2 p1 bf16 cuda:sm90 scale=2"
    )
    fast = case.on("tf32", "cuda:sm90")
    assert str(fast) == "n1 ci2 co3 i4x5 k3 s2 p1 fp32 tf32 cuda:sm90 scale=2"
    assert fast.on() == fast
    assert fast.on("fp32", "cpu") == case.on("fp32")
    with pytest.raises(ValueError, match="tf32 is for fp32 on cuda, not for fp32 on cpu"):
        fast.on(device="cpu")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{LINE} scale=two", "'scale=two' does not give a number"),
        (f"{LINE} scale=", "'scale=' does not give a number"),
        (f"{LINE} scale=1 scale=2", "scale is given twice"),
        ("n1 scale=1", "problem line lacks ci, co, i, k"),
    ],
)
def test_malformed(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case.parse(line)
