"""An expression as the code of a map: instructions over numbered values.

Values are numbered as ``transfuse_map`` says: 0 is the running value, then the numbers, then the
operands by name, then registers. The last instruction writes the running value.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from transfuse.maths.expr import ARITY, Call, Constant, Expr, Name

REGISTERS = 16
"""Values that a map may hold at the same time; as many as the core has."""
MOST = 256
"""Values that a byte numbers."""
PRIMITIVES = tuple(ARITY)
"""The primitives in the order of ``enum transfuse_primitive``."""


@dataclass(frozen=True)
class Code:
    """A map: its numbers, its operands by name, and ``(primitive, to, from…)`` for each step."""

    numbers: tuple[float, ...]
    operands: tuple[str, ...]
    instructions: tuple[tuple[int, ...], ...]


class TooLong(Exception):
    """Why the core cannot hold an expression."""


def assemble(expr: Expr, numbers: Mapping[str, float], tensors: Mapping[str, str]) -> Code:
    """The code of an expression; its other names are operands, given under those in ``tensors``."""
    parts = expr.walk()
    calls = [each for each in parts if isinstance(each, Call)]
    if not calls:  # a number, or a name by itself: adding -0.0 copies every value as it is
        calls = [copied := _copy(expr)]
        parts, expr = copied.walk(), copied
    leaves = [each for each in parts if not isinstance(each, Call) and str(each) != "x"]
    values = {
        each: each.value if isinstance(each, Constant) else numbers[each.name]
        for each in leaves
        if isinstance(each, Constant) or (isinstance(each, Name) and each.name in numbers)
    }
    operands = [each for each in leaves if each not in values]
    place: dict[Expr, int] = {each: at for at, each in enumerate((*values, *operands), 1)}
    first, last = 1 + len(place), {part: each for each in calls for part in each.arguments}
    if first + REGISTERS > MOST:
        most = MOST - REGISTERS - 1
        raise TooLong(f"it has {len(place)} numbers and operands; {most} is the most")
    free = list(range(REGISTERS))[::-1]
    instructions = []
    for each in calls:
        sources = [place.get(part, 0) for part in each.arguments]
        # What is read here for the last time leaves its register to the result.
        done = {part for part in each.arguments if isinstance(part, Call) and last[part] is each}
        free += [place[part] - first for part in done]
        if each is expr:
            to = 0
        elif free:
            to = place[each] = first + free.pop()
        else:
            raise TooLong(f"it holds more than {REGISTERS} values at the same time")
        instructions.append((PRIMITIVES.index(each.primitive), to, *sources))
    names = tuple(tensors[str(each)] for each in operands)
    return Code(tuple(values.values()), names, tuple(instructions))


def _copy(expr: Expr) -> Call:
    found = expr + -0.0
    assert isinstance(found, Call)
    return found
