"""A chain as one line of text and, beside it, the numbers that may change from call to call.

The line is what torch's graphs hold of a chain: ``conv_transpose2d(+ bias) -> scale(numbers[0])``
with the numbers ``[2.0]``. Line and numbers give back the very same chain, bit for bit. Real
numbers of pointwise stages stand beside the line, so that a graph with another one is the same
graph; all else, such as a pool's window or the eps of a norm, is part of it.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from torch.compiler import is_dynamo_compiling

from transfuse.chain import Chain
from transfuse.plain import bound
from transfuse.stages.base import Stage, field_names
from transfuse.stages.pointwise import Map

Plain = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
"""The stages of a chain as words, numbers and tuples: what a trace can hand out of itself."""
NUMBER = "numbers["
"""How the names begin under which numbers stand in a line."""
INPUT, WEIGHT = "input", "weight"
"""What the tensors of the convolution are called beside the operands: no operand is called so."""


def split(chain: Chain) -> tuple[str, list[float]]:
    """The line and the numbers of a chain; of tensors, a chain must have the names alone."""
    if is_dynamo_compiling():
        stages, numbers = _plain(chain)
        return _line(stages), numbers
    # Not by the shapes of its tensors, which a trace may leave open: they are not part of a line.
    line, kept = _split(chain.fitted({}))
    return line, list(kept)


def joined(line: str, numbers: Sequence[float]) -> Chain:
    """The chain of a line and its numbers."""
    template, wanted = outline(line)
    if len(numbers) != wanted:
        raise ValueError(f"{line!r} takes {wanted} numbers, but got {len(numbers)}")
    named = {f"numbers[{at}]": float(number) for at, number in enumerate(numbers)}
    return template.bind(named) if named else template


@lru_cache(maxsize=4096)
def outline(line: str) -> tuple[Chain, int]:
    """The chain of a line with names in place of numbers, and how many these are."""
    from transfuse.stages.text import AS_WRITTEN, parse  # no import of the package needs it

    chain = Chain(*parse(line, AS_WRITTEN))
    named = {name for name in _names(chain) if name.startswith(NUMBER)}
    if named != {f"numbers[{at}]" for at in range(len(named))}:
        raise ValueError(f"{line!r} names {', '.join(sorted(named))}, which are not all from 0 on")
    for name in (INPUT, WEIGHT):
        if name in _names(chain):
            raise ValueError(f"{line!r}: {name} is that of the convolution; use another name")
    return chain, len(named)


def operands(chain: Chain) -> list[str]:
    """The names of a chain's tensors, each once, in their order."""
    return [name for name in _names(chain) if not name.startswith(NUMBER)]


def _names(chain: Chain) -> list[str]:
    found: dict[str, None] = {}
    for stage in chain.stages:
        for name in stage.operands:
            found[name] = None
    return list(found)


@lru_cache(maxsize=4096)
def _split(chain: Chain) -> tuple[str, tuple[float, ...]]:
    stages, numbers = _plain(chain)
    return _line(stages), tuple(numbers)


def _plain(chain: Chain) -> tuple[Plain, list[float]]:
    """The stages as plain values, with names in place of numbers, and these.

    Written for ``torch.compile``, which traces it: chains made in a trace are no objects, and
    nothing can print them there.
    """
    numbers: list[float] = []
    stages: list[tuple[str, tuple[tuple[str, Any], ...]]] = []
    for stage in chain.stages:
        values: list[tuple[str, Any]] = []
        if isinstance(stage, Map):
            for argument in stage.arguments:
                value: Any = argument
                if isinstance(argument, float):
                    value = f"numbers[{len(numbers)}]"
                    numbers.append(argument)
                values.append(("", bound(value)))
            stages.append((stage.function.text, tuple(values)))
            continue
        for name in field_names(type(stage)):
            values.append((name, bound(getattr(stage, name))))
        stages.append((type(stage).__name__, tuple(values)))
    return tuple(stages), numbers


def _line(stages: Plain) -> str:
    """The line of stages given as plain values."""
    from transfuse.stages.text import written

    return written([_stage(name, values) for name, values in stages])


_line._dynamo_marked_constant = True  # type: ignore[attr-defined]
# torch.compiler.assume_constant_result, which would load all of torch.compile: in a trace this is
# called, not traced. What it is given there is constant.


def _stage(name: str, values: Sequence[tuple[str, Any]]) -> Stage:
    kind = _kinds(Stage).get(name)
    if kind is not None:
        made: Stage = kind(**dict(values))
        return made
    from transfuse.stages.text import parse

    (bare,) = parse(f"{name}({', '.join(['0'] * len(values))})")
    assert isinstance(bare, Map)
    return Map(bare.function, tuple(value for _, value in values))


def _kinds(kind: Any) -> dict[str, Any]:
    """Every class of stages by its name."""
    found = {each.__name__: each for each in kind.__subclasses__()}
    for each in list(found.values()):
        found |= _kinds(each)
    return found
