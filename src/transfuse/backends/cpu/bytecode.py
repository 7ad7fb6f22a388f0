"""An expression as the code of a map: instructions over numbered values.

Values are numbered as ``transfuse_map`` says: 0 is the running value, then the numbers, then the
operands by name, then registers. The last instruction writes the running value.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

from transfuse.backends.cpu import library
from transfuse.maths.expr import ARITY, Call, Constant, Expr, Name

REGISTERS, OPERANDS, VALUES = 512, 255, 65536
"""The most that code may have: values held at the same time, operands, and values in all."""
PRIMITIVES = tuple(ARITY)
"""The primitives in the order of ``enum transfuse_primitive``."""


@dataclass(frozen=True)
class Code:
    """A map: its numbers, its operands by name, and ``(primitive, to, from…)`` for each step."""

    numbers: tuple[float, ...]
    operands: tuple[str, ...]
    registers: int
    instructions: tuple[tuple[int, ...], ...]

    @property
    def special(self) -> int:
        """How many of them are special functions."""
        return sum(each[0] >= PRIMITIVES.index("exp") for each in self.instructions)

    def structure(self) -> library.Code:
        """As the core takes it; it keeps what it points to."""
        numbers = (ctypes.c_double * len(self.numbers))(*self.numbers)
        three = ctypes.c_uint16 * 3
        instructions = (library.Instruction * len(self.instructions))(
            *(
                library.Instruction(primitive, to, three(*sources))
                for primitive, to, *sources in self.instructions
            )
        )
        counts = len(numbers), len(self.operands), self.registers, len(instructions)
        return library.Code(*counts, numbers, instructions)


class TooLong(Exception):
    """Why the core cannot hold an expression."""


def assemble(
    expr: Expr,
    numbers: Mapping[str, float],
    tensors: Mapping[str, str],
    running: str | None = "x",
) -> Code:
    """The code of an expression; its other names are operands, given under those in ``tensors``."""
    parts = expr.walk()
    calls = [each for each in parts if isinstance(each, Call)]
    if not calls:  # a number, or a name by itself: adding -0.0 copies every value as it is
        calls = [copied := _copy(expr)]
        parts, expr = copied.walk(), copied
    leaves = [each for each in parts if not isinstance(each, Call) and str(each) != running]
    values = {
        each: each.value if isinstance(each, Constant) else numbers[each.name]
        for each in leaves
        if isinstance(each, Constant) or (isinstance(each, Name) and each.name in numbers)
    }
    operands = [each for each in leaves if each not in values]
    place: dict[Expr, int] = {each: at for at, each in enumerate((*values, *operands), 1)}
    first, last = 1 + len(place), {part: each for each in calls for part in each.arguments}
    free: list[int] = []
    registers = 0
    instructions = []
    for each in calls:
        sources = [place.get(part, 0) for part in each.arguments]
        # What is read here for the last time leaves its register to the result.
        done = {part for part in each.arguments if isinstance(part, Call) and last[part] is each}
        free += [place[part] for part in done]
        if each is expr:
            to = 0
        else:
            if not free:
                free.append(first + registers)
                registers += 1
            to = place[each] = free.pop()
        instructions.append((PRIMITIVES.index(each.primitive), to, *sources))
    for what, count, most in (
        ("values held at the same time", registers, REGISTERS),
        ("operands", len(operands), OPERANDS),
        ("values in all", first + registers, VALUES),
    ):
        if count > most:
            raise TooLong(f"it has {count} {what}; {most} is the most")
    names = tuple(tensors[str(each)] for each in operands)
    return Code(tuple(values.values()), names, registers, tuple(instructions))


def _copy(expr: Expr) -> Call:
    found = expr + -0.0
    assert isinstance(found, Call)
    return found
