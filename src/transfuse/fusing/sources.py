"""What the code of a forward tells before it runs."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dis import get_instructions
from functools import lru_cache
from inspect import unwrap
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any

HANDLERS = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH", "JUMP_IF_NOT_EXC_MATCH"})
"""Instructions of Python by which an ``except`` looks whether an exception is one of its own."""
TYPES = frozenset({"Tensor", "Size", "tuple", "int", "float", "bool"})
"""What ``type`` of a value of a call may be: a capture's stand-in for it is none of them."""


def unreadable(forward: Callable[..., Any]) -> str:
    """What a forward does that leaves no trace in a capture; empty where it is nothing known."""
    code = getattr(unwrap(forward), "__code__", None)
    return _unreadable(code) if isinstance(code, CodeType) else ""


@lru_cache(maxsize=1024)
def _unreadable(code: CodeType) -> str:
    instructions = [*get_instructions(code)]
    names = [each.opname for each in instructions]
    bare = ("PUSH_EXC_INFO", "POP_TOP")  # an ``except`` that looks at nothing
    if not HANDLERS.isdisjoint(names) or bare in pairwise(names) or "suppress" in code.co_names:
        return "catches exceptions, which sizes may raise"
    asked = (
        each.opname == "LOAD_GLOBAL" and each.argval == "type"
        and of.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and of.argval != "self"
        for each, of in pairwise(instructions)
    )  # fmt: skip
    if not TYPES.isdisjoint(code.co_names) and any(asked):
        return "compares type() of a value, where isinstance could be answered"
    return ""


def written_here(kind: type) -> list[type]:
    """A class and those it is made of, but for torch's and Python's."""
    known = ("torch", "builtins", "transfuse")
    return [each for each in kind.__mro__ if each.__module__.partition(".")[0] not in known]


def named(code: CodeType) -> set[str]:
    """The names in a function's code, and in those of the functions within."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*map(named, inner))


def named_by(kind: type, names: AbstractSet[str]) -> bool:
    """Whether the functions of a class name one of these, or those do that they call by name."""
    waiting = [each for each in map(vars, written_here(kind)) for each in each.values()]
    seen = set[int]()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, FunctionType) or id(each) in seen:
            continue
        seen.add(id(each))
        each = unwrap(each)
        found = named(each.__code__)
        if found & names:
            return True
        around = each.__globals__
        if str(around.get("__name__")).partition(".")[0] != "torch":
            waiting += (around[name] for name in found if name in around)
    return False
