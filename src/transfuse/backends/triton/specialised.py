"""Arguments as Triton sees them when it compiles a kernel, told without asking it.

Of each its type, and what compiled code may rely on: a value that is compiled in, or ``"D"`` where
16 divides an integer or an address. Tuples have a tuple of each.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from transfuse.backends.triton.arguments import UNREAD, All, At, Boxes, Pointer
from transfuse.backends.triton.kernel import Kernel

Pair = tuple[Any, Any]
STATIC = "constexpr"
"""The type of what is compiled in, and not passed."""
POINTED = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.uint8: "u8",
    torch.int32: "i32",
}


def specialised(
    kernel: Kernel, arguments: Sequence[Any], memory: Sequence[Pointer]
) -> tuple[Pair, ...]:
    """The arguments of a kernel for tensors by number."""
    first = len(arguments) - kernel.static
    found = [pair(each, memory, kernel.at_run_time) for each in arguments[:first]]
    return *found, *((STATIC, each) for each in arguments[first:])


def pair(value: Any, memory: Sequence[Pointer], at_run_time: bool = False) -> Pair:
    """One of them; ``at_run_time``: nothing of an integer is compiled in."""
    match value:
        case None:
            return STATIC, None
        case bool():
            return "u1", None
        case int():
            return _integer(value, at_run_time)
        case float():
            return "fp32", None
        case At(number):
            return _pointer(memory[number])
        case All(numbers):
            return _pairs([_pointer(memory[each]) for each in numbers or (UNREAD,)])
        case Boxes(number=number, box=box, layout=layout):
            lies = "" if layout is None else f",{layout}"
            return f"tensordesc<{POINTED[memory[number].dtype]}{list(box)}{lies}>", None
        case Tensor():
            return _pointer(Pointer.like(value))
        case tuple():
            return _pairs([pair(each, memory) for each in value])
    raise TypeError(f"{value!r} of {type(value).__name__} among the arguments of a kernel")


def _integer(value: int, at_run_time: bool) -> Pair:
    if value == 1 and not at_run_time:
        return STATIC, 1
    kind = "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    return kind, None if at_run_time else _aligned(value)


def _pointer(memory: Pointer) -> Pair:
    return f"*{POINTED[memory.dtype]}", _aligned(memory.address)


def _aligned(number: int) -> str:
    return "" if number % 16 else "D"


def _pairs(found: Sequence[Pair]) -> Pair:
    return tuple(kind for kind, _ in found), tuple(known for _, known in found)
