"""Expr: what a pointwise stage computes, as data.

An expression is a number, a name (``x``, the running value, or an argument) or a primitive applied
to expressions. Equal expressions are one object: comparing them costs nothing, and a part that
occurs twice is computed once. They print as Python does and parse back.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from struct import pack
from threading import Lock
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T", bound="Expr")
_body: ContextVar[bool] = ContextVar("body", default=False)
INF = float("inf")
ARITY = {
    **dict.fromkeys(("add", "sub", "mul", "div", "minimum", "maximum"), 2),
    **dict.fromkeys(("clamp", "where"), 3),
    **dict.fromkeys(("lt", "le", "eq", "both", "either"), 2),
    **dict.fromkeys(("no", "neg", "abs", "floor", "sqrt", "rsqrt"), 1),
    **dict.fromkeys(("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sigmoid", "erf"), 1),
}
"""The primitives, and how many arguments each takes. What they mean is ``primitives.py``."""
LOGICAL = ("lt", "le", "eq", "both", "either", "no")
"""Those that give true or false."""
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "=="}
TIGHTNESS = {"lt": 0, "le": 0, "eq": 0, "add": 1, "sub": 1, "mul": 2, "div": 2, "neg": 3}
"""How tightly what prints as a sign binds; all else binds tighter."""


class Expr:
    """Base of the three kinds: ``Constant``, ``Name``, ``Call``. Immutable, one object for each.

    Python's arithmetic and comparisons on expressions give expressions. ``==`` and ``!=`` do so
    only in the body of a pointwise function (``in_a_body``): elsewhere they are Python's own, so
    that expressions can be keys, and ``eq(a, b)`` is the condition.
    """

    __slots__ = ("__weakref__",)
    _known: ClassVar["WeakValueDictionary[Any, Expr]"] = WeakValueDictionary()
    _lock: ClassVar[Lock] = Lock()

    @classmethod
    def _the(cls: type[T], key: Any, **fields: Any) -> T:
        """The one object of this kind for a key, made where there is none yet."""
        with Expr._lock:
            found = Expr._known.get((cls, key))
            if found is None:
                found = object.__new__(cls)
                for name, value in fields.items():
                    object.__setattr__(found, name, value)
                Expr._known[cls, key] = found
        assert isinstance(found, cls)
        return found

    @property
    def parts(self) -> tuple["Expr", ...]:
        """What it is applied to."""
        return ()

    @property
    def logical(self) -> bool:
        """Whether it is true or false rather than a number."""
        return False

    def walk(self) -> tuple["Expr", ...]:
        """Every distinct part, then itself: each after all that it is made of."""
        found: dict[Expr, None] = {}
        waiting: list[tuple[Expr, bool]] = [(self, False)]
        while waiting:
            each, complete = waiting.pop()
            if complete:
                found[each] = None
            elif each not in found:
                waiting.append((each, True))
                waiting += [(part, False) for part in reversed(each.parts)]
        return tuple(found)

    @property
    def names(self) -> tuple[str, ...]:
        """The names it uses."""
        return tuple(each.name for each in self.walk() if isinstance(each, Name))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an expression cannot be changed: {self}")

    def __reduce__(self) -> Any:
        return parse, (str(self),)

    def __copy__(self: T) -> T:
        return self

    def __deepcopy__(self: T, memo: object) -> T:
        return self

    def __repr__(self) -> str:
        return f"parse({str(self)!r})"

    def __bool__(self) -> bool:
        raise TypeError(
            f"whether {self} holds is not known before it runs: write where(condition, a, b) "
            "instead of `a if condition else b`, both(a, b) and either(a, b) instead of and, or"
        )

    def __float__(self) -> float:
        raise TypeError(
            f"the value of {self} is not known before it runs: in place of Python's own functions "
            "of numbers, such as math.sin, write those of transfuse.maths"
        )

    def __eq__(self, other: object) -> Any:
        return call("eq", self, other) if _body.get() else self is other

    def __ne__(self, other: object) -> Any:
        return call("no", call("eq", self, other)) if _body.get() else self is not other

    __hash__ = object.__hash__

    def __add__(self, other: Any) -> "Expr":
        return call("add", self, other)

    def __radd__(self, other: Any) -> "Expr":
        return call("add", other, self)

    def __sub__(self, other: Any) -> "Expr":
        return call("sub", self, other)

    def __rsub__(self, other: Any) -> "Expr":
        return call("sub", other, self)

    def __mul__(self, other: Any) -> "Expr":
        return call("mul", self, other)

    def __rmul__(self, other: Any) -> "Expr":
        return call("mul", other, self)

    def __truediv__(self, other: Any) -> "Expr":
        return call("div", self, other)

    def __rtruediv__(self, other: Any) -> "Expr":
        return call("div", other, self)

    def __neg__(self) -> "Expr":
        return call("neg", self)

    def __pos__(self) -> "Expr":
        return self

    def __abs__(self) -> "Expr":
        return call("abs", self)

    def __pow__(self, power: int) -> "Expr":
        """A whole power, by repeated squaring."""
        if isinstance(power, bool) or not isinstance(power, Integral):
            raise TypeError(f"only whole powers are pointwise multiplications, not {power}")
        power = int(power)
        if power < 0:
            return 1.0 / self**-power
        if power < 2:
            return self if power else constant(1.0)
        square = (self * self) ** (power // 2)
        return self * square if power % 2 else square

    def __lt__(self, other: Any) -> "Expr":
        return call("lt", self, other)

    def __gt__(self, other: Any) -> "Expr":
        return call("lt", other, self)

    def __le__(self, other: Any) -> "Expr":
        return call("le", self, other)

    def __ge__(self, other: Any) -> "Expr":
        return call("le", other, self)

    def __and__(self, other: Any) -> "Expr":
        return call("both", self, other)

    def __or__(self, other: Any) -> "Expr":
        return call("either", self, other)

    def __invert__(self) -> "Expr":
        return call("no", self)


class Constant(Expr):
    """A number, by its bits: 0.0 and -0.0 are two, and NaN is itself."""

    __slots__ = ("value",)
    value: float

    def __str__(self) -> str:
        return repr(self.value)  # inf and nan parse back, too


class Name(Expr):
    """``x``, the running value, or an argument that a call binds."""

    __slots__ = ("name",)
    name: str

    def __str__(self) -> str:
        return self.name


class Call(Expr):
    """A primitive applied to expressions."""

    __slots__ = ("arguments", "primitive")
    primitive: str
    arguments: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.arguments

    @property
    def logical(self) -> bool:
        return self.primitive in LOGICAL

    def __str__(self) -> str:
        return _printed(self)


def constant(value: float) -> Constant:
    """A number as an expression."""
    value = float(value)
    return Constant._the(b"nan" if value != value else pack("d", value), value=value)


def name(word: str) -> Name:
    """A name as an expression."""
    if not word.isidentifier() or word in ("inf", "nan"):
        raise ValueError(f"{word!r} cannot be a name in an expression")
    return Name._the(word, name=word)


@contextmanager
def in_a_body() -> Iterator[None]:
    """While a function's body is called with symbols: ``x == 0`` is a condition, as ``x < 0`` is.

    As Python's own it would be false, and ``1 if x == 0 else x`` would silently be x.
    """
    before = _body.set(True)
    try:
        yield
    finally:
        _body.reset(before)


X = name("x")
"""The running value."""


def expression(value: Any) -> Expr:
    """An expression as it is, a number as one."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, Real) and not isinstance(value, bool):  # Python's and NumPy's
        return constant(float(value))
    hint = ""
    if isinstance(value, bool):
        hint = "; the condition that two are equal is eq(a, b)"
    elif hasattr(value, "__array__"):
        hint = "; a tensor is given as an argument of the function, as in lambda x, a: x * a"
    raise TypeError(
        f"an expression is made of numbers and expressions, not {type(value).__name__}{hint}"
    )


