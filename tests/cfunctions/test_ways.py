"""Code that asks about numbers nobody knows yet: every way it may go, and when it goes there."""

from typing import Any

import pytest

from transfuse.cfunctions.ways import Branch, cases, picked, ways
from transfuse.symbols import Symbol, least, most, real, written

A, B, N = Symbol("a", float), Symbol("b", float), Symbol("n", int)


def test_every_answer_is_tried() -> None:
    def code() -> str:
        if A > 0:
            return "both" if B <= A else "first"
        return "none"

    assert ways(code) == Branch("a > 0", Branch("b <= a", "both", "first"), "none")


def test_a_question_is_asked_once() -> None:
    assert ways(lambda: (bool(A > 0), bool(A > 0))) == Branch("a > 0", (True,) * 2, (False,) * 2)


def test_what_makes_no_difference_is_left_out() -> None:
    found = ways(lambda: (bool(A > 0), bool(B > 0)))
    assert picked(found, lambda each: each[0]) == Branch("a > 0", True, False)
    assert picked(found, lambda each: each[1]) == Branch("b > 0", True, False)
    assert picked(found, lambda each: 7) == 7


@pytest.mark.parametrize(
    ("code", "condition"),
    [
        (lambda: A > 0 and B > 0, "a > 0 && b > 0"),
        (lambda: A > 0 or B > 0, "a > 0 || b > 0"),
        (lambda: not A > 0 and B > 0, "!(a > 0) && b > 0"),
        (lambda: not A > 0 or B > 0, "!(a > 0) || b > 0"),
        (lambda: A > 0 and (B > 0 or A < B), "a > 0 && (b > 0 || a < b)"),
        (lambda: A > 0 or (B > 0 and A < B), "a > 0 || (b > 0 && a < b)"),
        (lambda: A > 0 and B > 0 and A < B, "a > 0 && b > 0 && a < b"),
        (lambda: B > 0 if A > 0 else A < B, "(a > 0 ? b > 0 : a < b)"),
        (lambda: not N & 1, "(n & 1) == 0"),
        (lambda: Symbol("finite", bool), "finite"),
        (lambda: not Symbol("finite", bool), "!finite"),
    ],
)
def test_conditions(code: Any, condition: str) -> None:
    found = cases(ways(lambda: "yes" if code() else "no"), usual="no")
    assert found == [(condition, "yes"), ("", "no")]


def test_the_usual_result_is_what_is_left() -> None:
    found = ways(lambda: 0 if A > 0 else 1 if B > 0 else 2)
    assert cases(found, usual=0) == [("!(a > 0) && b > 0", 1), ("!(a > 0) && !(b > 0)", 2), ("", 0)]
    assert cases(5) == [("", 5)]


def test_nobody_answers_outside() -> None:
    with pytest.raises(TypeError, match=r"only a call will know whether a > 0\.5"):
        bool(A > 0.5)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (A + B * 2, "a + (b * 2)"),
        (A * B * A, "a * b * a"),
        (1 * A + 0, "a"),
        (N * N - 1, "int64_t(n * n) - 1"),
        (3 - N, "3 - int64_t(n)"),
        (1 / (N * N), "1.0 / double(n * n)"),
        (A / N, "a / double(n)"),
        (-(A + B), "-(a + b)"),
        (abs(A), "std::abs(a)"),
        (N >= -1, "int64_t(n) >= -1"),
        (least((A, B, 3.0)), "smaller(smaller(3.0, a), b)"),
        (least((A, float("inf"))), "a"),
        (least((A, float("-inf"))), "-INFINITY"),
        (most((A, float("inf"))), "INFINITY"),
        (most((1.0, 2.0)), "2.0"),
        (real(A), "a"),
        (real(2), "2.0"),
        (float("nan"), "NAN"),
    ],
)
def test_arithmetic(found: object, text: str) -> None:
    assert written(found) == text
