"""Symbols: numbers that only a call will know, where code is written ahead of it.

Arithmetic on a symbol gives a symbol, written as C++ has it; so does a comparison. Whoever then
branches on it asks a question, which is answered by whoever runs the code ``answering`` it. Code
that looks at numbers needs to know nothing of this, as long as it passes them on as they are
(``real``) and takes the smaller and the larger of several with ``least`` and ``most``.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf, isinf, isnan
from typing import Any


def _nobody(question: str) -> bool:
    raise TypeError(f"only a call will know whether {question}")


_answer: ContextVar[Callable[[str], bool]] = ContextVar("answer", default=_nobody)


@contextmanager
def answering(answer: Callable[[str], bool]) -> Iterator[None]:
    """Questions are answered in this way."""
    token = _answer.set(answer)
    try:
        yield
    finally:
        _answer.reset(token)


class Symbol:
    """A number by its C++ expression, with the type that its value will have in Python.

    ``==`` is Python's own, whether two are one object, so that stages with symbols can be keys.
    """

    def __init__(self, code: str, type: type, sign: str = "") -> None:
        self.code, self.type, self.sign = code, type, sign

    def __repr__(self) -> str:
        return self.code

    def __bool__(self) -> bool:
        return _answer.get()(self.code if self.type is bool else f"{_part(self)} != 0")

    def __add__(self, other: Any) -> Any:
        return self if other == 0 else _arithmetic(self, "+", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _arithmetic(_signed(self), "-", _signed(other))

    def __rsub__(self, other: Any) -> Any:
        return _arithmetic(other, "-", _signed(self))

    def __mul__(self, other: Any) -> Any:
        return self if other == 1 else _arithmetic(self, "*", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return Symbol(f"{_double(self)} / {_double(other)}", float, "/")

    def __rtruediv__(self, other: Any) -> Any:
        return Symbol(f"{_double(other)} / {_double(self)}", float, "/")

    def __and__(self, other: Any) -> Any:
        return _arithmetic(self, "&", other)

    def __neg__(self) -> Any:
        return Symbol(f"-{_part(_signed(self))}", self.type, "-")

    def __abs__(self) -> Any:
        return Symbol(f"std::abs({_signed(self).code})", self.type)

    def __lt__(self, other: Any) -> Any:
        return _comparison(self, "<", other)

    def __le__(self, other: Any) -> Any:
        return _comparison(self, "<=", other)

    def __gt__(self, other: Any) -> Any:
        return _comparison(self, ">", other)

    def __ge__(self, other: Any) -> Any:
        return _comparison(self, ">=", other)


def written(value: object) -> str:
    """A number or a symbol as C++ has it."""
    if isinstance(value, Symbol):
        return value.code
    if isinstance(value, float) and isnan(value):
        return "NAN"
    if isinstance(value, float) and isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return repr(value)


def real(value: Any) -> float:
    """A number as a float, a symbol as it is."""
    return value if isinstance(value, Symbol) else float(value)  # type: ignore[return-value]


def least(values: Iterable[float]) -> float:
    """The smallest; of symbols NaN where any of them is."""
    return _extreme("smaller", inf, values, min)


def most(values: Iterable[float]) -> float:
    """The largest; of symbols NaN where any of them is."""
    return _extreme("larger", -inf, values, max)


def _extreme(
    name: str, neutral: float, values: Iterable[float], plain: Callable[[Any], float]
) -> float:
    given: list[Any] = list(values)
    symbols = [each for each in given if isinstance(each, Symbol)]
    if not symbols:
        return plain(given)
    number = plain([neutral, *(each for each in given if not isinstance(each, Symbol))])
    if number == -neutral:  # nothing goes beyond it
        return number
    found: Any = symbols[0] if number == neutral else number
    for each in symbols[number == neutral :]:
        found = Symbol(f"{name}({written(found)}, {written(each)})", float)
    return found  # type: ignore[no-any-return]


def _arithmetic(a: Any, sign: str, b: Any) -> Symbol:
    types = {each.type if isinstance(each, Symbol) else type(each) for each in (a, b)}
    found = float if float in types else int
    first = a.code if isinstance(a, Symbol) and a.sign == sign else _part(a)
    return Symbol(f"{first} {sign} {_part(b)}", found, sign)


def _comparison(a: Symbol, sign: str, b: Any) -> "Symbol | bool":
    if isinstance(b, Symbol) and b.code == a.code and a.type is int:  # else it may be NaN
        return "=" in sign
    return Symbol(f"{_part(_signed(a))} {sign} {_part(_signed(b))}", bool, sign)


def _signed(value: Any) -> Any:
    """A size, which has no sign in C++, as a number that has one."""
    integral = isinstance(value, Symbol) and value.type is int
    return Symbol(f"int64_t({value.code})", int) if integral else value


def _part(value: Any) -> str:
    """A number or a symbol as part of a longer expression."""
    compound = isinstance(value, Symbol) and value.sign
    return f"({written(value)})" if compound else written(value)


def _double(value: Any) -> str:
    if isinstance(value, Symbol):
        return _part(value) if value.type is float else f"double({value.code})"
    return repr(float(value))