def call(primitive: str, *arguments: Any) -> Expr:
    """A primitive applied to expressions and numbers; raises where they do not fit it."""
    if primitive not in ARITY:
        raise ValueError(f"there is no primitive {primitive!r}; known: {', '.join(ARITY)}")
    given = tuple(map(expression, arguments))
    if len(given) != ARITY[primitive]:
        raise TypeError(f"{primitive} takes {ARITY[primitive]} arguments, not {len(given)}")
    for at, each in enumerate(given):
        wanted = primitive in ("both", "either", "no") or (primitive == "where" and at == 0)
        if each.logical != wanted:
            kind = "a condition, such as x < 0" if wanted else "a number; where(c, 1, 0) makes one"
            raise TypeError(f"{primitive} takes {kind}, not {each}")
    if primitive == "neg" and isinstance(given[0], Constant):  # Python reads -2.0 as a number
        return constant(-given[0].value)
    return Call._the((primitive, given), primitive=primitive, arguments=given)


def folded(expr: Expr, leaf: Callable[[Expr], Any], apply: Callable[[Call, list[Any]], Any]) -> Any:
    """An expression worked out from its leaves up, every distinct part once."""
    found: dict[Expr, Any] = {}
    for each in expr.walk():
        if isinstance(each, Call):
            found[each] = apply(each, [found[part] for part in each.arguments])
        else:
            found[each] = leaf(each)
    return found[expr]


def substituted(expr: Expr, values: Mapping[str, Any]) -> Expr:
    """The expression with expressions or numbers in place of names."""

    def leaf(each: Expr) -> Expr:
        return expression(values.get(each.name, each)) if isinstance(each, Name) else each

    def apply(each: Call, parts: list[Expr]) -> Expr:
        return call(each.primitive, *parts)

    result: Expr = folded(expr, leaf, apply)
    return result


def parse(text: str) -> Expr:
    """The expression that a text stands for, as ``str`` prints it."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is no expression: {error.msg}") from None
    return _parsed(tree, text)


_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
_COMPARED = {ast.Lt: "lt", ast.LtE: "le", ast.Eq: "eq"}


def _parsed(node: ast.AST, text: str) -> Expr:
    match node:
        case ast.Constant(value=int() | float() as value):
            return constant(value)
        case ast.Name(id="inf" | "nan" as value):
            return constant(float(value))
        case ast.Name(id=word):
            return name(word)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return constant(-value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return constant(-INF)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_parsed(operand, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return call(_BINARY[type(op)], _parsed(left, text), _parsed(right, text))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            return call(_COMPARED[type(op)], _parsed(left, text), _parsed(right, text))
        case ast.Call(func=ast.Name(id=primitive), args=arguments, keywords=[]):
            return call(primitive, *(_parsed(each, text) for each in arguments))
    raise ValueError(f"{ast.unparse(node)!r} cannot stand in an expression: {text!r}")


def _printed(expr: Expr) -> str:
    def leaf(each: Expr) -> tuple[str, int]:
        text = str(each)
        return text, 3 if text.startswith("-") else 4

    def apply(each: Call, parts: list[tuple[str, int]]) -> tuple[str, int]:
        def within(part: tuple[str, int], least: int) -> str:
            return part[0] if part[1] >= least else f"({part[0]})"

        mine = TIGHTNESS.get(each.primitive)
        if mine is None:
            return f"{each.primitive}({', '.join(text for text, _ in parts)})", 4
        if each.primitive == "neg":
            return "-" + within(parts[0], 3), 3
        left, right = within(parts[0], mine), within(parts[1], mine + 1)
        return f"{left} {SIGNS[each.primitive]} {right}", mine

    text: str = folded(expr, leaf, apply)[0]
    return text
